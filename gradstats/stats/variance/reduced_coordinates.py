"""The same inner products in fewer coordinates, where completions are fewer than dimensions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import linalg

from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchProbes


def in_fewer_coordinates(scores: Scores, probes: SketchProbes | None) -> tuple[Scores, SketchProbes | None]:
    r"""Turns n scores of dimension D > n, and the probes' directions, into the space they span.

    With \([S^T \; Z] = Q R\), Q orthonormal, the columns of R have the inner products of scores S and directions Z:
    everything a comparison computes stays as it is, at n coordinates instead of D. Scores of tokens stay in their own,
    and so do probed ones, whose heavy tokens are too many to turn.
    """
    values = scores.sequence
    directions = np.zeros((values.shape[1], 0)) if probes is None else probes.directions
    n = len(values)
    # Turning costs n²D once and saves nD a use: nothing is won near n = D.
    if scores.tokens is not None or scores.probed is not None or 2 * (n + directions.shape[1]) > values.shape[1]:
        return scores, probes
    columns = np.concatenate([values.T, directions], axis=1)
    triangle = np.asarray(linalg.qr(columns, mode="r", overwrite_a=True, check_finite=False)[0])[: columns.shape[1]]
    turned = None if probes is None else probes.turned(np.ascontiguousarray(triangle[:, n:]))
    return replace(scores, sequence=np.ascontiguousarray(triangle[:, :n].T)), turned
