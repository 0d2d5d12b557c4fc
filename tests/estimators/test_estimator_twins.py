"""Every estimator against its naive implementation, on random batches."""

import itertools

import numpy as np
import pytest
from estimator_batches import FEW, GIVEN, batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from oracles.naive_estimators import NAIVE_ESTIMATORS, NAIVE_TOKEN_ESTIMATORS

from gradstats import estimators as est
from gradstats.estimators import Batch

BOTH = (False, True)
SINGLETON = ("zero", "reward")


def grid(**choices: tuple) -> list[dict]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


SEQUENCE_CASES = {
    "reinforce": [{}],
    "constant": grid(b=(0.3, "optimal")),
    "batch_mean": grid(loo=BOTH, singleton=SINGLETON),
    "group_mean": grid(loo=BOTH, singleton=SINGLETON),
    "rloo": grid(loo=BOTH, singleton=SINGLETON),
    "dr_grpo": grid(loo=BOTH, singleton=SINGLETON),
    "asymmetric": grid(delta=(-0.1, 0.3), loo=BOTH, singleton=SINGLETON),
    "token_mean": grid(loo=BOTH, scope=("group", "batch"), singleton=SINGLETON),
    "length_weighted": grid(alpha=(0.0, 0.5, 0.8, -1.0), loo=BOTH, scope=("group", "batch"), singleton=SINGLETON),
    "norm_weighted": grid(loo=BOTH, scope=("group", "batch"), singleton=SINGLETON),
    "grpo": grid(ddof=(0, 1), eps=(1e-6, 1e-4), loo=BOTH, singleton=SINGLETON),
    "pass_at_k": grid(normalize=BOTH, ddof=(0, 1), singleton=SINGLETON),
    "kimi": grid(tau=(0.1, 1.0, 10.0), loo=BOTH, singleton=SINGLETON),
    "max_rl": grid(loo=BOTH, singleton=SINGLETON),
    "james_stein": grid(loo=BOTH, shrink_factor=BOTH, eps=(0.0, 1e-6), singleton=SINGLETON),
    "reinforce_pp_baseline": grid(loo=BOTH, singleton=SINGLETON),
    "quantile": grid(q=(0.0, 0.4, 0.5, 1.0), loo=BOTH, singleton=SINGLETON),
    "ebpo": grid(normalize=BOTH, eps=(1e-6, 0.1)),
    "gdpo": grid(columns=("accuracy=1, format=0.5",), convention=("trl", "verl"), singleton=SINGLETON),
    "reward_ema": grid(decay=(0.0, 0.9, 1.0), start=(0.0, 0.5), loo=BOTH),
    "beta_tracker": grid(decay=(0.8, 1.0), start=(0.5, 0.2), count=(1.0, 8.0)),
    "kalman": grid(process=(0.0, 0.1), noise=(0.01, 1.0), start=(0.0, 0.5), loo=BOTH),
}
TOKEN_CASES = {
    "remax": [{}],
    "reinforce_pp": grid(gamma=(1.0, 0.9, 0.0)),
    "gae": grid(gamma=(1.0, 0.9), lam=(1.0, 0.5, 0.0), whiten=BOTH),
    "vine": grid(k=(9, 3)),
    "otb": grid(energy=("logit", "exact"), zero_tail=BOTH, loo=BOTH),
    "otb_turns": grid(energy=("logit", "exact"), zero_tail=BOTH, loo=BOTH),
    "discounted": grid(baseline=("rloo", "group_mean"), gamma=(1.0, 0.9, 0.0)),
    "causal_optimal": grid(loo=BOTH, scope=("group", "batch")),
    "arca": [{}],
}
CASES = SEQUENCE_CASES | TOKEN_CASES
TWINS = NAIVE_ESTIMATORS | NAIVE_TOKEN_ESTIMATORS


def test_every_estimator_has_a_twin_and_a_case():
    assert set(NAIVE_ESTIMATORS) == set(SEQUENCE_CASES)
    assert set(NAIVE_TOKEN_ESTIMATORS) == set(TOKEN_CASES)
    assert set(est.names()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_estimator_is_its_twin(name: str, data: st.DataObject):
    parameters = data.draw(st.sampled_from(CASES[name]))
    batch = data.draw(batches(smallest=2))
    estimator = est.get(name, **parameters)
    advantages, sizes = estimator.advantages(batch), batch.group_sizes[batch.group_index]
    if name in TOKEN_CASES:
        assert advantages.shape == batch.mask.shape
        assert not advantages[~batch.mask].any()
        sizes = sizes[:, None]
    else:
        assert advantages.shape == (len(batch.rewards),)
    assert_allclose(advantages, TWINS[name](batch, **parameters), rtol=1e-10, atol=1e-10)
    assert_allclose(estimator.weights(batch), advantages / sizes)


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
    across = {"constant", "batch_mean", "james_stein", "reinforce_pp", "reinforce_pp_baseline", "ebpo", "gdpo"}
    assert {name for name in est.names() if est.get(name, **GIVEN.get(name, {})).across_groups} == across
    some = (est.token_mean(scope="batch"), est.gae(whiten=True), est.constant(b=1))
    assert [estimator.across_groups for estimator in some] == [True, True, False]
