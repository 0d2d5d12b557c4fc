"""Gradients under user-defined token weights, as norms and sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

#: What a measurement is told that would need sketches by block.
NO_BLOCK_SKETCHES = "this measurement holds no sketches by block: measure with block_sketches=True"


@dataclass(frozen=True)
class WeightedGradients:
    r"""Gradients :math:`\sum_t w_t \nabla\log\pi(y_{i,t})` under the user's token weights, as norms and sketches.

    Attributes:
        sq_norms_by_block: frame (N, blocks), squared norms.
        sketches: (N, sketch_dim), projections of the same seed as those of the measurement itself, or None.
        sketches_by_block: (N, blocks, sketch_dim), those of each block, which sum to ``sketches``; or None.
    """

    sq_norms_by_block: pd.DataFrame
    sketches: np.ndarray | None
    sketches_by_block: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sq_norms_by_block)

    @property
    def sq_norms(self) -> np.ndarray:
        """(N,) squared norms."""
        return self.sq_norms_by_block.to_numpy(dtype=np.float64).sum(axis=1)

    def gram(self) -> np.ndarray:
        """Return (N, N) inner products: unbiased from the sketches, exact on the diagonal.

        Raises:
            ValueError: when no sketches were measured.
        """
        return sketched_gram(self.sketches, self.sq_norms)

    def select(self, rows: np.ndarray) -> WeightedGradients:
        """Return the sequences at the given positions, in that order."""
        table = self.sq_norms_by_block.iloc[rows].reset_index(drop=True)
        sketches = (None if values is None else values[rows] for values in (self.sketches, self.sketches_by_block))
        return WeightedGradients(table, *sketches)

    def of_block(self, block: str) -> WeightedGradients:
        """Return the gradients with respect to the parameters of one block alone.

        Raises:
            ValueError: when no sketches by block were measured.
        """
        if self.sketches_by_block is None:
            raise ValueError(NO_BLOCK_SKETCHES)
        place = list(self.sq_norms_by_block).index(block)
        return WeightedGradients(self.sq_norms_by_block.filter(items=[block]), self.sketches_by_block[:, place])

    @classmethod
    def concatenate(cls, shards: Sequence[WeightedGradients]) -> WeightedGradients:
        """Stack the gradients of several shards, which all have the same sketches."""

        def stacked(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
            present = [values for values in arrays if values is not None]
            return np.concatenate(present) if present else None

        return cls(
            pd.concat([shard.sq_norms_by_block for shard in shards], ignore_index=True),
            stacked([shard.sketches for shard in shards]),
            stacked([shard.sketches_by_block for shard in shards]),
        )


def sketched_gram(sketches: np.ndarray | None, sq_norms: np.ndarray) -> np.ndarray:
    r"""(N, N) inner products: :math:`\langle C S_i, C S_j\rangle` from the sketches, squared norms on the diagonal.

    Raises:
        ValueError: when there are no sketches.
    """
    if sketches is None:
        raise ValueError("this measurement holds no sketches: measure with sketch_dim, for example 16384")
    wide = sketches.astype(np.float64)
    gram = wide @ wide.T
    np.fill_diagonal(gram, sq_norms)
    return gram
