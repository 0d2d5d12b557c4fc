"""What a comparison starts from: completions in sample order, and their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from gradstats.estimators import Batch


def comparison_inputs(
    measured_or_batch: Any, scores: ArrayLike | None, scores_are_sketches: bool | None
) -> tuple[Batch, np.ndarray, np.ndarray, bool]:
    """The batch, its sample order, the scores, and whether they are sketches."""
    if isinstance(measured_or_batch, Batch):
        if scores is None:
            raise TypeError("a Batch has no gradients: pass scores=(N, D) of its completions, or a measurement")
        batch = measured_or_batch
        return batch, np.arange(len(batch.rewards)), np.asarray(scores), bool(scores_are_sketches)
    batch = Batch.from_measurement(measured_or_batch)
    order = np.argsort(np.asarray(measured_or_batch.rollouts.sample_id), kind="stable")
    if scores is not None:
        return batch, order, np.asarray(scores), bool(scores_are_sketches)
    if measured_or_batch.sketches is not None:
        sketched = True if scores_are_sketches is None else scores_are_sketches
        return batch, order, np.asarray(measured_or_batch.sketches), sketched
    return batch, order, _coordinates(np.asarray(measured_or_batch.gram(), dtype=np.float64)), False


def _coordinates(gram: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Vectors whose inner products are the Gram matrix."""
    values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(np.maximum(values, 0.0))
