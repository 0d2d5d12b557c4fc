"""The fields of a measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_by_hand import measured_by_hand


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sketches": np.zeros((4, 8))}, "sketches has 4 rows for 5 rollouts"),
        ({"logprobs": [np.zeros(1)] * 5}, "logprobs does not have one value per completion token"),
        ({"heavy_positions": None}, "heavy_sq_norms does not have one row per position in heavy_positions"),
    ],
)
def test_fields_of_other_lengths_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(measured_by_hand(), **change)
