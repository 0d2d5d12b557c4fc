"""Exponents of length weights that are fitted on the other prompts."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly

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
