"""The moving estimate of what a trainer's batch reaches."""

import numpy as np
import pandas as pd
import pytest

from gradstats.integrations.moving_batch import WINDOW, MovingBatch, silent_shares, step_in_words
from gradstats.stats.variance.row import EstimatorVariance


def own(frame, label="grpo", cosine=1.0):
    """Of an estimator whose squared signal is that of the frame, against a target that is scaled and turned."""
    signal = float(frame.set_index("estimator").at[label, "signal_sq"])
    return EstimatorVariance(label, {}, on_target=cosine**2 * signal / 3.0, target_sq=cosine**2 * signal / 9.0)


def added(moving, frame, label="grpo", **target):
    return moving.add(frame, own(frame, label, **target), 8.0)


def step(rng, noise=64.0, signal=1.0, spread=1.0, saved=0.2):
    """A comparison whose noise and signal scatter about those of a critical batch of 64 prompts."""
    ratio = (1.0 - saved) * np.exp(0.1 * rng.normal())
    frame = pd.DataFrame(
        {
            "estimator": ["grpo", "rloo", "norm_weighted(loo=True)"],
            "trace_cov": noise * np.exp(0.1 * rng.normal(size=3)),
            "signal_sq": signal + spread * rng.normal(size=3),
            "matched_ratio": [1.0, np.nan, ratio],
            "noise_to_signal": np.nan,
            "noise_to_signal_low": 11.0,
            "noise_to_signal_high": np.inf,
        }
    )
    frame.attrs["confidence_level"] = 0.95
    return frame


def test_one_step_says_what_it_resolves_alone():
    found = added(MovingBatch(), step(np.random.default_rng(0)))
    assert found == {
        "batch_prompts": 8.0,
        "over_steps": 1.0,
        "critical_batch_low": 11.0,
        "alignment_low": 0.0,
        "alignment_high": pytest.approx(1.0 / (1.0 + 11.0 / 8.0)),
    }


def test_several_steps_resolve_what_none_does():
    rng, moving = np.random.default_rng(1), MovingBatch()
    frames = [step(rng, spread=0.4) for _ in range(WINDOW + 3)]
    *_, found = [added(moving, frame) for frame in frames]
    assert found["over_steps"] == WINDOW  # earlier ones are left out
    last = [frame.iloc[0] for frame in frames[-WINDOW:]]
    expected = np.mean([row["trace_cov"] for row in last]) / np.mean([row["signal_sq"] for row in last])
    assert found["critical_batch"] == pytest.approx(expected)
    assert found["alignment"] == pytest.approx(1.0 / (1.0 + expected / 8.0))
    assert found["alignment_low"] == pytest.approx(1.0 / (1.0 + found["critical_batch_high"] / 8.0))
    assert moving.better == "norm_weighted(loo=True)"
    assert 0.2 - 0.15 < found["best_saving_low"] < found["best_saving"] < found["best_saving_high"] < 0.2 + 0.15


def test_the_critical_batch_is_noise_at_the_scale_of_the_target_over_its_signal():
    """cos² of an estimator that is turned away from the target; over its own signal it would be that of the target."""
    frames = [step(np.random.default_rng(seed), spread=0.1) for seed in range(WINDOW)]
    straight, turned = MovingBatch(), MovingBatch()
    for frame in frames:
        found, other = added(straight, frame), added(turned, frame, cosine=0.5)
    assert other["critical_batch"] == pytest.approx(4.0 * found["critical_batch"])


def test_the_interval_over_steps_covers():
    rng, inside = np.random.default_rng(2), []
    for _ in range(150):
        moving = MovingBatch()
        *_, found = [added(moving, step(rng, spread=0.5)) for _ in range(WINDOW)]
        truth = 64.0 * np.exp(0.1**2 / 2.0)
        low, high = (found.get(f"critical_batch_{end}", ends) for end, ends in (("low", 0.0), ("high", np.inf)))
        inside.append(low <= truth <= high)
    assert 0.92 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize(("scatter", "bounded"), [(0.3, True), (1.07, False)])
def test_a_signal_that_is_resolved_only_just_leaves_the_upper_end_open(scatter, bounded):
    rng, moving = np.random.default_rng(4), MovingBatch()
    signals = 1.0 + scatter * (-1.0) ** np.arange(WINDOW)  # 10 and 2.8 standard errors from 0
    *_, found = [added(moving, step(rng).assign(signal_sq=one)) for one in signals]
    assert "critical_batch" in found
    assert ("critical_batch_high" in found, found["alignment_low"] > 0.0) == (bounded, bounded)


def test_nothing_better_saves_nothing_and_no_noise_says_nothing():
    rng, moving = np.random.default_rng(3), MovingBatch()
    *_, found = [added(moving, step(rng, saved=-0.5)) for _ in range(5)]
    assert (found["best_saving"], found["best_saving_low"], found["best_saving_high"]) == (0.0, 0.0, 0.0)
    assert moving.better is None
    assert not [key for key in added(moving, step(rng), "rloo") if "saving" in key]  # its ratio is not known
    assert added(moving, step(rng).assign(trace_cov=np.nan)) == {}


def test_silent_groups_and_their_tokens():
    lengths, groups = np.arange(3, 19), np.arange(16) // 4
    rewards = np.array([1.0, 0.0, 0.5, 0.0] + 4 * [1.0] + [0.1, np.nan, 0.1 + 1e-9, 0.1] + 4 * [np.nan])
    assert silent_shares(rewards, lengths, groups) == {
        "silent_groups": pytest.approx(2 / 3),
        "silent_tokens": pytest.approx((lengths[4:12].sum() - lengths[9]) / (lengths[:12].sum() - lengths[9])),
    }
    assert silent_shares(rewards, 0 * lengths, groups) == {"silent_groups": pytest.approx(2 / 3)}
    assert silent_shares(rewards[12:], lengths[12:], groups[12:]) == {}


ALIGNED = {"batch_prompts": 16.0, "over_steps": 6.0, "alignment": 0.414, "alignment_low": 0.33, "alignment_high": 0.5}
SAVED = {"best_saving": 0.04, "best_saving_low": 0.01, "best_saving_high": 0.07}


@pytest.mark.parametrize(
    ("own", "values", "better", "said"),
    [
        ("rloo", ALIGNED | SAVED, "grpo", "a step of rloo makes 41% [33, 50] of the progress of one without noise "
         "(over 6 measured steps); grpo would need 4% [1, 7] fewer prompts"),
        ("grpo", ALIGNED | SAVED, None, "a step of grpo makes up to 41% [33, 50] of the progress of one without noise "
         "(over 6 measured steps)"),
        ("rloo", {"batch_prompts": 16.0, "over_steps": 1.0, "alignment_low": 0.0, "alignment_high": 0.873}, None,
         "a step of rloo makes at most 88% of the progress of one without noise"),
        ("rloo", ALIGNED | {"over_steps": 1.0, "alignment_low": 0.004, "alignment_high": 0.998}, None,
         "how near a step of rloo comes to one without noise is not resolved yet"),
    ],
    ids=["resolved", "biased", "bounded", "unresolved"],
)  # fmt: skip
def test_a_step_in_words(own, values, better, said):
    sentence = step_in_words(300, own, 8, values | {"silent_tokens": 0.216}, better)
    silent = "22% of the tokens are in groups whose rewards are all equal"
    assert sentence == f"step 300: with 16 prompts × 8 completions, {said}; {silent}"
    assert step_in_words(300, own, 8, {"silent_tokens": 0.216}, better) == f"step 300: {silent}"
