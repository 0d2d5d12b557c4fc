"""Baselines weighted by length or norm: by hand, off-policy, and with exponents fitted on the other prompts."""

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly
from numpy.testing import assert_allclose
from off_policy_pair import off_policy_batch, policy_pair
from scipy.optimize import minimize_scalar

import gradstats as gs
from gradstats import estimators as est
from gradstats.estimators import Batch, recipes
from gradstats.estimators.baselines.weighted import (
    FITTED_ELSEWHERE,
    GivenExponents,
    exponents_of_others,
    fits_exponents,
    length_exponents,
)
from gradstats.reference import EnumeratedPolicy

LABEL = "length_weighted(alpha=within_prompt, loo=True)"


def test_off_policy_weights_by_hand():
    rho = np.array([[2.0, 1.0, 1.0], [0.5, 1.0, 1.0], [1.0, 2.0, 2.0]])  # ρ_i = 2, ½, 4 and ρ² = 4, ¼, 16
    old = np.full((3, 3), -2.0)
    batch = Batch([1, 0, 1], [1, 2, 3], ["a"] * 3, logprobs=np.log(rho) + old, old_logprobs=old, sq_norms=[1, 2, 5])
    rewards = np.array([1, 0, 1])
    for label, expected in {
        "norm_weighted(off_policy=True)": rewards - 84 / 84.5,
        "norm_weighted(off_policy=True, loo=True)": [1 - 80 / 80.5, -1, 1 - 4 / 4.5],
        "token_mean(off_policy=True)": rewards - 52 / 52.5,
        "length_weighted(alpha=1, off_policy=True)": rewards - 148 / 149,
        "constant(off_policy=True)": rewards - 84 / 84.5,
        "group_mean(off_policy=True)": rewards - 6 / 6.5,
        "rloo(off_policy=True)": [1 - 4 / 4.5, -1, 1 - 2 / 2.5],
    }.items():
        assert_allclose(est.get(label).advantages(batch), expected)
    on_policy = batch.with_fields(old_logprobs=None)
    for one in (est.norm_weighted, est.token_mean, est.constant, est.rloo):
        assert_allclose(one(off_policy=True).advantages(on_policy), one().advantages(on_policy))


def test_powers_of_long_lengths_do_not_overflow():
    batch = Batch([1, 0], [10, 30], ["a", "a"])
    # 10^{2α} : 30^{2α} is 1 : 3^{2α}, and beyond every float for α = 400
    assert_allclose(est.length_weighted(alpha=400.0).advantages(batch), [1, 0], atol=1e-12)
    assert_allclose(est.length_weighted(alpha=-400.0).advantages(batch), [0, -1], atol=1e-12)


def test_what_cannot_be_weighted_or_fitted_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="all weights of its average are zero"):
        assert np.isnan(est.norm_weighted().advantages(Batch([1, 0], [1, 1], [0, 0], sq_norms=[0.0, 0.0]))).all()
    with pytest.warns(RuntimeWarning, match="the exponent within prompts of 1 groups is NaN"):
        assert np.isnan(exponents_of_others(Batch([1, 0], [5, 7], [0, 0], sq_norms=[1.0, 2.0]))).all()
    one_length = Batch([1, 0, 1, 0], [5, 5, 7, 7], [0, 0, 1, 1], sq_norms=[1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(exponents_of_others(one_length), np.zeros(4))


def test_the_off_policy_constant_minimises_the_variance_of_the_weighted_gradient():
    scored, sampler = policy_pair()
    p, rho = sampler.probabilities, scored.probabilities / sampler.probabilities

    def trace(b: float) -> float:
        gradients = (rho * (scored.rewards - b))[:, None] * scored.sequence_scores
        return float(p @ (gradients**2).sum(axis=1) - ((p @ gradients) ** 2).sum())

    best = minimize_scalar(trace).x
    assert (p * rho**2 * scored.sq_norms) @ (scored.rewards - best) == pytest.approx(0.0, abs=1e-6)
    rows = np.random.default_rng(0).choice(len(p), 300_000, p=p)
    drawn = off_policy_batch(scored, sampler, rows, np.arange(len(rows)))
    own = drawn.rewards - est.constant(off_policy=True).advantages(drawn)
    assert own[0] == pytest.approx(best, abs=0.02)
    assert abs(best - (drawn.rewards - est.constant().advantages(drawn))[0]) > 0.05


def batch_with_norms(n_prompts=12):
    batch, scores = correlated_batch(n_prompts, 4, 0)
    return batch.with_fields(sq_norms=(scores**2).sum(axis=1)), scores


@pytest.fixture(scope="module")
def batch():
    return batch_with_norms()[0]


def test_each_group_gets_the_fit_on_the_other_groups_and_the_advantages_of_that_number(batch):
    found, advantages = exponents_of_others(batch), est.get(LABEL).advantages(batch)
    for group in range(12):
        own = batch.group_index == group
        lengths, sq_norms, groups = batch.lengths[~own], batch.sq_norms[~own], batch.groups[~own]
        fit = gs.fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
        np.testing.assert_allclose(found[own], fit.alpha, rtol=1e-12)
        number = est.length_weighted(alpha=fit.alpha, loo=True).advantages(batch)
        np.testing.assert_allclose(advantages[own], number[own], rtol=1e-10, atol=1e-12)


def test_a_norm_of_zero_takes_no_part(batch):
    norms = batch.sq_norms.copy()
    norms[5] = 0.0
    known = np.arange(len(norms)) != 5
    expected = exponents_of_others(batch.select(known))
    np.testing.assert_allclose(exponents_of_others(batch.with_fields(sq_norms=norms))[known], expected, rtol=1e-12)


def test_it_is_batch_level_but_stays_in_its_group_in_a_comparison():
    estimator = est.get(LABEL)
    assert estimator.across_groups
    assert estimator.needs == ("sq_norms",)
    assert fits_exponents(estimator)
    assert fits_exponents(recipes.get("custom", advantage=LABEL))
    assert not fits_exponents(est.length_weighted(alpha=0.8))
    batch, scores = batch_with_norms(40)
    table = quietly(gs.compare, batch, [LABEL], scores, group_size=2)
    row = table.rows[0]
    assert (row.label, row.n_deals) == (LABEL, None)
    # The prompt's other group takes no part either: exponents are those of whole prompts.
    given = batch.with_fields(columns={FITTED_ELSEWHERE: exponents_of_others(batch)})
    expected = quietly(gs.compare, given, [GivenExponents(estimator)], scores, group_size=2).rows[0]
    assert row.trace_cov.value == expected.trace_cov.value
    low, high = exponents_of_others(batch).min(), exponents_of_others(batch).max()
    assert any(f"the exponent fitted to the other prompts ({low:.3g} to {high:.3g})" in note for note in table.notes)


def test_fitting_costs_no_bias():
    policy = EnumeratedPolicy(vocabulary=2, max_length=3, dimension=3, n_prompts=2, rng=3)
    rng, total, squares, n_sets = np.random.default_rng(0), 0.0, 0.0, 400
    for _ in range(n_sets):
        batch, scores, _ = policy.sample(10, 4, rng=rng)
        weights = est.length_weighted(alpha="within_prompt", loo=True).weights(batch)
        gradient = weights @ scores / 10 - policy.gradient
        total, squares = total + gradient, squares + gradient**2
    stderr = np.sqrt(squares / n_sets / n_sets)
    assert (np.abs(total / n_sets) < 4.0 * stderr).all()


def test_refusals(batch):
    with pytest.raises(ValueError, match="alpha='within_prompt' has an exponent for each group: choose scope='group'"):
        est.length_weighted(alpha="within_prompt", scope="batch").advantages(batch)
    with pytest.raises(ValueError, match="alpha must be a finite number or 'within_prompt', got 'pooled'"):
        est.length_weighted(alpha="pooled")
    with pytest.raises(ValueError, match="needs sq_norms"):
        est.get(LABEL).advantages(batch.with_fields(sq_norms=None))
    np.testing.assert_array_equal(length_exponents(batch, 0.5), np.full(48, 0.5))
