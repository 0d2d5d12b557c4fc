"""The error of quadratic forms in sketches and along probes, and the same inner products in fewer coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import scipy
from jaxtyping import Float, Int

from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.scores import Scores, probe_blocks

_N_DIRECTIONS = 16
_N_FOLDS = 4


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
    """

    def __init__(self, dim: int, n_prompts: int, rng: np.random.Generator):
        self.dim = dim
        if dim <= _N_DIRECTIONS:
            # An orthogonal basis gives inner products of matrices exactly.
            self.directions = np.eye(dim) * np.sqrt(2.0 / dim)
        else:
            signs = rng.choice(np.array([-1.0, 1.0]), size=(dim, _N_DIRECTIONS))
            self.directions = signs * np.sqrt(2.0 / (dim * _N_DIRECTIONS))
        n_folds = max(1, min(_N_FOLDS, n_prompts // 2))
        # Folds are runs of prompt numbers: fold f begins at bounds[f].
        self.bounds = np.linspace(0, n_prompts, n_folds + 1).round().astype(int)

    def with_directions(self, directions: Float[np.ndarray, "c r"]) -> SketchError:
        """Return the same in other coordinates, in which the vectors are then to be given as well."""
        other = copy(self)
        other.directions = directions
        return other

    def squares(
        self, vectors: Float[np.ndarray, "g d"], shares: Float[np.ndarray, " g"], prompts: Int[np.ndarray, " g"]
    ) -> Float[np.ndarray, "f *slopes"]:
        """For Σ_g share_g ‖v_g‖² of sketched vectors, each of a prompt, in the order of the prompts."""
        result = []
        for start, stop in pairwise(self.bounds):
            # An estimate of Σ_g share_g ‖v_g‖² from one fold of M_f prompts: M/M_f times the sum over it.
            inside = slice(*np.searchsorted(prompts, [start, stop]))
            inverse_share = self.bounds[-1] / (stop - start)
            result.append(self.whole_squares(vectors[inside], inverse_share * shares[inside]))
        return np.stack(result)

    def cross(
        self, first: Float[np.ndarray, "m d"], second: Float[np.ndarray, "m e"]
    ) -> Float[np.ndarray, "f *slopes"]:
        """For the mean of ⟨g_m, h_m'⟩ over ordered pairs of different prompts."""
        result = []
        for start, stop in pairwise(self.bounds):
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


class TokenProbeError(SketchError):
    r"""Estimates the error of quadratic forms of the features that
    :class:`gradstats.stats.variance.scores.ProbedTokens` makes of token scores.

    Along probe k a quadratic form of gradients takes the value :math:`q_k`, and what is estimated is the mean over K
    probes. The probes are shared by all prompts, so that a jackknife over prompts does not see the error of the mean
    in the *expectation* over prompts: its variance is :math:`\frac{1}{K}\mathrm{Var}_k(E\,q_k)`, estimated from the
    covariance over k of the :math:`q_k` of disjoint folds of prompts. This holds for probes of any distribution. The
    sketched term of the form, ⟨Z_a, Z_b⟩, is estimated as in :class:`SketchError`.

    Where weights were themselves estimated from the probes, the effect of each probe through the weights is added to
    :math:`q_k`, as far as the features hold it (:meth:`gradstats.stats.variance.scores.ProbedTokens.influence`).

    Each method returns an array (folds, directions) of linear slopes: first those of the sketch, then of blocks of
    probes, each the sum of its :math:`(q_k - \bar q)/\sqrt{K(K-1)}`. Without ``sketched`` the scores are exact
    coordinates of the gradients, and probes are the only error.
    """

    def __init__(self, dim: int, n_prompts: int, rng: np.random.Generator, n_probes: int, sketched: bool):
        super().__init__(dim, n_prompts, rng)
        if not sketched:
            self.directions = np.zeros((dim, 0))
        self.n_probes = n_probes
        sizes = [len(block) for blocks in probe_blocks(n_probes) for block in blocks]
        self._block = np.repeat(np.arange(len(sizes)), sizes)

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
    """Average over prompts a quantity that is itself a mean over probes, with the error that all prompts share."""
    slopes = None
    if per_probe is not None and per_probe.shape[1] > 1:
        n_probes = per_probe.shape[1]
        centred = per_probe - per_probe.mean(axis=1, keepdims=True)
        shuffled = np.random.default_rng(0).permutation(len(values))
        folds = np.array_split(shuffled, max(1, min(_N_FOLDS, len(values) // 2)))
        slopes = np.stack([centred[fold].mean(axis=0) for fold in folds]) / np.sqrt(n_probes * (n_probes - 1.0))
    return mean_statistic(values, slopes)


@dataclass(frozen=True)
class SpannedCoordinates:
    r"""Coordinates of n scores of dimension D in the space they span: :math:`S^T = Q R`, Q orthonormal."""

    coordinates: Float[np.ndarray, "n n"]  # the rows of Rᵀ, which have the inner products of the scores
    reflectors: Float[np.ndarray, "d n"]  # of Householder, whose product is Q
    factors: Float[np.ndarray, " n"]  # of the reflectors

    @classmethod
    def of(cls, values: Float[np.ndarray, "n d"]) -> SpannedCoordinates:
        """Factor scores of n ≤ D completions, whose array may be overwritten."""
        # LAPACK's own form: Q is never built, and R is as large as the completions are many.
        # SciPy's types do not follow ``mode``: "raw" returns (reflectors, factors) and the triangle.
        raw = scipy.linalg.qr(values.T, mode="raw", overwrite_a=True, check_finite=False)
        (reflectors, factors), triangle = cast("tuple[tuple[np.ndarray, np.ndarray], np.ndarray]", raw)
        return cls(np.ascontiguousarray(triangle[: len(values)].T), reflectors, factors)

    def turned(self, directions: Float[np.ndarray, "d r"]) -> Float[np.ndarray, "e r"]:
        """Return directions in n + r coordinates: those along the scores, then what is left of them outside."""
        n = len(self.coordinates)
        (multiply,) = scipy.linalg.lapack.get_lapack_funcs(("ormqr",), (self.reflectors,))
        work = int(multiply("L", "T", self.reflectors, self.factors, directions, -1)[1][0])
        along = multiply("L", "T", self.reflectors, self.factors, directions, work)[0]
        outside = scipy.linalg.qr(along[n:], mode="r", overwrite_a=True, check_finite=False)[0]
        return np.concatenate([along[:n], outside[: directions.shape[1]]])


def with_directions(
    scores: Scores, spanned: SpannedCoordinates, sketch_error: SketchError | None
) -> tuple[Scores, SketchError | None]:
    """Return scores that are in few coordinates already, with those that the directions of the sketch's error add."""
    if sketch_error is None:
        return scores, None
    turned = spanned.turned(sketch_error.directions)
    added = np.zeros((len(scores.sequence), len(turned) - scores.sequence.shape[1]))
    in_both = np.concatenate([scores.sequence, added], axis=1)
    return replace(scores, sequence=in_both), sketch_error.with_directions(turned)


def _pays(n: int, dim: int) -> bool:
    """Whether rotating n vectors pays: it costs n²D once and saves nD a use, so that there is no gain near n = D."""
    return 2 * n <= dim


def in_fewer_coordinates(scores: Scores, sketch_error: SketchError | None) -> tuple[Scores, SketchError | None]:
    r"""Rotate n scores of dimension D > n, and the random directions of the sketch's error, into the space they span.

    With :math:`[S^T \; Z] = Q R`, Q orthonormal, the columns of R have the inner products of scores S and directions Z:
    everything a comparison computes stays as it is, at n coordinates instead of D. Scores of tokens stay as they are,
    and so do probed ones, whose heavy tokens are too many to rotate, and those with further weightings.
    """
    n, dim = scores.sequence.shape
    n_directions = 0 if sketch_error is None else sketch_error.directions.shape[1]
    others = scores.tokens is not None or scores.probed is not None or scores.combined is not None
    if others or not _pays(n + n_directions, dim):
        return scores, sketch_error
    spanned = SpannedCoordinates.of(scores.sequence.copy())
    return with_directions(replace(scores, sequence=spanned.coordinates), spanned, sketch_error)


@dataclass
class _Rotation:
    """The scores that are rotated only once, and their coordinates, when these have been asked for."""

    scores: np.ndarray | None = None
    spanned: SpannedCoordinates | None = None


_rotation: ContextVar[_Rotation | None] = ContextVar("rotation", default=None)


@contextmanager
def rotated_once() -> Iterator[None]:
    """Rotate the scores of one measurement only once for all comparisons within, which must leave them as they are.

    The coordinates are forgotten at the end.
    """
    token = _rotation.set(_rotation.get() or _Rotation())
    try:
        yield
    finally:
        _rotation.reset(token)


def shared_coordinates(scores: Float[np.ndarray, "n d"]) -> SpannedCoordinates | None:
    """Return the coordinates of scores; None outside :func:`rotated_once`, and where they are not to be rotated.

    The first scores that are asked for are those that are rotated once; others, which are another array, are not.
    """
    rotation = _rotation.get()
    if rotation is None or not _pays(len(scores) + _N_DIRECTIONS, scores.shape[1]):
        return None
    if rotation.scores is None:
        rotation.scores = scores
        values = np.array(scores, dtype=np.float64)
        if np.isfinite(values.sum(axis=1)).all():  # otherwise what prepares the scores says which are not
            rotation.spanned = SpannedCoordinates.of(values)
    return rotation.spanned if rotation.scores is scores else None
