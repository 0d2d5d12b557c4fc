"""What bias and cosine are judged against."""

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare


def test_a_biased_estimator_is_judged_against_rloo_whatever_the_reference():
    batch, scores = interleaved_batch([4] * 60, signal=3.0)
    by_reference = [
        quiet_compare(batch, ["rloo", "grpo"], scores, reference=name).to_frame() for name in ("rloo", "grpo")
    ]
    for frame in by_reference:
        assert frame["cosine"].iloc[0] == pytest.approx(1.0)
        assert frame["bias_share"].iloc[0] == 0.0
        assert frame["bias_share"].iloc[1] > 0.1
    np.testing.assert_allclose(by_reference[0]["cosine"], by_reference[1]["cosine"], rtol=1e-12)


def test_single_completions_are_judged_against_reinforce():
    batch, scores = interleaved_batch([1] * 60, signal=3.0)
    frame = quiet_compare(batch, ["reinforce"], scores, reference="reinforce").to_frame()
    assert frame["bias_share"].tolist() == [0.0]
    assert frame["cosine"].iloc[0] == pytest.approx(1.0)
