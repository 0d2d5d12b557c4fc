"""Rows that share weights or a known scale with the reference."""

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

# Columns that compare the rows of a table, or are no numbers.
BESIDE = ("in_best_set", "most_influential_prompt")


def test_own_sample_mean_is_exactly_matched():
    batch, scores = interleaved_batch([4] * 12)
    frame = quiet_compare(batch, ["group_mean"], scores).to_frame().iloc[0]
    assert frame["ratio"] == pytest.approx(9 / 16, rel=1e-12)
    for quantity in ("matched_ratio", "matched_ratio_low", "matched_ratio_high"):
        assert frame[quantity] == pytest.approx(1.0, rel=1e-6)


def test_the_reference_beside_itself_is_one_without_error():
    batch, scores = interleaved_batch([4] * 12)
    for reference in ("rloo", "grpo"):
        frame = quiet_compare(batch, [reference, "reinforce"], scores, reference=reference).to_frame()
        for quantity in ("ratio", "matched_ratio"):
            assert list(frame.loc[0, [quantity, f"{quantity}_low", f"{quantity}_high"]]) == [1.0, 1.0, 1.0]


def test_rows_do_not_depend_on_each_other():
    batch, scores = interleaved_batch([4] * 24)
    keywords = {"scores": scores, "n_resamples": 5, "scores_are_sketches": True}
    together = quiet_compare(batch, ["batch_mean", "rloo", "constant"], **keywords).to_frame()
    alone = quiet_compare(batch, ["constant"], **keywords).to_frame()
    number = [name for name in together.select_dtypes(float) if "simultaneous" not in name and name not in BESIDE]
    np.testing.assert_array_equal(together[number].iloc[2].astype(float), alone[number].iloc[0].astype(float))
    again = quiet_compare(batch, ["batch_mean", "rloo", "constant"], **keywords).to_frame()
    np.testing.assert_array_equal(together[number].astype(float), again[number].astype(float))
