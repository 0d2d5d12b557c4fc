"""The noise of estimators by proxy, and calibrated: against loops, a naive twin and closed forms."""

import numpy as np
import pytest
from programs import program

import gradstats as gs
from gradstats import estimators
from gradstats.estimators import Batch
from gradstats.stats.variance.calibrated import Scored, calibrate, proxy_noise, unweightable
from gradstats.stats.variance.moments import shuffled_prompts

simulation = program("benchmarks/coverage.py")
LABELS = ["reinforce", "group_mean", "grpo"]


@pytest.fixture(scope="module")
def drawn():
    """400 prompts × 4 completions, of which the first 60 prompts are measured, with a proxy that is twice the norms."""
    rng = np.random.default_rng(5)
    prompts, lengths = np.repeat(np.arange(400), 4), rng.integers(3, 40, 1600)
    rewards = rng.integers(0, 2, 1600).astype(float)
    scores = rng.normal(size=(1600, 64)) * (lengths**0.6 * np.exp(0.5 * rng.normal(size=400))[prompts])[:, None]
    scored = Scored(prompts, rewards, lengths, {"logit": 2.0 * (scores**2).sum(axis=1), "useless": rng.random(1600)})
    return Batch(rewards[:240], lengths[:240], prompts[:240]), scores[:240], scored


def test_the_noise_by_proxy_is_a_sum_over_completions_of_each_group():
    rng = np.random.default_rng(0)
    prompts, groups = np.repeat(["b", "a", "c"], [8, 5, 4]), np.repeat([0, 1, 2, 3], [4, 4, 5, 4])
    rewards, lengths, q = rng.integers(0, 2, 17), rng.integers(1, 9, 17), rng.random(17)
    found = proxy_noise(Scored(prompts, rewards, lengths, {"logit": q}, groups), LABELS, group_size=2)
    assert (found.names, found.n_groups, found.n_leftover) == (("logit", "length"), 8, 1)
    for place, prompt in enumerate("abc"):
        for at, label in enumerate(LABELS):
            for proxy, values in enumerate((q, lengths)):
                sums = []
                for group in np.unique(groups[prompts == prompt]):
                    rows = np.flatnonzero(groups == group)
                    for two in (rows[first : first + 2] for first in range(0, len(rows) - 1, 2)):
                        weights = estimators.get(label).weights(Batch(rewards[two], lengths[two], np.zeros(2)))
                        sums.append(sum(w * w * values[row] for w, row in zip(weights, two, strict=True)))
                assert found.noise[place, at, proxy] == pytest.approx(np.mean(sums))


@pytest.mark.filterwarnings("ignore:the signal")
def test_where_a_proxy_does_not_help_all_numbers_are_those_of_the_comparison(drawn):
    batch, scores, scored = drawn
    frame = gs.compare(batch, LABELS, scores, rng=3).to_frame(0.9).set_index("estimator")
    equal, others = np.full(1600, 5), np.random.default_rng(1).integers(0, 2, 1600)
    cases = {
        "No proxy shortens what 60 measured": Scored(scored.prompts, others, equal),
        "Every one of the 60 prompts": Scored(scored.prompts[:240], scored.rewards[:240], equal[:240]),
        "Intervals are those of the 60": Scored(scored.prompts[180:], scored.rewards[180:], equal[180:]),
    }
    for said, other in cases.items():
        found = calibrate(batch, LABELS, other, scores=scores, rng=3)
        assert found.sentence().startswith(said)
        assert found.proxy == ""
        for row in found.rows:
            for name in ("trace_cov", "ratio"):
                expected = tuple(frame.loc[row.label, [name, f"{name}_low", f"{name}_high"]])
                assert getattr(row, name).with_interval(0.9) == expected
                assert (getattr(row, name).factor, getattr(row, name).coefficient) == (1.0, 0.0)


def test_calibrated_ratios_are_those_of_a_naive_twin(drawn):
    """Leave-one-out in loops, lines by ``polyfit``, and the variances of two independent parts."""
    batch, scores, scored = drawn
    row = calibrate(batch, ["reinforce"], scored, scores=scores).rows[0]
    weights = [estimators.get(label).weights(batch) for label in ("reinforce", "rloo")]
    gradients = [(one[:, None] * scores).reshape(60, 4, -1).sum(axis=1) for one in weights]
    whole = Batch(scored.rewards, scored.lengths, scored.prompts)
    q = scored.proxies["logit"]
    noise = [(estimators.get(one).weights(whole) ** 2 * q).reshape(400, 4).sum(axis=1) for one in ("reinforce", "rloo")]

    def pseudo_values(function, values):
        m, value = len(values[0]), function(*values)
        return value, np.array(
            [m * value - (m - 1) * function(*(np.delete(v, i, 0) for v in values)) for i in range(m)]
        )

    def measured(a, b):
        return np.log(np.cov(a.T).trace() / np.cov(b.T).trace())

    theta, p = pseudo_values(measured, gradients)
    inside, z = pseudo_values(lambda x, y: np.log(x.mean() / y.mean()), [one[:60] for one in noise])
    everywhere, on_all = pseudo_values(lambda x, y: np.log(x.mean() / y.mean()), noise)
    control = z - z.mean() + inside - everywhere
    fold = shuffled_prompts(np.arange(60), np.random.default_rng(0)) % 10
    slopes = np.array([np.polyfit(control[fold != one], p[fold != one], 1)[0] for one in fold])
    assert row.ratio.with_interval(0.95)[0] == pytest.approx(np.exp(theta - np.mean(slopes * control)))
    assert row.ratio.coefficient == pytest.approx(slopes.mean())
    influence = p - slopes * control + slopes.mean() * 60 / 400 * (on_all - on_all.mean())[:60]
    others = slopes.mean() * 340 / 400 * on_all[60:]
    variance = influence.var(ddof=1) / 60 + others.var(ddof=1) / 340
    assert row.ratio.factor == pytest.approx(p.var(ddof=1) / 60 / variance, rel=0.05)  # others are in 200 sets


def test_an_excellent_proxy_leaves_the_error_of_all_prompts(drawn):
    """With a proxy that is right up to a factor, 60 measured prompts of 400 are worth nearly 400/60 times as many."""
    batch, scores, scored = drawn
    found = calibrate(batch, LABELS, scored, scores=scores)
    assert found.proxy == "logit"
    one = found.rows[0].trace_cov
    of_all = found.by_proxy.noise[:, 0, found.by_proxy.names.index("logit")]
    is_measured = found.by_proxy.prompts.astype(int) < 60
    shift = np.log(of_all.mean() / of_all[is_measured].mean())
    assert np.log(one.with_interval(0.95)[0] / one.measured.value) == pytest.approx(shift, abs=0.03)
    assert one.coefficient == pytest.approx(1.0, abs=0.1)
    assert 4.0 < one.factor < 1.05 * 400 / 60
    widths = [np.log(high / low) for _, low, high in (one.with_interval(0.95), one.measured.with_interval(0.95))]
    assert widths[0] < 0.6 * widths[1]


def test_what_cannot_be_weighted_or_matched_is_named(drawn):
    batch, scores, scored = drawn
    assert set(unweightable(["rloo", "norm_weighted", "james_stein"])) == {"norm_weighted", "james_stein"}
    named = Scored(np.repeat(np.arange(400, 800), 4), scored.rewards, scored.lengths)
    for message, call in (
        ("norm_weighted needs sq_norms", lambda: proxy_noise(scored, ["norm_weighted"])),
        ("james_stein", lambda: calibrate(batch, ["james_stein"], scored, scores=scores)),
        (r"rewards has shape \(2,\), but prompts has shape \(3,\)", lambda: Scored([0, 0, 1], [1, 0], [3, 3, 3])),
        ("group_size=5 must lie between 1 and 4", lambda: proxy_noise(scored, ["rloo"], group_size=5)),
        (
            r"none of the 60 measured prompts \(\d+, …\) is among the 400 scored ones",
            lambda: calibrate(batch, LABELS, named, scores=scores),
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["excellent", "useless", "wrong", "wrong in the tail"])
def test_calibrated_intervals_cover_and_are_not_wider(proxy):
    rows = simulation.rows("calibrated", (1.5, proxy, 40, 400), 200)
    assert rows["covered"].min() > 0.92 - 2.5 * np.sqrt(0.92 * 0.08 / 200)
    assert rows["worst_width"].max() <= 1.0 + 1e-9
    assert proxy != "excellent" or rows["factor"].min() > 2.0
