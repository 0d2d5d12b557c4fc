"""Sums over groups of completions, and over the *other* completions of a group, without looping."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from gradstats.estimators.batch import Batch


def reference_sets(batch: Batch, scope: str) -> tuple[Int[np.ndarray, "n"], int]:
    """Return the set over which each completion's baseline is taken: its group or, with ``scope="batch"``, the batch.

    Returns:
        The index of each completion's set, shape (N,), and the number of sets.
    """
    if scope == "batch":
        return np.zeros(batch.rewards.size, dtype=np.int64), 1
    return batch.group_index, batch.n_groups


def reduce_by_group(
    values: Float[np.ndarray, "n ..."],
    index: Int[np.ndarray, "n"],
    n_groups: int,
    operation: np.ufunc = np.add,
) -> Float[np.ndarray, "groups ..."]:
    """Reduce the rows of each group with ``operation``, by default a sum; no group may be empty."""
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(n_groups))
    return operation.reduceat(values[order], starts, axis=0)


def reduce_others(
    values: Float[np.ndarray, "n ..."],
    index: Int[np.ndarray, "n"],
    n_groups: int,
    operation: np.ufunc = np.add,
    identity: float = 0.0,
) -> Float[np.ndarray, "n ..."]:
    """Reduce, for each row, the other rows of its group; ``identity`` where it is alone.

    The rows before and the rows after it are accumulated separately: subtracting the row itself from the total
    would lose digits where that row dominates.
    """
    if n_groups == 1:
        index, position, sizes = np.zeros(len(values), dtype=np.int64), np.arange(len(values)), np.array([len(values)])
    else:
        sizes = np.bincount(index, minlength=n_groups)
        order = np.argsort(index, kind="stable")
        position = np.empty(index.size, dtype=np.int64)
        position[order] = np.arange(index.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # one column of identity on either side, so that a shift by one makes the accumulation exclusive
    table = np.full((n_groups, int(sizes.max()) + 2, *values.shape[1:]), identity)
    table[index, position + 1] = values
    before = operation.accumulate(table, axis=1)
    after = operation.accumulate(table[:, ::-1], axis=1)[:, ::-1]
    return operation(before[index, position], after[index, position + 2])


def first_of_group(
    values: Float[np.ndarray, "n"], index: Int[np.ndarray, "n"], n_groups: int
) -> Float[np.ndarray, "n"]:
    """For each completion, the value of the first completion of its group.

    A baseline shifts with the rewards, so subtracting this value from all rewards of a group changes no
    advantage. It makes the advantages of a group whose rewards are all equal exactly 0, whatever the rounding.
    """
    first = np.empty(n_groups)
    first[index[::-1]] = values[::-1]
    return first[index]
