r"""The error that random probes of token scores add to quadratic forms of gradients, beside that of a sketch."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.probed_sums import probe_blocks
from gradstats.stats.variance.sketch_error import N_FOLDS, SketchError


class TokenProbeError(SketchError):
    r"""Estimates the error of quadratic forms of the features that
    :class:`gradstats.stats.variance.probed_sums.ProbedTokens` makes of token scores.

    Along probe k a quadratic form of gradients takes the value :math:`q_k`, and what is estimated is the mean over K
    probes. The probes are shared by all prompts, so that a jackknife over prompts does not see the error of the mean
    in the *expectation* over prompts: its variance is :math:`\frac{1}{K}\mathrm{Var}_k(E\,q_k)`, estimated from the
    covariance over k of the :math:`q_k` of disjoint folds of prompts. This holds for probes of any distribution. The
    sketched term of the form, ⟨Z_a, Z_b⟩, is estimated as in
    :class:`gradstats.stats.variance.sketch_error.SketchError`.

    Where weights were themselves estimated from the probes, the effect of each probe through the weights is added to
    :math:`q_k`, as far as the features hold it (:meth:`gradstats.stats.variance.probed_sums.ProbedTokens.influence`).

    Each method returns an array (folds, directions) of linear slopes: first those of the sketch, then of blocks of
    probes, each the sum of its :math:`(q_k - \bar q)/\sqrt{K(K-1)}`.

    Args:
        dim: dimension of the sketch.
        n_prompts: number of prompts.
        rng: for the random directions of the sketch's error.
        n_probes: K.
        sketched: whether the scores are a random projection, or exact coordinates of the gradients.
    """

    def __init__(self, dim: int, n_prompts: int, rng: np.random.Generator, n_probes: int, sketched: bool):
        super().__init__(dim, n_prompts, rng)
        if not sketched:
            self.directions = np.zeros((dim, 0))
        self.n_probes = n_probes
        self._block = np.repeat(
            np.arange(sum(map(len, probe_blocks(n_probes)))),
            [len(block) for blocks in probe_blocks(n_probes) for block in blocks],
        )

    def whole_squares(
        self, vectors: Float[np.ndarray, "g features"], shares: Float[np.ndarray, " g"]
    ) -> Float[np.ndarray, " slopes"]:
        """For Σ_g share_g ‖v_g‖², without folds."""
        known, along, along_known, shifts = self._split(vectors)
        influence = None if shifts is None else np.einsum("g,gk,gbk->b", shares, along, shifts)
        # q_k = Σ_g share_g (P_{g,k}² − P^Z_{g,k}²).
        return self._slopes(super().whole_squares(known, shares), shares @ (along**2 - along_known**2), influence)

    def whole_cross(
        self, first: Float[np.ndarray, "m features"], second: Float[np.ndarray, "m others"]
    ) -> Float[np.ndarray, " slopes"]:
        """For the mean of ⟨g_m, h_m'⟩ over ordered pairs of different rows, without folds."""
        left = self._split(first)
        right = left if second is first else self._split(second)
        # q_k: the U-statistic of P_k (and of P^Z_k) over pairs of different rows, as in `mean_over_pairs`.
        pairs = len(first) * max(len(first) - 1.0, 1.0)
        along, along_known = (
            (a.sum(axis=0) * b.sum(axis=0) - (a * b).sum(axis=0)) / pairs
            for a, b in zip(left[1:3], right[1:3], strict=True)
        )
        influences = [
            (shifts.sum(axis=0) @ other.sum(axis=0) - np.einsum("mbk,mk->b", shifts, other)) / (2.0 * pairs)
            for shifts, other in ((left[3], right[1]), (right[3], left[1]))
            if shifts is not None
        ]
        influence = np.sum(influences, axis=0) if influences else None
        return self._slopes(super().whole_cross(left[0], right[0]), along - along_known, influence)

    def _split(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the known Z, the projections P and P^Z, and (rows, blocks, k) influences of blocks, if any."""
        d, k = len(self.directions), self.n_probes
        shifts = vectors[:, 3 * d + 4 * k :] if vectors.shape[1] > 3 * d + 4 * k else None
        by_block = None if shifts is None else shifts.reshape(len(shifts), -1, k)
        return vectors[:, :d], vectors[:, d : d + k], vectors[:, d + k : d + 2 * k], by_block

    def _slopes(
        self,
        sketch: Float[np.ndarray, "d directions"],
        per_probe: Float[np.ndarray, " k"],
        influence: Float[np.ndarray, " blocks"] | None,
    ) -> Float[np.ndarray, " slopes"]:
        # A single probe has no spread, and leaves the error unknown.
        spread = np.sqrt(self.n_probes / (self.n_probes - 1.0)) if self.n_probes > 1 else np.nan
        blocks = spread * np.bincount(self._block, per_probe - per_probe.mean())
        return np.concatenate([np.ravel(sketch), blocks if influence is None else blocks + influence])


def probed_statistic(values: Float[np.ndarray, " m"], per_probe: Float[np.ndarray, "m k"] | None = None) -> Statistic:
    r"""Average over prompts a quantity that is itself a mean over probes, with the error that all prompts share.

    Args:
        values: one per prompt.
        per_probe: the value along each of the K probes, whose mean ``values`` holds; None where no probe enters.
    """
    slopes = None
    if per_probe is not None and per_probe.shape[1] > 1:
        n_probes = per_probe.shape[1]
        centred = per_probe - per_probe.mean(axis=1, keepdims=True)
        folds = np.array_split(
            np.random.default_rng(0).permutation(len(values)), max(1, min(N_FOLDS, len(values) // 2))
        )
        slopes = np.stack([centred[fold].mean(axis=0) for fold in folds]) / np.sqrt(n_probes * (n_probes - 1.0))
    return mean_statistic(values, slopes)
