"""Which groups a filter keeps."""

from __future__ import annotations

from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe
from gradstats.reference import naive_recipe as naive

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches())
def test_dynamic_sampling(batch: Batch):
    recipe = Recipe("reinforce", filter="dynamic_sampling")
    kept = recipe.kept_groups(batch)
    assert_allclose(kept, naive.differing_groups(batch))
    weights = recipe.weights(batch)
    assert_allclose(weights, est.reinforce().weights(batch) * kept[batch.group_index])
