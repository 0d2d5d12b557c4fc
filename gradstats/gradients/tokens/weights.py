"""The user's token weights, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradstats.rollouts.table import Rollouts

TokenWeights = Mapping[str, Sequence[Any]] | Sequence[Any]

#: Name of a weighting that is given without one.
DEFAULT_NAME = "weighted"


def named_weightings(token_weights: TokenWeights | None, rollouts: Rollouts) -> dict[str, list[np.ndarray]]:
    """Weightings by name, each with one array per completion.

    Args:
        token_weights: name → one sequence of numbers per completion, one number a token; or one such list alone.
        rollouts: the completions.

    Raises:
        ValueError: when a weighting has another number of completions or of tokens, or is not finite.
    """
    if token_weights is None:
        return {}
    by_name = token_weights if isinstance(token_weights, Mapping) else {DEFAULT_NAME: token_weights}
    return {str(name): _checked(str(name), rows, rollouts) for name, rows in by_name.items()}


def _checked(name: str, rows: Sequence[Any], rollouts: Rollouts) -> list[np.ndarray]:
    if len(rows) != len(rollouts):
        raise ValueError(f"token_weights {name!r} has {len(rows)} rows for {len(rollouts)} rollouts: give one each")
    checked = [np.asarray(row, dtype=np.float64) for row in rows]
    for number, (row, tokens) in enumerate(zip(checked, rollouts.frame["completion_tokens"], strict=True)):
        if row.shape != (len(tokens),):
            raise ValueError(
                f"token_weights {name!r} has the shape {row.shape} in row {number}, whose completion has {len(tokens)} "
                "tokens: give one weight per completion token"
            )
        if not np.isfinite(row).all():
            raise ValueError(f"token_weights {name!r} is not finite in row {number}: weights must be finite numbers")
    return checked
