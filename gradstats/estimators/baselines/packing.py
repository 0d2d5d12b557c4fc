r"""Token arrays without masked-out positions, and rewards-to-go."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.estimators.batch import Batch


def packing_order(mask: Bool[np.ndarray, "n t"]) -> Int[np.ndarray, "n t"]:
    """For each row, the indices of its counted columns followed by the others, each in ascending order."""
    return np.argsort(~mask, axis=1, kind="stable")


def pack(values: np.ndarray, mask: Bool[np.ndarray, "n t"]) -> np.ndarray:
    """Move the counted entries of each row to its left; masked-out entries follow."""
    return np.take_along_axis(values, packing_order(mask), axis=1)


def unpack(packed: np.ndarray, mask: Bool[np.ndarray, "n t"]) -> np.ndarray:
    """Undo :func:`pack`."""
    values = np.empty_like(packed)
    np.put_along_axis(values, packing_order(mask), packed, axis=1)
    return values


def packed_rewards(batch: Batch) -> Float[np.ndarray, "n t"]:
    """Return r_{i,t} in packed order; without ``token_rewards``, R_i on the last counted token."""
    if batch.token_rewards is not None:
        return pack(batch.token_rewards, batch.mask)
    rewards = np.zeros(batch.mask.shape)
    rewards[np.arange(batch.lengths.size), batch.lengths - 1] = batch.rewards
    return rewards


def discounted_sums(values: Float[np.ndarray, "n t"], discount: float) -> Float[np.ndarray, "n t"]:
    """Return Σ_{u≥t} discount^{u−t} · values_u along each row."""
    if discount == 0:
        return values
    if discount == 1:
        return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    sums = values.copy()
    for column in range(values.shape[1] - 2, -1, -1):
        sums[:, column] += discount * sums[:, column + 1]
    return sums


def rewards_to_go(batch: Batch, gamma: float = 1.0) -> Float[np.ndarray, "n t"]:
    r"""Return G_{i,t} = Σ_{u≥t} γ^{u−t} r_{i,u} over counted tokens, 0 where masked out."""
    if batch.token_rewards is None and gamma == 1:
        return np.where(batch.mask, batch.rewards[:, None], 0.0)
    sums = discounted_sums(packed_rewards(batch), gamma)
    return np.where(batch.mask, unpack(sums, batch.mask), 0.0)
