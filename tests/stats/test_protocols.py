"""A measurement has what each statistic needs of one."""

import numpy as np
import pytest
from probed_policies import enumerated, probed

from gradstats.stats import protocols
from gradstats.stats.jackknife import mean_statistic
from gradstats.stats.protocols import effective_sample_size, effective_sample_size_of_means


@pytest.mark.parametrize(
    ("weights", "size"),
    [(np.full(7, 3.0), 7.0), ([1.0, 2.0, 3.0], 36.0 / 14.0), ([5.0, 0.0, 0.0], 1.0), (np.zeros(3), np.nan)],
)
def test_by_hand(weights, size):
    assert effective_sample_size(np.array(weights)) == pytest.approx(size, nan_ok=True)


def test_from_means_it_is_the_same_number_with_replicates():
    weights = np.random.default_rng(0).random(20)
    statistic = effective_sample_size_of_means(mean_statistic(weights), mean_statistic(weights**2), 20)
    assert statistic.value == pytest.approx(effective_sample_size(weights))
    without_first = effective_sample_size(weights[1:]) * 20 / 19
    assert statistic.replicates[0] == pytest.approx(without_first)


@pytest.mark.parametrize("name", ["Rollouts", "Norms", "Blocks", "Entropies", "Policy", "Sampler", "Gradients"])
def test_a_measurement_satisfies_the_protocol(name):
    protocol = getattr(protocols, f"Measured{name}")
    batch, _, scores = enumerated().sample(3, 2, 0)
    measurement = probed(batch, scores, 4, 1, np.random.default_rng(0))
    assert isinstance(measurement, protocol)
    assert isinstance(measurement.rollouts, protocols.Completions)
    assert not isinstance(batch, protocol)
