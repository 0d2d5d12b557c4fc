"""Gradients under user-defined token weights, as norms and sketches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class WeightedGradients:
    r"""Gradients :math:`\sum_t w_t \nabla\log\pi(y_{i,t})` under the user's token weights, as norms and sketches.

    Attributes:
        sq_norms_by_block: frame (N, blocks), squared norms.
        sketches: (N, sketch_dim), projections of the same seed as those of the measurement itself, or None.
    """

    sq_norms_by_block: pd.DataFrame
    sketches: np.ndarray | None

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
        return WeightedGradients(table, None if self.sketches is None else self.sketches[rows])


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
