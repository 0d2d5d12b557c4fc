"""The error that probes of token scores add."""

import numpy as np
import pytest

from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.moments import Groups, cross_signal, prompt_moments
from gradstats.stats.variance.sketch_error import TokenProbeError


@pytest.mark.parametrize("n_probes", [6, 40])
def test_standard_errors_with_probes_are_those_of_repetition(n_probes):
    """Over fresh prompts and fresh probes, estimates scatter by their standard errors; prompts alone explain less."""
    n_prompts, dim, repeats = 60, 40, 200
    direction = np.random.default_rng(9).normal(size=dim) / np.sqrt(dim)
    groups = Groups(np.arange(n_prompts), np.arange(n_prompts), np.arange(n_prompts), n_leftover=0)
    found = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        gradients = direction + 0.5 * rng.normal(size=(n_prompts, dim)) / np.sqrt(dim)
        known = 0.3 * gradients
        along = gradients @ rng.normal(size=(dim, n_probes)) / np.sqrt(n_probes)
        features = np.concatenate([known, along, 0.3 * along], axis=1)
        signs = np.repeat([1.0, 1.0, -1.0], [dim, n_probes, n_probes])
        probes = TokenProbeError(dim, n_prompts, rng, n_probes, sketched=False)
        pair = [
            prompt_moments(features, weights, groups, None, probes, signs=signs)
            for weights in (np.ones(n_prompts), rng.normal(1, 0.2, n_prompts))
        ]
        cross = cross_signal(*pair, probes)
        stats = (pair[0].second_moment, pair[0].signal, cross)
        found.append(
            [(s.value, s.estimate().stderr, Statistic(s.value, s.replicates).estimate().stderr) for s in stats]
        )
    values, errors, jackknife = np.moveaxis(np.array(found), 2, 0)
    ratio = np.sqrt((errors**2).mean(axis=0)) / values.std(axis=0)
    np.testing.assert_array_less(0.85, ratio)
    np.testing.assert_array_less(ratio, 1.25)
    np.testing.assert_array_less(jackknife.mean(axis=0), 0.8 * values.std(axis=0))
