"""The profile of a policy, against numbers worked out by hand."""

import warnings

import numpy as np
import pandas as pd
import pytest

from gradstats.analyses.profile import heaviest_share, profile_policy
from gradstats.analyses.variance import compare
from gradstats.measurement import Measurement
from gradstats.rollouts import Rollouts
from gradstats.stats.length_scaling.alpha import fit_length_scaling

LENGTHS = [2, 4, 4, 8, 2, 16]
SQ_NORMS = np.array([1.0, 4.0, 2.0, 8.0, 2.0, 7.0])
REWARDS = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]


def measurement(lengths=LENGTHS, rewards=REWARDS, sq_norms=SQ_NORMS, entropy=None, logprobs=None, sum_sq=None):
    """Six completions of three prompts, with scores in random directions."""
    n = len(lengths)
    rollouts = Rollouts.from_sequences([[1]] * n, [[2] * length for length in lengths], rewards, np.arange(n) // 2)
    directions = np.random.default_rng(0).normal(size=(n, 32))
    directions *= np.sqrt(sq_norms)[:, None] / np.linalg.norm(directions, axis=1, keepdims=True)
    nothing = [np.zeros(length) for length in lengths]
    of_tokens = (nothing if one is None else one for one in (logprobs, entropy, sum_sq, None))
    return Measurement(rollouts, pd.DataFrame({"all": sq_norms}), directions, *of_tokens)


def quietly(measured, call=profile_policy):
    """The result, past what is said about so few prompts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return call(measured)


def test_entropy_is_averaged_over_tokens_and_choices_are_counted_above_half_a_nat():
    entropy = [np.zeros(length) for length in LENGTHS]
    entropy[0][:] = [0.5, 0.9]  # one choice: 0.5 itself is none
    entropy[3][:3] = [0.6, 1.0, 0.6]
    profile = quietly(measurement(entropy=entropy))
    assert profile.mean_entropy == pytest.approx(3.6 / 36)
    assert profile.share_above_half_nat == pytest.approx(4 / 36)
    assert profile.tokens_with_choice == pytest.approx(4 / 6)


def test_spread_of_the_squared_norms():
    profile = quietly(measurement())
    # Sums 24 and 1 + 16 + 4 + 64 + 4 + 49 = 138.
    assert profile.effective_share == pytest.approx(24**2 / (6 * 138))
    # Right answers have 1, 2, 2, 7, wrong ones 4, 8.
    assert profile.wrong_over_right == pytest.approx(6.0 / 3.0)
    assert profile.optimal_constant_ratio == pytest.approx((12 / 24) / (4 / 6))
    x, y = np.log(LENGTHS), np.log(SQ_NORMS)
    residuals = y - np.polyval(np.polyfit(x, y, 1), x)
    assert profile.log_residual_sd == pytest.approx(np.sqrt(residuals @ residuals / 4))


def test_alphas_and_ratios_are_those_of_the_functions_that_fit_and_compare():
    measured = measurement()
    profile = quietly(measured)
    assert profile.alpha_pooled == fit_length_scaling(measured).alpha
    assert profile.alpha_within == fit_length_scaling(measured, method="within_prompt").alpha
    row = quietly(measured, lambda measured: compare(measured, ["reinforce"])).to_frame().iloc[0]
    assert profile.variance_ratios["reinforce"] == row["ratio"]
    frame = profile.to_frame().set_index("quantity")
    noise = frame.loc["matched_ratio of reinforce"]
    assert noise["heading"] == "relative noise of reinforce"
    assert tuple(noise[["value", "low", "high"]]) == tuple(
        row[["matched_ratio", "matched_ratio_low", "matched_ratio_high"]]
    )
    assert tuple(frame.loc["alpha_pooled", ["low", "high"]]) == profile.pooled.confidence_interval()
    assert np.isnan(frame.loc["effective_share", "low"])


def test_heaviest_share_of_long_completions():
    lengths = [150, 149, 10, 20, 30, 160]
    # Every token of probability p among two: w = 1 − 2p + p² + (1 − p)² = 2(1 − p)².
    logprobs = [np.zeros(length) for length in lengths]
    logprobs[0][:32] = np.log(0.5)
    logprobs[5][:] = np.log(0.5)
    sum_sq = [np.exp(2 * values) + (1 - np.exp(values)) ** 2 for values in logprobs]
    profile = quietly(measurement(lengths=lengths, logprobs=logprobs, sum_sq=sum_sq))
    assert profile.n_long == 2
    assert profile.top16_share == pytest.approx((16 / 32 + 16 / 160) / 2)
    assert heaviest_share(np.array([1.0, 5.0, 2.0, 2.0]), count=2) == pytest.approx(0.7)
    assert heaviest_share(np.array([1.0, 5.0]), count=16) == 1.0


def test_masked_tokens_do_not_count():
    measured = measurement()
    frame = measured.rollouts.frame.copy()
    frame["completion_mask"] = [[position != 0 for position in range(length)] for length in LENGTHS]
    entropy = [np.zeros(length) for length in LENGTHS]
    entropy[0][:] = [5.0, 0.7]
    masked = Measurement(
        Rollouts(frame), measured.sq_norms_by_block, measured.sketches, measured.logprobs, entropy,
        measured.sum_pi_squared, measured.hidden_sq_norms,
    )  # fmt: skip
    profile = quietly(masked)
    assert profile.mean_entropy == pytest.approx(0.7 / 30)
    assert profile.tokens_with_choice == pytest.approx(1 / 6)


def test_what_the_completions_cannot_give_is_nan_with_a_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile = profile_policy(measurement(rewards=[0.0] * 6))
    messages = " ".join(str(warning.message) for warning in caught)
    assert "no completion has 150 tokens or more, so top16_share is NaN" in messages
    assert "all answers are wrong, so wrong_over_right is NaN" in messages
    assert np.isnan([profile.top16_share, profile.wrong_over_right, profile.optimal_constant_ratio]).all()
