"""Identities that tie estimators together."""

from __future__ import annotations

import numpy as np
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(seed=st.integers(0, 10**6))
def test_with_two_completions_every_weighted_loo_baseline_is_rloo(seed: int):
    rng = np.random.default_rng(seed)
    batch = Batch(
        rng.normal(size=8),
        rng.integers(1, 90, size=8),
        np.repeat(np.arange(4), 2),
        sq_norms=rng.exponential(size=8),
    )
    rloo = est.rloo().advantages(batch)
    for other in (
        est.token_mean(loo=True),
        est.length_weighted(0.8, loo=True),
        est.norm_weighted(loo=True),
        est.kimi(0.3, loo=True),
    ):
        assert_allclose(other.advantages(batch), rloo, atol=1e-12)


@FEW
@given(batch=batches(smallest=2))
def test_flat_groups_get_exactly_zero(batch: Batch):
    flat = batch.with_fields(rewards=np.full(len(batch.rewards), 0.1) + 0.2 * batch.group_index)
    for estimator in (
        est.group_mean(), est.rloo(), est.grpo(), est.token_mean(loo=True), est.length_weighted(0.8),
        est.norm_weighted(), est.kimi(0.3), est.kimi(0.3, loo=True), est.pass_at_k(), est.max_rl(),
    ):  # fmt: skip
        assert not estimator.advantages(flat).any(), estimator


def test_across_groups():
    across = {"constant", "batch_mean", "james_stein", "reinforce_pp", "reinforce_pp_baseline"}
    given = {"length_weighted": {"alpha": 0.8}, "kimi": {"tau": 1.0}}
    assert {name for name in est.names() if est.get(name, **given.get(name, {})).across_groups} == across
    assert est.token_mean(scope="batch").across_groups
    assert est.gae(whiten=True).across_groups
    assert not est.constant(b=1).across_groups
