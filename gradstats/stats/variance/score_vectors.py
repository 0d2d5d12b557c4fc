"""The scores that weights are applied to: per completion or per token, exact, sketched or probed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.stats.variance.probed_sums import ProbedTokens


@dataclass(frozen=True)
class Contributions:
    """The weighted scores of n completions: vectors and weights whose products have the gradients' inner products.

    Attributes:
        vectors: (n, d) vectors.
        weights: (n,) weights still to be applied to them.
        surplus_sq: (n,) exact ‖·‖² of each vector less that in these coordinates; None when unknown or exact.
        exact_squares: whether ``surplus_sq`` makes the squares exact; otherwise they keep some of the sketch's error.
    """

    vectors: Float[np.ndarray, "n d"]
    weights: Float[np.ndarray, " n"]
    surplus_sq: Float[np.ndarray, " n"] | None
    exact_squares: bool = True


@dataclass(frozen=True)
class Scores:
    """Scores of n completions, in the order of their groups.

    Attributes:
        sequence: (n, D) S_i = Σ_t s_{i,t}.
        tokens: (n, T, D) s_{i,t}, or None when they are unknown or known from probes.
        sketched: whether inner products hold only on average, as in a random projection.
        surplus_sq: (n,) exact ‖S_i‖² less that of the sketch; None when unknown or nothing is sketched.
        probed: token scores projected on random probes; vectors are then its features.
        combined: the gradients under measured weightings in the coordinates of ``vectors``, to which the coefficients
            of :class:`gradstats.estimators.recipes.weightings.ByWeightings` apply; None where nothing combines any.
    """

    sequence: Float[np.ndarray, "n d"]
    tokens: Float[np.ndarray, "n t d"] | None
    sketched: bool
    surplus_sq: Float[np.ndarray, " n"] | None
    probed: ProbedTokens | None = None
    combined: CombinedScores | None = None

    @property
    def signs(self) -> Float[np.ndarray, " features"] | None:
        """The signature of inner products of vectors; None where all are positive."""
        return None if self.probed is None else self.probed.signs

    @cached_property
    def vectors(self) -> Float[np.ndarray, "n d"]:
        """The S_i in the coordinates of weighted scores."""
        if self.probed is None:
            return self.sequence
        along = self.probed.projections.sum(axis=1) / np.sqrt(self.probed.n_probes)
        return np.concatenate([self.sequence, along, along], axis=1)

    def weighted(self, weights: np.ndarray) -> Contributions:
        """Weight the scores by (n,), (n, T), or (3, n, T) where each third of the probes gives different weights."""
        if weights.ndim == 1:
            return Contributions(self.vectors, weights, self.surplus_sq)
        n = weights.shape[-2]
        if self.probed is not None:
            features, surplus = self.probed.sums(weights, np.arange(n), np.arange(n), n)
            return Contributions(features, np.ones(n), surplus, exact_squares=False)
        assert self.tokens is not None
        return _summed(weights, self.tokens, None)

    def sums(
        self, rows: list[np.ndarray], weights: list[np.ndarray]
    ) -> tuple[Float[np.ndarray, "sums d"], Float[np.ndarray, " sums"]]:
        """Weighted sums of some completions' scores, one for each entry of the lists, and what to add to squares."""
        which = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        flat = np.concatenate(rows)
        if weights[0].ndim == 1:
            entries = np.concatenate(weights)
            surplus = np.zeros(len(rows))
            if self.surplus_sq is not None:
                surplus = np.bincount(which, entries**2 * self.surplus_sq[flat], len(rows))
            gather = sparse.csr_array((entries, (which, flat)), shape=(len(rows), len(self.vectors)))
            return gather @ self.vectors, surplus
        if self.probed is not None:
            return self.probed.sums(np.concatenate(weights, axis=-2), flat, which, len(rows))
        assert self.tokens is not None
        return _sums(rows, weights, self.tokens, None)


@dataclass(frozen=True)
class CombinedScores:
    r"""Gradients of n completions under each of K weightings of their tokens, of which a recipe takes combinations.

    Attributes:
        vectors: (n, K, d) the gradients, in the coordinates of :attr:`Scores.vectors`.
        surplus_sq: (n, K) their exact ‖·‖² less those in these coordinates; None where they are exact.
        signs: the signature of inner products; None where all are positive.
    """

    vectors: Float[np.ndarray, "n k d"]
    surplus_sq: Float[np.ndarray, "n k"] | None
    signs: Float[np.ndarray, " features"] | None

    def weighted(self, weights: Float[np.ndarray, "n k"]) -> Contributions:
        """Combine the gradients of each completion."""
        return _summed(weights, self.vectors, self.surplus_sq)

    def sums(
        self, rows: list[np.ndarray], weights: list[np.ndarray]
    ) -> tuple[Float[np.ndarray, "sums d"], Float[np.ndarray, " sums"]]:
        """Return combined gradients of some completions, summed, and what to add to squares; see :class:`Scores`."""
        return _sums(rows, weights, self.vectors, self.surplus_sq)


def _summed(weights: np.ndarray, vectors: np.ndarray, surplus_sq: np.ndarray | None) -> Contributions:
    """Return Σ_k w_{i,k} x_{i,k} of each completion."""
    summed = np.einsum("nk,nkd->nd", weights, vectors)
    if surplus_sq is None:
        return Contributions(summed, np.ones(len(summed)), None)
    surplus = np.einsum("nk,nk->n", weights**2, surplus_sq)
    exact = bool((np.count_nonzero(weights, 1) <= 1).all())
    return Contributions(summed, np.ones(len(summed)), surplus, exact_squares=exact)


def _sums(
    rows: list[np.ndarray], weights: list[np.ndarray], vectors: np.ndarray, surplus_sq: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_i Σ_k w_{i,k} x_{i,k} over some completions, for each entry of the lists."""
    which = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    flat = np.concatenate(rows)
    width = vectors.shape[1]
    positions = (flat[:, None] * width + np.arange(width)).ravel()
    entries = np.concatenate([weight.ravel() for weight in weights])
    gather = sparse.csr_array(
        (entries, (np.repeat(which, width), positions)), shape=(len(rows), vectors.shape[0] * width)
    )
    surplus = np.zeros(len(rows))
    if surplus_sq is not None:
        each = np.concatenate(weights) ** 2 * surplus_sq[flat]
        surplus = np.bincount(which, each.sum(axis=1), len(rows))
    return gather @ vectors.reshape(-1, vectors.shape[2]), surplus


def prepare_scores(
    scores: np.ndarray,
    mask: Bool[np.ndarray, "n t"],
    rows: Int[np.ndarray, " kept"],
    sketched: bool,
    sq_norms: Float[np.ndarray, " n"] | None,
    probed: ProbedTokens | None = None,
) -> Scores:
    """Check scores against the completions and put the kept ones in the order of their groups.

    Args:
        scores: (N, D) or (N, T, D).
        mask: (N, T) which tokens count.
        rows: (n,) positions of the kept completions.
        sketched: whether the scores are a random projection.
        sq_norms: (N,) exact ‖S_i‖², used for the diagonal when the scores are sketched.
        probed: token scores of all N completions, projected on random probes.

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
            f"scores holds {scores.shape[1]} tokens per completion, but the batch is {mask.shape[1]} wide: pad both to "
            "the same width"
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
    kept = None if probed is None else probed.select(rows, values, surplus)
    return Scores(values, tokens, sketched, surplus, kept)
