"""The table of a comparison: levels, verdicts and the columns beside the quantities."""

from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from comparison_batches import interleaved_batch, quiet_compare, quietly, sized_batch
from measured_by_hand import measured_by_hand

from gradstats.stats import variance_by_length, variance_by_success
from gradstats.stats.variance.result import lowest_beyond_doubt


def test_verdicts_are_those_of_each_group_size():
    batch, scores = sized_batch(n_prompts=60)
    names = ["rloo", "reinforce", "grpo"]
    frame = quiet_compare(batch, names, scores, group_size=[2, 4]).to_frame()
    for position, size in enumerate((2, 4)):
        alone = quiet_compare(batch, names, scores, group_size=size).to_frame()
        for column in ("in_best_set", "n_effective_prompts", "most_influential_prompt"):
            assert frame[column].iloc[3 * position : 3 * position + 3].tolist() == alone[column].tolist()


def test_simultaneous_intervals_widen_with_the_level_and_hold_the_single_ones():
    batch, scores = interleaved_batch([4] * 60)
    result = quiet_compare(batch, ["rloo", "reinforce", "grpo"], scores)
    narrow, wide = result.to_frame(0.5), result.to_frame(0.99)
    for frame in (narrow, wide):
        for name in ("ratio", "matched_ratio"):
            assert (frame[f"{name}_simultaneous_low"] <= frame[f"{name}_low"]).all()
            assert (frame[f"{name}_simultaneous_high"] >= frame[f"{name}_high"]).all()
    assert (wide["ratio_simultaneous_high"].iloc[1:] > narrow["ratio_simultaneous_high"].iloc[1:]).all()
    assert wide["ratio_simultaneous_low"].iloc[0] == wide["ratio_simultaneous_high"].iloc[0] == 1.0


def test_a_row_without_a_gradient_has_neither_verdict_nor_prompt():
    batch, scores = interleaved_batch([4] * 20)
    frame = quiet_compare(
        batch.with_fields(rewards=np.ones(80)), ["rloo", "reinforce"], scores, reference="reinforce"
    ).to_frame()
    assert frame["in_best_set"].tolist() == [None, True]
    assert lowest_beyond_doubt(frame) == lowest_beyond_doubt(pd.read_csv(StringIO(frame.to_csv()))) == "reinforce"
    assert frame["most_influential_prompt"].isna().tolist() == [True, False]
    assert np.isnan(frame["n_effective_prompts"].iloc[0])
    assert np.isnan(frame["ratio_simultaneous_low"].iloc[0])


def test_the_interval_of_one_quantity():
    batch, scores = interleaved_batch([4] * 20)
    result = quiet_compare(batch, ["rloo", "reinforce"], scores)
    np.testing.assert_array_equal(result.confidence_interval(0.9)[0], result.to_frame(0.9)["trace_cov_low"])
    with pytest.raises(ValueError, match="quantity='in_best_set' is not estimated"):
        result.confidence_interval(0.9, "in_best_set")


def test_the_metric_of_a_measurement_stands_in_the_table_and_its_notes():
    measured = measured_by_hand(8)
    adam = {
        "name": "adam",
        "eps": 1e-8,
        "power": 0.5,
        "step": None,
        "beta2": 0.999,
        "moments": "1a2b",
        "source": "a file",
    }
    scaled = replace(measured, metadata=measured.metadata | {"metric": adam})
    plain, table = (quiet_compare(one, ["rloo"]) for one in (measured, scaled))
    assert plain.to_frame().attrs["metric"] == "euclidean"
    assert not any("P·S" in note for note in plain.notes)
    assert table.to_frame().attrs["metric"] == "adam(eps=1e-08, power=0.5, moments=1a2b)"
    bins = quietly(variance_by_length, scaled, "reinforce", n_bins=2).to_frame()
    split = quietly(variance_by_success, scaled, ["reinforce"], success=np.full(8, 0.5)).to_frame()
    assert bins.attrs["metric"] == split.attrs["metric"] == table.metric
    assert "norms and inner products are those of P·S with P = 1/(v̂^0.5 + 1e-08), v̂ from a file" in table.notes
