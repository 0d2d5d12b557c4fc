"""Published numbers and the identities that tie estimators together."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch

FEW = settings(max_examples=40, deadline=None)


def at_least_two_a_group(batch: Batch) -> Batch:
    twice = np.concatenate([np.arange(len(batch.rewards))] * 2)
    doubled = batch.select(twice)
    return doubled.with_fields(rewards=np.roll(doubled.rewards, 1))


def test_worked_example():
    batch = Batch(rewards=[0, 0, 1, 0], lengths=[3, 1, 2, 5], groups=[7, 7, 7, 7])
    assert_allclose(est.rloo().advantages(batch), [-1 / 3, -1 / 3, 1, -1 / 3])
    assert_allclose(est.grpo(eps=0).advantages(batch), [-0.5, -0.5, 1.5, -0.5])
    assert_allclose(est.group_mean().advantages(batch), [-0.25, -0.25, 0.75, -0.25])


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
def test_group_mean_is_a_share_of_rloo(batch: Batch):
    sizes = batch.group_sizes[batch.group_index]
    rloo = est.rloo().advantages(batch)
    assert_allclose(est.group_mean().advantages(batch), (sizes - 1) / sizes * rloo, atol=1e-12)
    assert_allclose(est.dr_grpo().advantages(batch), est.group_mean().advantages(batch))
    assert_allclose(est.group_mean(loo=True).advantages(batch), rloo)


@FEW
@given(batch=batches(holes=False), loo=st.booleans(), zero_tail=st.booleans())
def test_packing_changes_nothing_without_holes(batch: Batch, loo: bool, zero_tail: bool):
    turns = est.otb_turns(loo=loo, zero_tail=zero_tail).advantages(batch)
    assert_allclose(turns, est.otb(loo=loo, zero_tail=zero_tail).advantages(batch), atol=1e-12)


def test_packing_aligns_turns_whose_holes_differ():
    kept = [[1, 1, 0, 1], [1, 0, 1, 1]]
    energy = np.array([[1.0, 2.0, 9.0, 3.0], [4.0, 9.0, 5.0, 6.0]])
    batch = Batch([1, 0], [3, 3], ["a", "a"], mask=kept, token_energy=energy)
    packed = Batch([1, 0], [3, 3], ["a", "a"], token_energy=[[1, 2, 3], [4, 5, 6]])
    turns = est.otb_turns(energy="exact").advantages(batch)
    assert_allclose(turns[batch.mask], est.otb(energy="exact").advantages(packed).reshape(-1))
    assert not np.allclose(turns, est.otb(energy="exact").advantages(batch))


def test_zero_tail_of_the_single_longest():
    batch = Batch([1, 0], [4, 2], ["a", "a"], token_energy=np.ones((2, 4)))
    tail = est.otb(energy="exact").advantages(batch)[0, 2:]
    assert_allclose(tail, 1.0)  # raw return
    assert_allclose(est.otb(energy="exact", zero_tail=False).advantages(batch)[0, 2:], 0.0, atol=1e-7)


def test_zero_tail_leaves_ties_alone():
    batch = Batch([1, 0, 1], [4, 4, 2], ["a", "a", "a"], token_energy=np.ones((3, 4)))
    with_rule = est.otb(energy="exact").advantages(batch)
    assert_allclose(with_rule, est.otb(energy="exact", zero_tail=False).advantages(batch))


def test_otb_of_a_group_of_one_is_the_return():
    batch = Batch([0.5], [3], ["a"], token_energy=np.ones((1, 3)), token_cross=np.ones((1, 3)))
    assert_allclose(est.otb(energy="exact", zero_tail=False).advantages(batch), 0.5)
    assert_allclose(est.causal_optimal().advantages(batch), 0.5)


@FEW
@given(batch=batches())
def test_importance_enters_the_energy_alone(batch: Batch):
    ones = batch.with_fields(importance=np.ones(batch.mask.shape))
    constant = batch.with_fields(importance=np.full(batch.mask.shape, 3.0))
    without = est.otb().advantages(batch.with_fields(importance=None))
    assert_allclose(est.otb().advantages(ones), without)
    assert_allclose(est.otb().advantages(constant), without, atol=1e-5)  # but for the 1e-8 a common factor cancels


@FEW
@given(batch=batches())
def test_gae_limits(batch: Batch):
    returns = est.remax().advantages(batch.with_fields(greedy_rewards=np.zeros(len(batch.rewards))))
    values = np.where(batch.mask, batch.values, 0.0)
    assert_allclose(est.gae().advantages(batch), returns - values, atol=1e-12)
    assert_allclose(est.gae(lam=0.0).advantages(batch), est.vine().advantages(batch), atol=1e-12)


@FEW
@given(batch=batches(smallest=2))
def test_kimi_limits(batch: Batch):
    greatest = np.array([batch.rewards[batch.group_index == g].max() for g in batch.group_index])
    cold = est.kimi(tau=1e-9).advantages(batch)
    hot = est.kimi(tau=1e7).advantages(batch)
    alone = batch.group_sizes[batch.group_index] == 1
    assert_allclose(cold, np.where(alone, 0, batch.rewards - greatest), atol=1e-7)
    assert_allclose(hot, est.group_mean().advantages(batch), atol=1e-6)


@FEW
@given(batch=batches())
def test_whitened_advantages_have_mean_zero_and_variance_one_over_tokens(batch: Batch):
    if batch.lengths.sum() < 2:
        return
    for estimator in (est.reinforce_pp(), est.gae(whiten=True), est.reinforce_pp_baseline()):
        advantages = estimator.advantages(batch)
        tokens = advantages[batch.mask] if advantages.ndim == 2 else np.repeat(advantages, batch.lengths)
        assert tokens.mean() == pytest.approx(0, abs=1e-8)
        assert tokens.var(ddof=1) == pytest.approx(1, abs=1e-3) or tokens.var(ddof=1) < 1e-3


def test_norm_weighted_on_the_batch_is_the_optimal_constant():
    batch = Batch([0, 1, 3], [1, 2, 3], ["a", "b", "b"], sq_norms=[1.0, 2.0, 5.0])
    assert_allclose(est.constant().advantages(batch), est.norm_weighted(scope="batch").advantages(batch))
    best = est.optimal_constant(batch.rewards, batch.sq_norms)
    assert best == pytest.approx(17 / 8)
    assert_allclose(est.constant(b=best).advantages(batch), est.constant().advantages(batch))


def test_james_stein_without_spread_is_rloo():
    batch = Batch([1, 1, 0, 0, 1, 1], [1] * 6, [0, 0, 1, 1, 2, 2])
    assert_allclose(est.james_stein().advantages(batch), est.rloo().advantages(batch))
    one_group = Batch([1, 0, 0], [1] * 3, [0, 0, 0])
    assert_allclose(est.james_stein().advantages(one_group), est.rloo().advantages(one_group))


def test_james_stein_by_hand():
    batch = Batch([1, 0, 1, 1, 0, 1], [1] * 6, ["a", "a", "b", "b", "c", "c"])
    # for group a: v = ((0) + (0.5/2))/2 = 0.125, means 1 and 0.5, μ̄ = 0.75, s = 0.0625, λ = 2/3·0.125/0.1875
    shrinkage = 2 / 3 * 0.125 / 0.1875
    expected = [1 - shrinkage * 0.75, 0 - ((1 - shrinkage) * 1 + shrinkage * 0.75)]
    assert_allclose(est.james_stein().advantages(batch)[:2], expected)


@FEW
@given(batch=batches(smallest=2))
def test_flat_groups_get_exactly_zero(batch: Batch):
    flat = batch.with_fields(rewards=np.full(len(batch.rewards), 0.1) + 0.2 * batch.group_index)
    for estimator in (
        est.group_mean(), est.rloo(), est.grpo(), est.token_mean(loo=True), est.length_weighted(0.8),
        est.norm_weighted(), est.kimi(0.3), est.kimi(0.3, loo=True), est.pass_at_k(), est.max_rl(),
    ):  # fmt: skip
        assert not estimator.advantages(flat).any(), estimator


def test_leave_one_out_keeps_its_digits_beside_a_dominant_sample():
    batch = Batch([0.0, 1.0, 0.3], [1_000_000, 1, 2], ["a"] * 3)
    advantages = est.length_weighted(alpha=2.0, loo=True).advantages(batch)
    assert advantages[0] == pytest.approx(0 - (1 * 1 + 0.3 * 16) / 17, rel=1e-12)


WITH_SINGLETON = (
    "batch_mean group_mean rloo dr_grpo asymmetric token_mean norm_weighted grpo pass_at_k max_rl james_stein"
)


@pytest.mark.parametrize("name", WITH_SINGLETON.split())
def test_singletons(name: str):
    batch = Batch([0.7], [3], ["a"], sq_norms=[2.0])
    for singleton, expected in {"zero": 0.0, "reward": 0.7, "nan": np.nan}.items():
        assert_allclose(est.get(name, singleton=singleton).advantages(batch), [expected])


def test_expected_scale():
    assert est.reinforce().expected_scale(4) == 1.0
    assert est.constant(b=0.3).expected_scale(4) == 1.0
    assert est.constant().expected_scale(4) is None
    assert est.group_mean().expected_scale(4) == 0.75
    assert est.group_mean(loo=True).expected_scale(4) == 1.0
    assert est.rloo().expected_scale(1) == 0.0
    assert est.rloo(singleton="reward").expected_scale(1) == 1.0
    assert est.rloo(singleton="nan").expected_scale(1) is None
    assert est.length_weighted(0.8).expected_scale(4) is None
    assert est.length_weighted(0.8, loo=True).expected_scale(4) == 1.0
    assert est.grpo().expected_scale(4) is None
    assert est.james_stein().expected_scale(4) == 1.0
    assert est.gae().expected_scale(4) == 1.0
    assert est.gae(lam=0.9).expected_scale(4) is None


def test_across_groups():
    across = {"constant", "batch_mean", "james_stein", "reinforce_pp", "reinforce_pp_baseline"}
    given = {"length_weighted": {"alpha": 0.8}, "kimi": {"tau": 1.0}}
    assert {name for name in est.names() if est.get(name, **given.get(name, {})).across_groups} == across
    assert est.token_mean(scope="batch").across_groups
    assert est.gae(whiten=True).across_groups
    assert not est.constant(b=1).across_groups


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="all weights of its average are zero"):
        assert np.isnan(est.norm_weighted().advantages(Batch([1, 0], [1, 1], [0, 0], sq_norms=[0.0, 0.0]))).all()
    with pytest.warns(RuntimeWarning, match="give eps > 0"):
        assert np.isnan(est.grpo(eps=0).advantages(Batch([1, 1], [1, 1], [0, 0]))).all()
    with pytest.warns(RuntimeWarning, match="use rewards of at least 0"):
        assert np.isnan(est.max_rl().advantages(Batch([1, -1], [1, 1], [0, 0]))).all()
    with pytest.warns(RuntimeWarning, match="one token has no variance"):
        assert np.isnan(est.reinforce_pp().advantages(Batch([1], [1], [0]))).all()
    with pytest.warns(RuntimeWarning, match="every squared gradient norm is zero"):
        assert np.isnan(est.constant().advantages(Batch([1], [1], [0], sq_norms=[0.0]))).all()


def test_values_that_are_missing_are_refused_where_they_matter():
    batch = Batch([1], [2], [0], values=[[0.5, np.nan]])
    with pytest.raises(ValueError, match="gae needs a value at every counted token"):
        est.gae().advantages(batch)
    with pytest.raises(ValueError, match="first counted token"):
        est.vine().advantages(Batch([1], [2], [0], values=[[np.nan, 0.5]]))


def test_only_the_single_best_counts_in_pass_at_k():
    best = Batch([-3, -1, -2, 1, 1, 0], [1] * 6, ["a"] * 3 + ["b"] * 3)
    assert_allclose(est.pass_at_k().advantages(best), [0, 1, 0, 0, 0, 0])
