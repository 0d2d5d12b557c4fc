"""The scores that weights are applied to: per completion or per token, exact or sketched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse


@dataclass(frozen=True)
class Scores:
    """Scores of n completions, in the order of their groups.

    Attributes:
        sequence: (n, D) S_i = Σ_t s_{i,t}.
        tokens: (n, T, D) s_{i,t}, or None when only whole completions were measured.
        sketched: whether inner products hold only on average, as in a random projection.
        surplus_sq: (n,) exact ‖S_i‖² less that of the sketch; None when unknown or nothing is sketched.
    """

    sequence: Float[np.ndarray, "n d"]
    tokens: Float[np.ndarray, "n t d"] | None
    sketched: bool
    surplus_sq: Float[np.ndarray, " n"] | None

    def select(self, rows: Int[np.ndarray, " kept"]) -> Scores:
        """The scores of some completions."""
        tokens = None if self.tokens is None else self.tokens[rows]
        surplus = None if self.surplus_sq is None else self.surplus_sq[rows]
        return Scores(self.sequence[rows], tokens, self.sketched, surplus)

    def weighted(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """What weights, (n,) or (n, T), make of the scores.

        Returns:
            (n, D) vectors, (n,) weights still to be applied to them, and the surplus squares that go with
            them.
        """
        if weights.ndim == 1:
            return self.sequence, weights, self.surplus_sq
        assert self.tokens is not None
        return np.einsum("nt,ntd->nd", weights, self.tokens), np.ones(len(weights)), None

    def sums(self, rows: list[np.ndarray], weights: list[np.ndarray]) -> Float[np.ndarray, "sums d"]:
        """Weighted sums of some completions' scores, one for each entry of the lists."""
        vectors, positions = self.sequence, rows
        if weights[0].ndim == 2:
            assert self.tokens is not None
            width = self.tokens.shape[1]
            vectors = self.tokens.reshape(-1, self.tokens.shape[2])
            positions = [(row[:, None] * width + np.arange(width)).ravel() for row in rows]
        which = np.repeat(np.arange(len(rows)), [len(position) for position in positions])
        entries = np.concatenate([weight.ravel() for weight in weights])
        gather = sparse.csr_array((entries, (which, np.concatenate(positions))), shape=(len(rows), len(vectors)))
        return gather @ vectors


def prepare_scores(
    scores: np.ndarray,
    mask: Bool[np.ndarray, "n t"],
    rows: Int[np.ndarray, " kept"],
    sketched: bool,
    sq_norms: Float[np.ndarray, " n"] | None,
) -> Scores:
    """Checks scores against the completions and puts the kept ones in the order of their groups.

    Args:
        scores: (N, D) or (N, T, D).
        mask: (N, T) which tokens count.
        rows: (n,) positions of the kept completions.
        sketched: whether the scores are a random projection.
        sq_norms: (N,) exact ‖S_i‖², used for the diagonal when the scores are sketched.

    Raises:
        ValueError: for a wrong shape or values that are not finite.
    """
    n = len(mask)
    if scores.ndim not in (2, 3) or scores.shape[0] != n or scores.shape[-1] == 0:
        raise ValueError(
            f"scores has shape {scores.shape}, expected ({n}, D) for whole completions or ({n}, T, D) for tokens"
        )
    if scores.ndim == 3 and scores.shape[1] != mask.shape[1]:
        raise ValueError(
            f"scores holds {scores.shape[1]} tokens a completion, but the batch is {mask.shape[1]} wide: pad both alike"
        )
    in_order = len(rows) == n and np.array_equal(rows, np.arange(n))
    values = np.asarray(scores if in_order else scores[rows], dtype=np.float64)
    tokens = None
    if values.ndim == 3:
        tokens = np.where(mask[rows][:, :, None], values, 0.0)
        values = tokens.sum(axis=1)
    bad = np.flatnonzero(~np.isfinite(values.sum(axis=1)))
    if len(bad):
        raise ValueError(
            f"scores of completion {rows[bad[0]]} hold values that are not finite: measure it again, or leave it out"
        )
    surplus = None
    if sketched and sq_norms is not None:
        surplus = sq_norms[rows] - np.einsum("nd,nd->n", values, values)
    return Scores(values, tokens, sketched, surplus)
