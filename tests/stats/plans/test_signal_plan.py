"""The number of prompts that resolves the expected gradient."""

from itertools import permutations

import numpy as np
import pytest
from comparison_batches import sized_batch
from scipy import stats

from gradstats.stats import compare, plan_signal
from gradstats.stats.plans.signal_plan import pair_components


def test_the_parts_are_the_means_over_distinct_prompts():
    """Every pair, triple and quadruple of six prompts, one by one."""
    g = np.random.default_rng(0).normal(size=(6, 3)) + 0.5
    gram = g @ g.T
    mean, linear, quadratic = pair_components(gram)
    pairs = list(permutations(range(6), 2))
    assert mean == pytest.approx(np.mean([gram[m, k] for m, k in pairs]), rel=1e-12)
    mean_sq = np.mean([gram[a, b] * gram[c, d] for a, b, c, d in permutations(range(6), 4)])
    triples = np.mean([gram[a, b] * gram[a, c] for a, b, c in permutations(range(6), 3)])
    assert linear == pytest.approx(triples - mean_sq, rel=1e-9)
    assert quadratic == pytest.approx(np.mean([gram[m, k] ** 2 for m, k in pairs]) - mean_sq - 2 * linear, rel=1e-9)


def test_the_parts_are_those_of_the_population():
    """Gradients N(μ, Σ): ζ = μ'Σμ and δ = tr Σ², and 4ζ/M + 2δ/(M(M−1)) is the variance of the mean over pairs."""
    rng, mean, spread = np.random.default_rng(0), np.array([0.5, 0.0, 0.2]), np.array([1.0, 2.0, 0.5])
    found, signals = [], []
    for _ in range(4000):
        g = mean + spread * rng.normal(size=(12, 3))
        found.append(pair_components(g @ g.T))
        signals.append(found[-1][0])
    average, stderr = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(4000)
    expected = np.array([mean @ mean, mean**2 @ spread**2, np.sum(spread**4)])
    assert np.all(np.abs(average - expected) < 4 * stderr)
    assert np.var(signals) == pytest.approx(4 * expected[1] / 12 + 2 * expected[2] / (12 * 11), rel=0.1)


def test_the_size_solves_its_equation():
    batch, scores = sized_batch(n_prompts=60)
    compared = compare(batch, ["reinforce", "rloo"], scores, group_size=4)
    plan = plan_signal(compared, "reinforce")
    z, z_80 = stats.norm.ppf([0.975, 0.8])

    def margin(m):
        return z * np.sqrt(4 * plan.linear / m + 4 * plan.quadratic / m**2) + z_80 * np.sqrt(
            4 * plan.linear / m + 2 * plan.quadratic / m**2
        )

    assert margin(plan.n_prompts) <= plan.signal_sq < margin(plan.n_prompts - 1) or plan.n_prompts == 3
    assert plan.n_prompts_low <= plan.n_prompts <= plan.n_prompts_assured <= plan.n_prompts_high
    assert plan.completions_per_prompt == 8
    assert plan.tokens_per_completion == pytest.approx(batch.lengths.mean())
    assert plan.sentence().startswith("‖E ĝ‖² of reinforce resolved (95% interval above 0 in 80% of studies) takes")


def test_a_signal_that_may_be_zero_has_no_upper_end():
    batch, scores = sized_batch(n_prompts=20)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 20)
    compared = compare(batch, ["reinforce", "rloo"], scores * signs[batch.group_index][:, None], group_size=8)
    plan = plan_signal(compared, "rloo")
    assert plan.n_prompts_high == np.inf
    assert "∞" in plan.sentence()


def test_refusals():
    batch, scores = sized_batch(n_prompts=20)
    compared = compare(batch, ["rloo", "reinforce"], scores, group_size=4)
    with pytest.raises(ValueError, match="estimator='grpo' is not in the pilot: choose from rloo, reinforce"):
        plan_signal(compared, "grpo")
    several = compare(batch, ["rloo", "reinforce"], scores, group_size=[2, 4])
    with pytest.raises(ValueError, match="several group sizes, or was pickled: compare at one group size"):
        plan_signal(several, "rloo")
    silent = compare(
        batch.with_fields(rewards=np.ones(len(batch.rewards))), ["reinforce", "rloo"], scores, reference="reinforce"
    )
    with pytest.raises(ValueError, match="no interval of ‖E g‖² for 'rloo' from at least 4 prompts"):
        plan_signal(silent, "rloo")
