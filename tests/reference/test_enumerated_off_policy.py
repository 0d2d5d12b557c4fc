"""The enumerated policy drawn from at other parameters than it is scored at."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Recipe
from gradstats.reference import EnumeratedPolicy
from tests.off_policy import TOKEN_RATIOS, ImportanceWeighted, turned_policy


@pytest.fixture(scope="module")
def policy() -> EnumeratedPolicy:
    return turned_policy()


def test_the_ratios_are_those_of_two_policies(policy: EnumeratedPolicy):
    old = EnumeratedPolicy(3, 4, n_prompts=2, theta=policy.old_theta, rng=144)
    assert old.trajectories == policy.trajectories
    assert_allclose(policy.old_logprobs, old.logprobs, atol=1e-14)
    assert_allclose(policy.sampling_probabilities, old.probabilities, rtol=1e-12)
    assert_allclose(policy.ratios, policy.probabilities / old.probabilities, rtol=1e-12)
    assert policy.sampling_probabilities @ policy.ratios == pytest.approx(1, abs=1e-12)
    expected = float(np.sum(policy.probabilities**2 / policy.sampling_probabilities)) - 1
    assert policy.chi_squared == pytest.approx(expected, rel=1e-12)
    assert policy.chi_squared == pytest.approx(0.154, abs=5e-4)


def test_the_gradient_is_that_of_the_scored_policy(policy: EnumeratedPolicy):
    scored = EnumeratedPolicy(3, 4, n_prompts=2, theta=policy.theta, rng=144)
    assert_allclose(policy.gradient, scored.gradient, atol=1e-14)
    assert not scored.off_policy
    assert scored.chi_squared == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_the_sequence_ratio_is_unbiased(policy: EnumeratedPolicy, group_size: int):
    moments = policy.moments(ImportanceWeighted(), group_size)
    assert_allclose(moments.bias, 0, atol=1e-12)
    assert moments.cosine == pytest.approx(1)
    assert moments.coefficient == pytest.approx(1)
    assert moments.matched_bias_share(128) == pytest.approx(0, abs=1e-12)


def test_the_ranking_that_rloo_as_the_truth_turns_round(policy: EnumeratedPolicy):
    plain, tokens = policy.moments(est.rloo(), 3), policy.moments(TOKEN_RATIOS, 3)
    assert plain.cosine == pytest.approx(0.657, abs=1e-3)
    assert tokens.cosine == pytest.approx(0.992, abs=1e-3)
    assert plain.matched_bias_share(128) > tokens.matched_bias_share(128)
    # RLOO as the truth: itself at cosine 1, the token ratios and the unbiased estimator below.
    for moments in (tokens, policy.moments(ImportanceWeighted(), 3)):
        judged = moments.mean @ plain.mean / np.linalg.norm(moments.mean) / np.linalg.norm(plain.mean)
        assert judged < 0.75


def test_moments_against_all_ordered_groups(policy: EnumeratedPolicy):
    recipe = Recipe("group_mean", scale="group_std", ratio="token_clip", aggregation="sequence_mean")
    mean, second = np.zeros(4), 0.0
    for prompt in range(2):
        own = np.flatnonzero(policy.prompts == prompt)
        for group in itertools.product(own, repeat=2):
            rows = np.array(group)
            chance = np.exp(policy.old_logprobs[rows].sum()) / 2
            weights = recipe.token_weights(policy.batch(rows, np.zeros(2, dtype=int)))
            gradient = np.einsum("nt,ntd->d", weights, policy.token_scores[rows])
            mean += chance * gradient
            second += chance * gradient @ gradient
    moments = policy.moments(recipe, 2)
    assert_allclose(moments.mean, mean, atol=1e-12)
    assert moments.trace_cov == pytest.approx(second - mean @ mean, rel=1e-10)


def test_draws_come_from_the_old_policy(policy: EnumeratedPolicy):
    batch, scores, _ = policy.sample(30_000, 2, rng=1)
    assert batch.old_logprobs is not None
    assert batch.logprobs is not None
    ratios = np.exp((batch.logprobs - batch.old_logprobs).sum(axis=1))
    assert ratios.mean() == pytest.approx(1, abs=4 * ratios.std() / np.sqrt(ratios.size))
    weighted = (ratios * batch.rewards)[:, None] * scores
    spread = weighted.std(axis=0) / np.sqrt(len(weighted))
    assert np.all(np.abs(weighted.mean(axis=0) - policy.gradient) < 4 * spread)


@pytest.mark.parametrize("b", [-0.5, 0.0, 0.3, 2.0])
def test_the_best_constant_weights_by_squared_ratios(policy: EnumeratedPolicy, b: float):
    def second_moment(constant: float) -> float:
        moments = policy.weighted_moments(policy.ratios * (policy.rewards - constant))
        return moments.trace_cov + moments.signal_sq

    assert second_moment(policy.optimal_constant) < second_moment(b)


def test_scale_does_not_matter_once_matched(policy: EnumeratedPolicy):
    moments = policy.moments(Recipe("rloo", aggregation="constant(max_tokens=8)"), 3)
    plain = policy.moments(est.rloo(), 3)
    assert moments.matched_bias_share(64) == pytest.approx(plain.matched_bias_share(64), rel=1e-12)
    assert moments.matched_trace_cov == pytest.approx(plain.matched_trace_cov, rel=1e-12)
    assert moments.bias_share(64) > plain.bias_share(64)
    # ‖Eĝ/c − ∇J‖² = ‖∇J‖²(1/cos² − 1)
    bias_sq = float(policy.gradient @ policy.gradient) * (1 / plain.cosine**2 - 1)
    variance = plain.matched_trace_cov / 64
    assert plain.matched_bias_share(64) == pytest.approx(bias_sq / (bias_sq + variance), rel=1e-12)


def test_old_parameters_of_another_shape():
    with pytest.raises(ValueError, match=r"old_theta has shape \(3,\), but theta has \(4,\)"):
        EnumeratedPolicy(theta=np.zeros(4), old_theta=np.zeros(3))
