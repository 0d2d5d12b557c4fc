"""An estimator as an object: advantages, weights, and what its gradient is measured in."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM, Definition, Estimator, Weighting, unit_of

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])


def definition(function, level="sequence", needs=(), **fields) -> Definition:
    return Definition(
        name="half",
        function=function,
        baseline="none",
        scale="half",
        bias="E[ĝ] = ½·∇J",
        source="here",
        level=level,
        needs=lambda parameters: needs,
        across_groups=lambda parameters: False,
        expected_scale=lambda group_size, parameters: parameters["factor"] / group_size,
        checked=False,
        **fields,
    )


def test_weights_are_advantages_over_the_size_of_the_group():
    half = Estimator(definition(lambda batch, factor=0.5: factor * batch.rewards), {"factor": 0.25})
    assert (half.label, repr(half), half.unit) == ("half(factor=0.25)", "half(factor=0.25)", "sequence_sum")
    assert_allclose(half.advantages(BATCH), [0.25, 0, 0.5])
    assert_allclose(half.weights(BATCH), [0.125, 0, 0.25])
    assert half.expected_scale(5) == 0.05
    assert isinstance(half, Weighting)
    assert len({half, Estimator(half.definition, {"factor": 0.25}), Estimator(half.definition, {"factor": 0.5})}) == 2


def test_advantages_of_tokens_are_zero_where_masked_out():
    tokens = Estimator(definition(lambda batch: np.ones(batch.mask.shape), level="token"), {})
    assert_array_equal(tokens.advantages(BATCH), [[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    assert_array_equal(tokens.weights(BATCH), [[0.5, 0, 0], [1, 1, 1], [0.5, 0.5, 0]])


def test_another_shape_or_a_missing_field_is_refused():
    tokens = Estimator(definition(lambda batch: np.ones(batch.mask.shape)), {})
    with pytest.raises(ValueError, match=r"half returned advantages of shape \(3, 3\), but a sequence-level .* \(3,\)"):
        tokens.advantages(BATCH)
    normed = Estimator(definition(lambda batch: batch.sq_norms, needs=("sq_norms",)), {})
    with pytest.raises(ValueError, match="half needs sq_norms, which this batch lacks"):
        normed.advantages(BATCH)


def test_an_object_without_a_unit_is_taken_as_a_plain_sum():
    assert unit_of(est.grpo()) == "sequence_sum / group_std"
    assert unit_of(Estimator(definition(np.copy, unit=lambda parameters: "nats"), {})) == "nats"

    class Plain:
        """What a user's estimator must have, and no unit."""

        name = label = "plain"
        level, needs, across_groups = "sequence", (), False

        def expected_scale(self, group_size):
            return None

        def weights(self, batch):
            return batch.rewards

    assert unit_of(Plain()) == SEQUENCE_SUM


@pytest.mark.parametrize(
    ("label", "unit"),
    [
        ("rloo", "sequence_sum"),
        ("kimi(tau=0.5)", "sequence_sum"),
        ("james_stein", "sequence_sum"),
        ("grpo", "sequence_sum / group_std"),
        ("max_rl", "sequence_sum / group_mean"),
        ("reinforce_pp", "sequence_sum / batch_token_std"),
        ("reinforce_pp_baseline", "sequence_sum / batch_token_std"),
        ("pass_at_k", "sequence_sum"),
        ("pass_at_k(normalize=True)", "sequence_sum / group_std"),
        ("gae", "sequence_sum"),
        ("gae(whiten=True)", "sequence_sum / batch_token_std"),
    ],
)
def test_each_estimator_states_its_unit(label, unit):
    assert est.get(label).unit == unit
    assert est.get(label).unit == est.recipes.named.unit_of_label(label)


def test_only_what_is_divided_by_a_spread_or_a_mean_has_another_unit():
    """Rewards and parameters of their unit ten times as large make weights ten times as large, and no other."""
    batch = est.Batch([1.0, 0.0, 3.0, 2.0], [3, 5, 4, 2], ["a", "a", "b", "b"])
    larger = batch.with_fields(rewards=10.0 * batch.rewards)
    for name in ("reinforce", "rloo", "group_mean", "grpo", "max_rl", "james_stein", "reinforce_pp_baseline"):
        estimator = est.get(name)
        factor = 10.0 if estimator.unit == "sequence_sum" else 1.0
        assert_allclose(estimator.weights(larger), factor * estimator.weights(batch), rtol=1e-4)
