"""Means and constants as baselines, by hand."""

from __future__ import annotations

from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch

FEW = settings(max_examples=40, deadline=None)


def test_worked_example():
    batch = Batch(rewards=[0, 0, 1, 0], lengths=[3, 1, 2, 5], groups=[7, 7, 7, 7])
    assert_allclose(est.rloo().advantages(batch), [-1 / 3, -1 / 3, 1, -1 / 3])
    assert_allclose(est.grpo(eps=0).advantages(batch), [-0.5, -0.5, 1.5, -0.5])
    assert_allclose(est.group_mean().advantages(batch), [-0.25, -0.25, 0.75, -0.25])


@FEW
@given(batch=batches(smallest=2))
def test_group_mean_is_a_share_of_rloo(batch: Batch):
    sizes = batch.group_sizes[batch.group_index]
    rloo = est.rloo().advantages(batch)
    assert_allclose(est.group_mean().advantages(batch), (sizes - 1) / sizes * rloo, atol=1e-12)
    assert_allclose(est.dr_grpo().advantages(batch), est.group_mean().advantages(batch))
    assert_allclose(est.group_mean(loo=True).advantages(batch), rloo)


def test_the_mean_of_the_batch_crosses_groups():
    batch = Batch([1, 0, 5], [1, 2, 3], ["a", "a", "b"])
    assert_allclose(est.batch_mean().advantages(batch), [-1, -2, 3])
    assert_allclose(est.batch_mean(loo=True).advantages(batch), [1 - 2.5, 0 - 3, 5 - 0.5])
    assert_allclose(est.reinforce().advantages(batch), [1, 0, 5])
    assert_allclose(est.constant(b=0.75).advantages(batch), [0.25, -0.75, 4.25])


def test_the_asymmetric_shift_raises_every_advantage_but_that_of_a_group_of_one():
    batch = Batch([1, 0, 5], [1, 2, 3], ["a", "a", "b"])
    assert_allclose(est.asymmetric().advantages(batch), [0.5 + 0.1, -0.5 + 0.1, 0])
    assert_allclose(est.asymmetric(delta=0.25, loo=True).advantages(batch), [1 - 0.25, -1 - 0.25, 0])
