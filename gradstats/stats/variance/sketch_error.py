r"""The error that a random projection adds to quadratic forms of gradients."""

from __future__ import annotations

from copy import copy
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

N_DIRECTIONS = 16
N_FOLDS = 4


class SketchError:
    r"""Estimates the error of quadratic forms that are evaluated in a D-dimensional sketch.

    A quadratic form of gradients, :math:`q = \sum_{ij} C_{ij}⟨S_i, S_j⟩` with symmetric C, has in a CountSketch
    (or AMS, or Gaussian) projection of dimension D the right mean and the variance

    .. math:: \frac{2}{D}\,\mathrm{tr}(C G C G) = \frac{2}{D}\,‖K‖_F², \qquad K = V^T C V, \quad G = V V^T

    (an upper bound for CountSketch, tight unless a few coordinates carry everything). One component of it is
    noise that differs from prompt to prompt, which a jackknife over prompts sees. It does not see the sketch's error
    in the *expectation* of q, because one sketch serves all prompts: by the law of total variance
    :math:`\frac{2}{D}‖E K‖_F²` has to be added. :math:`‖E K‖_F²` is estimated without bias by the inner
    product of the K of disjoint folds of prompts, :math:`⟨K_f, K_{f'}⟩ ≈ \frac1R\sum_r ⟨K_f z_r, K_{f'} z_r⟩` along R
    random sign directions (Hutchinson), which needs neither G nor K. In the sketch itself ‖K‖_F² comes out too large
    by (tr K)²/D, which removing the trace corrects.

    Prompts have to be numbered at random, so that folds are alike. Each method returns an array (folds, D, R) of
    :math:`(K_f - \frac{\mathrm{tr} K_f}{D} I) Z\sqrt{2/(DR)}`: linear combinations of forms combine linearly, and
    :func:`gradstats.stats.jackknife.added_variance` gives the variance they add.

    Args:
        dim: D.
        n_prompts: number of prompts.
        rng: for the random directions.
    """

    def __init__(self, dim: int, n_prompts: int, rng: np.random.Generator):
        self.dim = dim
        if dim <= N_DIRECTIONS:
            # An orthogonal basis gives inner products of matrices exactly.
            self.directions = np.eye(dim) * np.sqrt(2.0 / dim)
        else:
            signs = rng.choice(np.array([-1.0, 1.0]), size=(dim, N_DIRECTIONS))
            self.directions = signs * np.sqrt(2.0 / (dim * N_DIRECTIONS))
        n_folds = max(1, min(N_FOLDS, n_prompts // 2))
        # Folds are runs of prompt numbers, so that they are views and not copies of what may be gigabytes.
        self._bounds = np.linspace(0, n_prompts, n_folds + 1).round().astype(int)

    def with_directions(self, directions: Float[np.ndarray, "c r"]) -> SketchError:
        """Return the same in other coordinates, in which the vectors are then to be given as well."""
        other = copy(self)
        other.directions = directions
        return other

    def squares(
        self,
        vectors: Float[np.ndarray, "g d"],
        shares: Float[np.ndarray, " g"],
        prompts: Int[np.ndarray, " g"],
    ) -> Float[np.ndarray, "f *slopes"]:
        """For Σ_g share_g ‖v_g‖² of sketched vectors, each of a prompt, in the order of the prompts."""
        result = []
        for start, stop in pairwise(self._bounds):
            # An estimate of Σ_g share_g ‖v_g‖² from one fold of M_f prompts: M/M_f times the sum over it.
            inside = slice(*np.searchsorted(prompts, [start, stop]))
            inverse_share = self._bounds[-1] / (stop - start)
            result.append(self.whole_squares(vectors[inside], inverse_share * shares[inside]))
        return np.stack(result)

    def cross(
        self, first: Float[np.ndarray, "m d"], second: Float[np.ndarray, "m e"]
    ) -> Float[np.ndarray, "f *slopes"]:
        """For the mean of ⟨g_m, h_m'⟩ over ordered pairs of different prompts."""
        result = []
        for start, stop in pairwise(self._bounds):
            fold = first[start:stop]
            result.append(self.whole_cross(fold, fold if second is first else second[start:stop]))
        return np.stack(result)

    def whole_squares(
        self, vectors: Float[np.ndarray, "g d"], shares: Float[np.ndarray, " g"]
    ) -> Float[np.ndarray, " *slopes"]:
        """For Σ_g share_g ‖v_g‖², without folds."""
        # K Z = Σ_g share_g v_g v_gᵀ Z and tr K = Σ_g share_g ‖v_g‖².
        trace = float(shares @ np.einsum("gd,gd->g", vectors, vectors))
        form = vectors.T @ (shares[:, None] * (vectors @ self.directions))
        return form - trace / self.dim * self.directions

    def whole_cross(
        self, first: Float[np.ndarray, "m d"], second: Float[np.ndarray, "m e"]
    ) -> Float[np.ndarray, " *slopes"]:
        """For the mean of ⟨g_m, h_m'⟩ over ordered pairs of different rows, without folds."""
        # K = Σ_{m≠m'} (g_m h_m'ᵀ + h_m' g_mᵀ)/(2M(M−1)), and tr K = Σ_{m≠m'} ⟨g_m, h_m'⟩/(M(M−1)).
        m = len(first)
        pairs = 2.0 * m * max(m - 1.0, 1.0)
        forward = self._without_diagonal(first, second)
        backward = forward if second is first else self._without_diagonal(second, first)
        trace = 2.0 * float(np.vdot(first.sum(axis=0), second.sum(axis=0)) - np.vdot(first, second))
        return (forward + backward - trace / self.dim * self.directions) / pairs

    def _without_diagonal(self, first: Float[np.ndarray, "m d"], second: Float[np.ndarray, "m d"]) -> np.ndarray:
        """Return Σ_{m≠m'} g_m h_m'ᵀ Z = (Σ_m g_m)(Σ_m h_mᵀ Z) − Σ_m g_m h_mᵀ Z."""
        along = second @ self.directions
        return np.outer(first.sum(axis=0), along.sum(axis=0)) - first.T @ along
