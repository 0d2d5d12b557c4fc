"""The curvature of the line."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import curved_power_law

from gradstats.stats import curvature_test, fit_length_scaling


def test_curvature_equals_the_quadratic_regression():
    lengths, sq_norms, _ = curved_power_law()
    x = np.log(lengths) - np.log(lengths).mean()
    oracle = sm.OLS(np.log(sq_norms), np.column_stack([np.ones_like(x), x, x**2])).fit(cov_type="HC2")
    test = curvature_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms))
    assert test.curvature == pytest.approx(oracle.params[2], rel=1e-9)
    assert test.stderr == pytest.approx(oracle.bse[2], rel=1e-9)
    low, high = test.confidence_interval()
    assert low < test.curvature < high
    assert tuple(test.to_frame()[["curvature_low", "curvature_high"]].iloc[0]) == (low, high)


def test_a_bend_is_found_and_a_power_law_is_not_one():
    found = []
    for bend in (0.0, 0.8):
        lengths, sq_norms, groups = curved_power_law(bend)
        found.append(curvature_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)))
    assert found[0].pvalue > 0.01
    assert found[1].pvalue < 1e-4


def test_curvature_needs_lengths_and_prompts():
    with pytest.raises(ValueError, match="at least 4 distinct lengths and 3 prompts, got 3 and 3"):
        curvature_test(fit_length_scaling(lengths=[1, 2, 3], sq_norms=[1, 2, 3]))
