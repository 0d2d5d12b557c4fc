"""The types that weights may have."""

from __future__ import annotations

from typing import get_args

import torch

from gradstats.config.option_types import WeightType

#: Name → type, in the order in which messages list them.
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(WeightType)}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type, as in ``"float32"``."""
    return str(dtype).removeprefix("torch.")
