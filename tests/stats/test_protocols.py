"""A measurement has what each statistic needs of one."""

import numpy as np
import pytest
from probed_policies import enumerated, probed

from gradstats.stats import protocols
from gradstats.stats.jackknife import mean_statistic
from gradstats.stats.protocols import effective_sample_size, effective_sample_size_of_means


def test_by_hand():
    assert effective_sample_size(np.full(7, 3.0)) == pytest.approx(7.0)
    assert effective_sample_size(np.array([1.0, 2.0, 3.0])) == pytest.approx(36.0 / 14.0)
    assert effective_sample_size(np.array([5.0, 0.0, 0.0])) == pytest.approx(1.0)


def test_weights_of_zero_have_none():
    assert np.isnan(effective_sample_size(np.zeros(3)))


def test_from_means_it_is_the_same_number_with_replicates():
    weights = np.random.default_rng(0).random(20)
    statistic = effective_sample_size_of_means(mean_statistic(weights), mean_statistic(weights**2), 20)
    assert statistic.value == pytest.approx(effective_sample_size(weights))
    without_first = effective_sample_size(weights[1:]) * 20 / 19
    assert statistic.replicates[0] == pytest.approx(without_first)


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
    ],
)
def test_a_measurement_satisfies_the_protocol(name):
    batch, _, scores = enumerated().sample(3, 2, 0)
    measurement = probed(batch, scores, 4, 1, np.random.default_rng(0))
    assert isinstance(measurement, getattr(protocols, name))
    assert isinstance(measurement.rollouts, protocols.Completions)
    assert not isinstance(batch, getattr(protocols, name))
