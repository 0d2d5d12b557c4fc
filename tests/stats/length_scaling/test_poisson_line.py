"""The scaling of the mean squared norm."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law

from gradstats.stats import fit_length_scaling


def test_ppml_equals_statsmodels():
    lengths, sq_norms, groups = noisy_power_law(40, 3)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="ppml")
    model = sm.GLM(sq_norms, sm.add_constant(np.log(lengths)), family=sm.families.Poisson()).fit(tol=1e-13)
    assert fit.slope == pytest.approx(model.params[1], rel=1e-6)
    assert fit.intercept == pytest.approx(model.params[0], rel=1e-6)
    assert fit.interval == "cluster"
    clustered = sm.GLM(sq_norms, sm.add_constant(np.log(lengths)), family=sm.families.Poisson()).fit(
        cov_type="cluster", cov_kwds={"groups": groups}
    )
    assert fit.slope_stderr == pytest.approx(clustered.bse[1], rel=0.15)


def test_ppml_describes_the_mean_where_logs_do_not():
    """Noise that grows with length moves E[log] and E apart: only ppml follows E[‖S‖² | T]."""
    rng = np.random.default_rng(0)
    lengths = np.ceil(np.exp(rng.uniform(2, 6, 20000)))
    sd = 0.3 * np.log(lengths)
    sq_norms = lengths**1.6 * np.exp(sd * rng.normal(size=20000) - sd**2 / 2)
    keywords = {"lengths": lengths, "sq_norms": sq_norms}
    assert fit_length_scaling(**keywords, method="ppml").alpha == pytest.approx(0.8, abs=0.08)
    assert fit_length_scaling(**keywords).alpha < 0.7
