"""Weights that are formed a few prompts at a time, so that no array of all tokens is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int

from gradstats.estimators.batch import Batch

#: Tokens, padding included, whose weights are formed together: 32 MiB in float64.
TOKENS_AT_ONCE = 2**22


def in_blocks_of_groups(weights_of: Callable[[Batch], np.ndarray], batch: Batch) -> np.ndarray:
    """Return ``weights_of(batch)``, called on whole groups, as many at a time as :data:`TOKENS_AT_ONCE` allows.

    Args:
        weights_of: batch → one value for each completion, (n,) or (n, T), which depends on its group alone.
        batch: the completions.

    Returns:
        The values in the order of the batch.
    """
    if batch.mask.size <= TOKENS_AT_ONCE:
        return weights_of(batch)
    weights = None
    for rows in _blocks(batch):
        of_rows = weights_of(batch.select(rows))
        if weights is None:
            weights = np.empty((len(batch.rewards), *of_rows.shape[1:]), dtype=of_rows.dtype)
        weights[rows] = of_rows
    assert weights is not None
    return weights


def _blocks(batch: Batch) -> Iterator[Int[np.ndarray, " rows"]]:
    """Yield positions of the completions of consecutive groups, at least one group at a time."""
    order = np.argsort(batch.group_index, kind="stable")
    ends = np.cumsum(batch.group_sizes)
    most = TOKENS_AT_ONCE // batch.mask.shape[1]
    start = 0
    while start < len(order):
        within = int(np.searchsorted(ends, start + most, side="right"))
        stop = int(ends[max(within - 1, int(np.searchsorted(ends, start, side="right")))])
        yield order[start:stop]
        start = stop
