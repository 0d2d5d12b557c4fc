"""The same inner products in fewer coordinates, where completions are fewer than dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from jaxtyping import Float
from scipy import linalg
from scipy.linalg import lapack

from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import N_DIRECTIONS, SketchError


@dataclass(frozen=True)
class SpannedCoordinates:
    r"""Coordinates of n scores of dimension D in the space they span: :math:`S^T = Q R`, Q orthonormal.

    Attributes:
        coordinates: (n, n) the rows of :math:`R^T`, which have the inner products of the scores.
        reflectors: (D, n) Householder reflectors, whose product is Q.
        factors: (n,) their factors.
    """

    coordinates: Float[np.ndarray, "n n"]
    reflectors: Float[np.ndarray, "d n"]
    factors: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "n d"]) -> SpannedCoordinates:
        """Factor scores of n ≤ D completions, whose array may be overwritten."""
        # LAPACK's own form: Q is never built, and R is as large as the completions are many.
        # SciPy's types do not follow ``mode``: "raw" returns (reflectors, factors) and the triangle.
        raw = linalg.qr(values.T, mode="raw", overwrite_a=True, check_finite=False)
        (reflectors, factors), triangle = cast("tuple[tuple[np.ndarray, np.ndarray], np.ndarray]", raw)
        return cls(np.ascontiguousarray(triangle[: len(values)].T), reflectors, factors)

    def turned(self, directions: Float[np.ndarray, "d r"]) -> Float[np.ndarray, "e r"]:
        """Return directions in n + r coordinates: those along the scores, then what is left of them outside."""
        n = len(self.coordinates)
        (multiply,) = lapack.get_lapack_funcs(("ormqr",), (self.reflectors,))
        work = int(multiply("L", "T", self.reflectors, self.factors, directions, -1)[1][0])
        along = multiply("L", "T", self.reflectors, self.factors, directions, work)[0]
        outside = linalg.qr(along[n:], mode="r", overwrite_a=True, check_finite=False)[0]
        return np.concatenate([along[:n], outside[: directions.shape[1]]])


def can_be_reduced(n: int, dim: int) -> bool:
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
    if others or not can_be_reduced(n + n_directions, dim):
        return scores, sketch_error
    spanned = SpannedCoordinates.of(scores.sequence.copy())
    return with_directions(replace(scores, sequence=spanned.coordinates), spanned, sketch_error)


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
    if rotation is None or not can_be_reduced(len(scores) + N_DIRECTIONS, scores.shape[1]):
        return None
    if rotation.scores is None:
        rotation.scores = scores
        values = np.array(scores, dtype=np.float64)
        if np.isfinite(values.sum(axis=1)).all():  # otherwise what prepares the scores says which are not
            rotation.spanned = SpannedCoordinates.of(values)
    return rotation.spanned if rotation.scores is scores else None
