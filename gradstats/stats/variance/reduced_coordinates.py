"""The same inner products in fewer coordinates, where completions are fewer than dimensions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import linalg

from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchError


def in_fewer_coordinates(scores: Scores, sketch_error: SketchError | None) -> tuple[Scores, SketchError | None]:
    r"""Rotate n scores of dimension D > n, and the random directions of the sketch's error, into the space they span.

    With :math:`[S^T \; Z] = Q R`, Q orthonormal, the columns of R have the inner products of scores S and directions Z:
    everything a comparison computes stays as it is, at n coordinates instead of D. Scores of tokens stay as they are,
    and so do probed ones, whose heavy tokens are too many to rotate.
    """
    values = scores.sequence
    directions = np.zeros((values.shape[1], 0)) if sketch_error is None else sketch_error.directions
    n = len(values)
    # Rotating costs n²D once and saves nD a use: there is no gain near n = D.
    if scores.tokens is not None or scores.probed is not None or 2 * (n + directions.shape[1]) > values.shape[1]:
        return scores, sketch_error
    columns = np.concatenate([values.T, directions], axis=1)
    triangle = np.asarray(linalg.qr(columns, mode="r", overwrite_a=True, check_finite=False)[0])[: columns.shape[1]]
    rotated = None if sketch_error is None else sketch_error.with_directions(np.ascontiguousarray(triangle[:, n:]))
    return replace(scores, sequence=np.ascontiguousarray(triangle[:, :n].T)), rotated
