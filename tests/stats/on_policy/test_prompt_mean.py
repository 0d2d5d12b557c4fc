"""The mean over prompts of completions' means."""

import numpy as np
import pytest

from gradstats.stats.token_profiles import prompt_mean


def test_prompts_count_equally_whatever_their_completions():
    statistic = prompt_mean(np.array([1.0, 3.0, 8.0]), np.array([0, 0, 1]))
    assert statistic.value == pytest.approx(5.0)
    np.testing.assert_allclose(statistic.replicates, [8.0, 2.0])


def test_probes_add_their_shared_error():
    rng = np.random.default_rng(0)
    along = rng.normal(size=(1, 8)) ** 2 * np.ones((40, 1))  # all that varies is the probe
    statistic = prompt_mean(along.mean(axis=1), np.repeat(np.arange(20), 2), along)
    assert statistic.estimate().stderr == pytest.approx(along[0].std(ddof=1) / np.sqrt(8))
    assert prompt_mean(along.mean(axis=1), np.repeat(np.arange(20), 2)).estimate().stderr == pytest.approx(0.0)
