"""The line of the median pairwise slope."""

import numpy as np
import pytest
from power_laws import noisy_power_law
from scipy import stats

from gradstats.stats import fit_length_scaling


def test_theil_sen_equals_scipy():
    lengths, sq_norms, groups = noisy_power_law(40, 1)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="theil_sen")
    oracle = stats.theilslopes(np.log(sq_norms), np.log(lengths), alpha=0.9)
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    assert fit.interval == "cluster"
    expected = (oracle.low_slope / 2, oracle.high_slope / 2)
    np.testing.assert_allclose(fit.confidence_interval(0.9, "rank"), expected, rtol=1e-10)
    np.testing.assert_allclose(np.diff(fit.confidence_interval(0.9, "cluster")), np.diff(expected), rtol=0.35)
    sq_norms[3] *= 1e9
    assert fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="theil_sen").alpha == pytest.approx(
        fit.alpha, abs=0.1
    )
    assert fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups // 2, method="theil_sen").interval == (
        "cluster"
    )
