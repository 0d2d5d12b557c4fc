"""The types that weights may have."""

from __future__ import annotations

import torch

from gradstats.gradients.checks.self_check import TOLERANCES
from gradstats.policy.model import DTYPES, dtype_name


def test_every_type_has_its_name_and_a_tolerance():
    assert DTYPES["bfloat16"] is torch.bfloat16
    assert {dtype_name(dtype): dtype for dtype in DTYPES.values()} == DTYPES
    assert set(TOLERANCES) == set(DTYPES.values())
