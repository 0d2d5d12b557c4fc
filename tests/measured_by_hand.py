"""A measurement of random numbers, without a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
from conftest import ragged_rollouts

from gradstats.measurement import Measurement, WeightedGradients


def measured_by_hand(n=5, seed=0, tokens=True) -> Measurement:
    """Random numbers in every field."""
    rng = np.random.default_rng(seed)
    rollouts = ragged_rollouts(n, seed)
    counts = [len(row) for row in rollouts.frame["completion_tokens"]]

    def ragged(*shape):
        return [rng.normal(size=(count, *shape)).astype(np.float32) for count in counts]

    def gradients():
        norms = pd.DataFrame(rng.uniform(1, 2, (n, 2)), columns=["layer 0", "layer 1"])
        return norms, rng.normal(size=(n, 8)).astype(np.float32)

    positions = [np.arange(min(2, count)) for count in counts]
    scores = {
        "token_projections": ragged(3),
        "heavy_positions": positions,
        "heavy_sq_norms": [rng.uniform(1, 2, len(rows)) for rows in positions],
        "heavy_sketches": [rng.normal(size=(len(rows), 8)).astype(np.float32) for rows in positions],
    }
    return Measurement(
        rollouts,
        *gradients(),
        *(ragged() for _ in range(4)),
        metadata={"sketch_dim": 8, "engine": "by hand"},
        weighted={"half": WeightedGradients(*gradients())},
        **(scores if tokens else {}),
    )
