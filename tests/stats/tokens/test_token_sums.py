"""What token-level quantities share: energies, probes, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from probed_policies import drawn_tokens

from gradstats.stats import (
    alpha_report,
    check_on_policy,
    concentration,
    drift_along,
    fit_energy_scaling,
    local_slope,
    token_correlation,
)
from gradstats.stats.variance.sketch_error import probed_statistic


def test_energy_ratio_and_alpha_know_the_energies():
    measured, _, scores = drawn_tokens(n_probes=64, n_heavy=1, n_groups=150)
    totals = (scores**2).sum(axis=(1, 2))
    check = check_on_policy(measured)
    assert check.energy_ratio.value == pytest.approx(np.mean(measured.sq_norms) / totals.mean(), rel=0.05)
    low, high = check.energy_ratio.confidence_interval(0.999)
    assert low < 1.0 < high
    np.testing.assert_allclose(fit_energy_scaling(measured).sq_norms, totals, rtol=0.6)
    assert any("summed token energies" in sentence for sentence in alpha_report(measured).sentences())
    without = replace(measured, token_projections=None)
    assert alpha_report(without).energy_fit is None
    assert np.isnan(check_on_policy(without).energy_ratio.value)


def test_what_probes_share_enters_the_standard_error():
    """A mean over many prompts that share the probes is no more accurate than the probes."""
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        per_probe = (1 + 0.2 * rng.normal(size=(50, 1))) * rng.normal(size=9) ** 2
        found.append((per_probe.mean(), probed_statistic(per_probe.mean(axis=1), per_probe).estimate().stderr))
    values, errors = np.array(found).T
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.2)


def test_what_is_refused():
    measured = drawn_tokens()[0]
    for function in (token_correlation, local_slope, concentration, drift_along):
        with pytest.raises(ValueError, match="no probes of token scores: measure with token_probes=…"):
            function(replace(measured, token_projections=None))
    with pytest.raises(ValueError, match="at least 3 prompts, got 2: measure more"):
        token_correlation(measured.select(slice(0, 6)))
