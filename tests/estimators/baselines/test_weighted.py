"""Exponents of length weights that are fitted on the other prompts."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
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
    optimal_constant,
    weighted_mean_advantages,
)
from gradstats.reference import EnumeratedPolicy

LABEL = "length_weighted(alpha=within_prompt, loo=True)"


def batch_with_norms(n_prompts=12, size=4, seed=0):
    batch, scores = correlated_batch(n_prompts, size, seed)
    return batch.with_fields(sq_norms=(scores**2).sum(axis=1)), scores


def test_each_group_gets_the_fit_on_the_other_groups():
    batch, _ = batch_with_norms()
    found = exponents_of_others(batch)
    for group in range(12):
        others = batch.group_index != group
        fit = gs.fit_length_scaling(
            lengths=batch.lengths[others],
            sq_norms=batch.sq_norms[others],
            groups=batch.groups[others],
            method="within_prompt",
        )
        np.testing.assert_allclose(found[~others], fit.alpha, rtol=1e-12)


def test_the_advantages_are_those_of_the_fitted_number():
    batch, _ = batch_with_norms()
    exponents = exponents_of_others(batch)
    found = est.get(LABEL).advantages(batch)
    for group in range(12):
        rows = batch.group_index == group
        number = est.length_weighted(alpha=float(exponents[rows][0]), loo=True).advantages(batch)
        np.testing.assert_allclose(found[rows], number[rows], rtol=1e-12)


def test_the_own_completions_do_not_move_the_own_exponent():
    batch, _ = batch_with_norms()
    changed = batch.sq_norms.copy()
    changed[batch.group_index == 3] **= 3
    moved = exponents_of_others(batch.with_fields(sq_norms=changed)) != exponents_of_others(batch)
    assert not moved[batch.group_index == 3].any()
    assert moved[batch.group_index != 3].all()


def test_a_norm_of_zero_takes_no_part():
    batch, _ = batch_with_norms()
    norms = batch.sq_norms.copy()
    norms[5] = 0.0
    known = np.arange(len(norms)) != 5
    expected = exponents_of_others(batch.select(known))
    np.testing.assert_allclose(exponents_of_others(batch.with_fields(sq_norms=norms))[known], expected, rtol=1e-12)


def test_where_nothing_can_be_fitted():
    one_length = Batch([1, 0, 1, 0], [5, 5, 7, 7], [0, 0, 1, 1], sq_norms=[1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(exponents_of_others(one_length), np.zeros(4))
    one_group = Batch([1, 0], [5, 7], [0, 0], sq_norms=[1.0, 2.0])
    with pytest.warns(RuntimeWarning, match="the exponent within prompts of 1 groups is NaN"):
        assert np.isnan(exponents_of_others(one_group)).all()


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


def test_refusals():
    batch, _ = batch_with_norms()
    with pytest.raises(ValueError, match="alpha='within_prompt' has an exponent for each group: choose scope='group'"):
        est.length_weighted(alpha="within_prompt", scope="batch").advantages(batch)
    with pytest.raises(ValueError, match="alpha must be a finite number or 'within_prompt', got 'pooled'"):
        est.length_weighted(alpha="pooled")
    with pytest.raises(ValueError, match="needs sq_norms"):
        est.get(LABEL).advantages(batch.with_fields(sq_norms=None))
    np.testing.assert_array_equal(length_exponents(batch, 0.5), np.full(48, 0.5))


FEW = settings(max_examples=40, deadline=None)


def test_hand_computed_length_weights():
    batch = Batch(rewards=[1, 0, 1], lengths=[1, 2, 3], groups=["a", "a", "a"])
    assert_allclose(est.token_mean().advantages(batch), np.array([1, 0, 1]) - 4 / 6)
    assert_allclose(est.length_weighted(alpha=1.0).advantages(batch), np.array([1, 0, 1]) - 10 / 14)
    assert_allclose(est.length_weighted(alpha=1.0, loo=True).advantages(batch), [1 - 9 / 13, -10 / 10, 1 - 1 / 5])


@FEW
@given(batch=batches(), loo=st.booleans(), scope=st.sampled_from(["group", "batch"]))
def test_length_weights_at_zero_and_one_half(batch: Batch, loo: bool, scope: str):
    mean = est.batch_mean(loo=loo) if scope == "batch" else est.group_mean(loo=loo)
    flat = est.length_weighted(alpha=0, loo=loo, scope=scope)
    half = est.length_weighted(alpha=0.5, loo=loo, scope=scope)
    assert_allclose(flat.advantages(batch), mean.advantages(batch), atol=1e-12)
    assert_allclose(half.advantages(batch), est.token_mean(loo=loo, scope=scope).advantages(batch), atol=1e-12)


def test_norm_weighted_on_the_batch_is_the_optimal_constant():
    batch = Batch([0, 1, 3], [1, 2, 3], ["a", "b", "b"], sq_norms=[1.0, 2.0, 5.0])
    assert_allclose(est.constant().advantages(batch), est.norm_weighted(scope="batch").advantages(batch))
    best = est.optimal_constant(batch.rewards, batch.sq_norms)
    assert best == pytest.approx(17 / 8)
    assert_allclose(est.constant(b=best).advantages(batch), est.constant().advantages(batch))


def test_norm_weighted_by_hand():
    batch = Batch([1, 0, 1], [1, 2, 3], ["a", "a", "a"], sq_norms=[1.0, 2.0, 5.0])
    assert_allclose(est.norm_weighted().advantages(batch), np.array([1, 0, 1]) - 6 / 8)
    assert_allclose(est.norm_weighted(loo=True).advantages(batch), [1 - 5 / 7, -6 / 6, 1 - 1 / 3])


def test_powers_of_long_lengths_do_not_overflow():
    batch = Batch([1, 0], [10, 30], ["a", "a"])
    # 10^{2α} : 30^{2α} is 1 : 3^{2α}, and beyond every float for α = 400
    assert_allclose(est.length_weighted(alpha=400.0).advantages(batch), [1, 0], atol=1e-12)
    assert_allclose(est.length_weighted(alpha=-400.0).advantages(batch), [0, -1], atol=1e-12)


def test_off_policy_weights_by_hand():
    rho = np.array([[2.0, 1.0, 1.0], [0.5, 1.0, 1.0], [1.0, 2.0, 2.0]])
    batch = Batch(
        [1, 0, 1],
        [1, 2, 3],
        ["a", "a", "a"],
        logprobs=np.log(rho) - 2,
        old_logprobs=np.full((3, 3), -2.0),
        sq_norms=[1.0, 2.0, 5.0],
    )  # ρ_i = 2, ½, 4 and ρ² = 4, ¼, 16
    rewards = np.array([1, 0, 1])
    assert_allclose(est.norm_weighted(off_policy=True).advantages(batch), rewards - 84 / 84.5)
    assert_allclose(est.norm_weighted(off_policy=True, loo=True).advantages(batch), [1 - 80 / 80.5, -1, 1 - 4 / 4.5])
    assert_allclose(est.token_mean(off_policy=True).advantages(batch), rewards - 52 / 52.5)
    assert_allclose(est.length_weighted(alpha=1, off_policy=True).advantages(batch), rewards - 148 / 149)
    assert_allclose(est.constant(off_policy=True).advantages(batch), rewards - 84 / 84.5)
    assert_allclose(est.group_mean(off_policy=True).advantages(batch), rewards - 6 / 6.5)
    assert_allclose(est.rloo(off_policy=True).advantages(batch), [1 - 4 / 4.5, -1, 1 - 2 / 2.5])
    on_policy = batch.with_fields(old_logprobs=None)
    for one in (est.norm_weighted, est.token_mean, est.constant, est.rloo):
        assert_allclose(one(off_policy=True).advantages(on_policy), one().advantages(on_policy))


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


WITH_SINGLETON = (
    "batch_mean group_mean rloo dr_grpo asymmetric token_mean norm_weighted grpo pass_at_k max_rl james_stein"
)


@pytest.mark.parametrize("name", WITH_SINGLETON.split())
def test_singletons(name: str):
    batch = Batch([0.7], [3], ["a"], sq_norms=[2.0])
    for singleton, expected in {"zero": 0.0, "reward": 0.7, "nan": np.nan}.items():
        assert_allclose(est.get(name, singleton=singleton).advantages(batch), [expected])


def test_the_weighted_mean_by_hand():
    batch = Batch([1, 0, 4], [1, 1, 1], ["a", "a", "b"])
    weights = np.array([3.0, 1.0, 2.0])
    by_group = weighted_mean_advantages(batch, weights, False, "group", "nan")
    assert_allclose(by_group, [1 - 0.75, -0.75, np.nan])
    assert_allclose(weighted_mean_advantages(batch, weights, False, "batch", "nan"), np.array([1, 0, 4]) - 11 / 6)
    others = weighted_mean_advantages(batch, weights, True, "batch", "nan")
    assert_allclose(others, [1 - 8 / 3, 0 - 11 / 5, 4 - 3 / 4])


def test_the_optimal_constant_minimises_the_variance():
    rng = np.random.default_rng(0)
    rewards, scores = rng.normal(1.0, 1.0, 40), rng.normal(size=(40, 3)) * rng.uniform(0.1, 5, (40, 1))
    scores = np.concatenate([scores, -scores])  # E[S] = 0, as on-policy
    rewards = np.tile(rewards, 2)
    best = optimal_constant(rewards, (scores**2).sum(axis=1))

    def trace(b: float) -> float:
        return float(((rewards - b)[:, None] * scores).var(axis=0).sum())

    assert best == pytest.approx(minimize_scalar(trace).x, abs=1e-6)


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="all weights of its average are zero"):
        assert np.isnan(est.norm_weighted().advantages(Batch([1, 0], [1, 1], [0, 0], sq_norms=[0.0, 0.0]))).all()
    with pytest.warns(RuntimeWarning, match="every squared gradient norm is zero"):
        assert np.isnan(est.constant().advantages(Batch([1], [1], [0], sq_norms=[0.0]))).all()
