"""A comparison in which estimators whose inputs were not measured keep a row that states nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly
from measured_completions import small_measurement

from gradstats.estimators import Batch
from gradstats.estimators.ratios import chi_squared
from gradstats.stats import compare
from gradstats.stats.variance.comparison import compare_available
from tests.off_policy import ImportanceWeighted


def test_the_other_rows_stay_and_the_reason_is_given():
    measured = small_measurement()
    labels = ["rloo", "gae", "remax", "otb", "recipe:grpo", "group_mean"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = compare_available(measured, labels, group_size=[2, 4])
    assert any("the row is NaN: otb needs" in str(entry.message) for entry in caught)
    frame = table.to_frame()
    assert frame["estimator"].tolist() == labels * 2
    assert frame["group_size"].tolist() == [2] * 6 + [4] * 6
    unknown = frame["trace_cov"].isna()
    assert frame["estimator"][unknown].tolist() == ["gae", "remax", "otb"] * 2
    assert frame["kept_share"][unknown].isna().all()
    notes = " ".join(table.notes)
    assert "the row is NaN: gae needs values" in notes
    assert "the row is NaN: remax needs greedy_rewards, which this batch lacks (greedy_rewards: sample with" in notes
    expected = quietly(compare, measured, ["rloo", "recipe:grpo", "group_mean"], group_size=[2, 4]).to_frame()
    known = frame.loc[~unknown].drop(columns=["components", "unit"]).reset_index(drop=True)
    np.testing.assert_allclose(known["trace_cov"], expected["trace_cov"])
    assert table.lowest_beyond_doubt() in (None, "rloo", "group_mean", "recipe:grpo")


def test_without_any_input_the_comparison_is_refused():
    with pytest.raises(ValueError, match="gae needs values, which this batch lacks"):
        compare_available(small_measurement(), ["gae"])


def test_small_ratios_that_the_target_weights_by_need_measured_weightings_of_tokens():
    """At χ² = 0.005 the ratios count as 1 on-policy only."""
    measured = small_measurement(n_prompts=40)
    rng = np.random.default_rng(2)
    measured.old_logprobs = [row + 0.03 * rng.normal(size=len(row)) for row in measured.logprobs]
    assert 0.003 < chi_squared(Batch.from_measurement(measured)) < 0.008
    labels = ["rloo", "recipe:grpo", "recipe:rloo_is"]
    table = quietly(compare_available, measured, labels, target="importance")
    frame = table.to_frame()
    assert frame["trace_cov"].isna().tolist() == [False, True, False]
    assert frame["trace_cov"][0] != pytest.approx(frame["trace_cov"][2], rel=1e-4)
    assert "the row is NaN: recipe:grpo weights each token, and only scores of whole completions" in table.notes[0]
    with pytest.raises(ValueError, match="recipe:grpo weights each token"):
        quietly(compare, measured, labels, target="importance")
    on_policy = quietly(compare_available, measured, labels, target="auto").to_frame()
    assert on_policy["trace_cov"].notna().all()


class OfWrongType(ImportanceWeighted):
    """An estimator whose weights raise a TypeError."""

    def weights(self, batch: Batch) -> np.ndarray:
        """Raise."""
        raise TypeError("bad operand type for unary -: 'str'")


def test_an_estimator_that_fails_for_its_parameters_leaves_the_other_rows():
    contradictory = "recipe:rloo(mask=reject_completions(high=2, over=max))"
    failing = OfWrongType(name="mine", label="mine", needs=())
    table = quietly(compare_available, small_measurement(), ["rloo", contradictory, failing, "group_mean"])
    frame = table.to_frame()
    assert frame["trace_cov"].isna().tolist() == [False, True, True, False]
    notes = " ".join(table.notes)
    assert "reject_completions(high=2, over=max)) cannot be computed: mask reject_completions: over='max' is" in notes
    assert "mine cannot be computed: bad operand type" in notes


def test_a_batch_is_compared_as_it_is():
    batch, scores = correlated_batch(n_prompts=20)
    table = quietly(compare_available, batch, ["rloo", "group_mean"], scores=scores)
    assert table.to_frame().equals(quietly(compare, batch, ["rloo", "group_mean"], scores).to_frame())
