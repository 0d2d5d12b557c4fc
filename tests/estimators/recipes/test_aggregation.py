"""Aggregations against their naive twins."""

from __future__ import annotations

import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.recipes.components import constant
from gradstats.reference import naive_estimators as naive

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches(), name=st.sampled_from(["sequence_sum", "sequence_mean", "token_mean", "constant"]))
def test_aggregations(batch: Batch, name: str):
    weights = Recipe("rloo", aggregation=name).weights(batch)
    factors = [naive.aggregation_factor(batch, i, name) for i in range(len(batch.rewards))]
    assert_allclose(weights, est.rloo().advantages(batch) * factors, atol=1e-12)


def test_aggregation_parameters():
    batch = Batch([1, 0, 1, 0], [1, 3, 2, 2], ["a", "a", "b", "b"])
    capped = Recipe("rloo", aggregation=constant(max_tokens=10)).weights(batch)
    assert_allclose(capped, est.rloo().weights(batch) / 10)
    shared = Recipe("rloo", aggregation="token_mean(scope=batch)")
    # the mean over two groups of Σ w s is Σ A s over the batch's 8 tokens
    assert_allclose(shared.weights(batch) / 2, est.rloo().advantages(batch) / 8)
    assert shared.across_groups
    assert not Recipe("rloo", aggregation="token_mean").across_groups


def test_the_exponent_of_delta_l_is_a_number():
    assert Recipe("rloo", aggregation="delta_l(alpha=-0.5)").aggregation.parameters == {"alpha": -0.5}
    with pytest.raises(ValueError, match=r"aggregation delta_l: alpha must be a finite number, got 'within_prompt'"):
        Recipe("rloo", aggregation="delta_l(alpha=within_prompt)")
