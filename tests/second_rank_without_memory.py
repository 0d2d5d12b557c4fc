"""An estimator whose module lets memory run out on the second of several ranks, where it measures several sequences."""

import os

import numpy as np

if os.environ.get("RANK") == "1":
    from gradstats.gradients.session import MeasuringSession

    own = MeasuringSession._run

    def exhausted(self, chunk, *rest, **options):
        if len(chunk.rows) > 1:
            raise MemoryError
        return own(self, chunk, *rest, **options)

    MeasuringSession._run = exhausted


def weight(batch):
    return np.asarray(batch.rewards)
