"""The factor c in E[ĝ] = c·∇J: as stated by each estimator, and by enumeration."""

from __future__ import annotations

import pytest
from estimator_batches import expected_gradient

from gradstats import estimators as est
from gradstats.estimators.baselines.grouping import is_batch_level, mean_scale, unbiased, unbiased_if_loo


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


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    "label", ["group_mean", "rloo", "dr_grpo", "asymmetric(delta=0.3)", "reinforce", "constant(b=0.7)"]
)
def test_the_stated_factor_is_the_enumerated_one(label: str, n: int):
    estimator = est.get(label)
    for p in (0.2, 0.5):
        assert expected_gradient(estimator.weights, p, n) == pytest.approx(estimator.expected_scale(n))


@pytest.mark.parametrize(("singleton", "factor"), [("zero", 0.0), ("reward", 1.0)])
def test_a_group_of_one_has_the_factor_of_its_rule(singleton: str, factor: float):
    parameters = {"singleton": singleton, "loo": False}
    assert unbiased(1, parameters) == mean_scale(1, parameters) == unbiased_if_loo(1, parameters) == factor
    assert expected_gradient(est.group_mean(singleton=singleton).weights, 0.3, 1) == pytest.approx(factor)


def test_with_the_own_sample_the_factor_is_known_for_the_mean_only():
    included, left_out = {"singleton": "zero", "loo": False}, {"singleton": "zero", "loo": True}
    assert (mean_scale(5, included), mean_scale(5, left_out)) == (0.8, 1.0)
    assert (unbiased_if_loo(5, included), unbiased_if_loo(5, left_out)) == (None, 1.0)
    # over a batch, the size of the group does not decide
    assert unbiased_if_loo(1, {**included, "scope": "batch"}) is None
    assert is_batch_level({"scope": "batch"})
    assert not is_batch_level({"scope": "group"})
