"""Read and check the user's token weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from gradstats.rollouts.table import Rollouts

TokenWeights = Mapping[str, Sequence[ArrayLike]] | Sequence[ArrayLike]

#: Name of a weighting that is given without a name.
DEFAULT_NAME = "weighted"


def named_weightings(token_weights: TokenWeights | None, rollouts: Rollouts) -> dict[str, list[np.ndarray]]:
    """Return weightings by name, each with one array per completion.

    Args:
        token_weights: name → one sequence of numbers per completion, one number per token; or one such list.
        rollouts: the completions.

    Returns:
        Name → one array per completion.

    Raises:
        ValueError: when a weighting has another number of completions or of tokens, or is not finite.
    """
    if token_weights is None:
        return {}
    by_name = token_weights if isinstance(token_weights, Mapping) else {DEFAULT_NAME: token_weights}
    return {str(name): _checked(str(name), rows, rollouts) for name, rows in by_name.items()}


def _checked(name: str, rows: Sequence[ArrayLike], rollouts: Rollouts) -> list[np.ndarray]:
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
