"""A measurement has what each statistic needs of one."""

import numpy as np
import pytest
from probed_policies import enumerated, probed

from gradstats.stats import measured as protocols


@pytest.mark.parametrize(
    "name",
    [
        "MeasuredRollouts",
        "MeasuredNorms",
        "MeasuredBlocks",
        "MeasuredEntropies",
        "MeasuredPolicy",
        "MeasuredSampler",
        "MeasuredGradients",
        "MeasuredTokens",
    ],
)
def test_a_measurement_satisfies_the_protocol(name):
    batch, _, scores = enumerated().sample(3, 2, 0)
    measurement = probed(batch, scores, 4, 1, np.random.default_rng(0))
    assert isinstance(measurement, getattr(protocols, name))
    assert isinstance(measurement.rollouts, protocols.Completions)
    assert not isinstance(batch, getattr(protocols, name))
