"""The scaling of the mean squared norm, by gamma and by Poisson pseudo-likelihood."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law

from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.regression import gamma_line, poisson_line

FAMILIES = {"gamma": sm.families.Gamma(sm.families.links.Log()), "ppml": sm.families.Poisson()}


@pytest.mark.parametrize("method", FAMILIES)
def test_the_mean_line_equals_statsmodels(method):
    lengths, sq_norms, groups = noisy_power_law(40, 3)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
    model = sm.GLM(sq_norms, sm.add_constant(np.log(lengths)), family=FAMILIES[method]).fit(tol=1e-13)
    assert fit.slope == pytest.approx(model.params[1], rel=1e-6)
    assert fit.intercept == pytest.approx(model.params[0], rel=1e-6)
    assert fit.interval == "cluster"
    weight = model.mu ** (-0.5 if method == "ppml" else -1.0)  # the working regression, at its solution
    design = sm.add_constant(np.log(lengths)) * (model.mu * weight)[:, None]
    clustered = sm.OLS((sq_norms - model.mu) * weight, design).fit(cov_type="cluster", cov_kwds={"groups": groups})
    assert fit.slope_stderr == pytest.approx(clustered.bse[1], rel=0.15)


def test_the_gamma_scores_vanish():
    """Two lengths: the fitted means are the sample means, so that α is log(7/2)/(2·log 4) exactly."""
    line = gamma_line(np.log([10.0, 10.0, 40.0, 40.0]), np.log([1.0, 3.0, 4.0, 10.0]), np.arange(4))
    assert line.slope == pytest.approx(np.log(3.5) / np.log(4.0), rel=1e-9)
    assert line.intercept + line.slope * np.log(10.0) == pytest.approx(np.log(2.0), rel=1e-9)
    poisson = poisson_line(np.log([10.0, 10.0, 40.0, 40.0]), np.log([1.0, 3.0, 4.0, 10.0]), np.arange(4))
    assert poisson.slope == pytest.approx(line.slope, rel=1e-9)


def test_gamma_errors_are_those_of_relative_residuals():
    """CR2 of single rows is HC2: here of ‖S‖²/μ − 1 on (1, log T)."""
    lengths, sq_norms, _ = noisy_power_law(60, 1, heteroscedastic=True)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="gamma")
    mean = np.exp(fit.intercept + fit.slope * np.log(lengths))
    oracle = sm.OLS(sq_norms / mean - 1.0, sm.add_constant(np.log(lengths))).fit(cov_type="HC2")
    np.testing.assert_allclose(oracle.params, 0.0, atol=1e-9)
    assert fit.slope_stderr == pytest.approx(oracle.bse[1], rel=1e-8)


@pytest.mark.parametrize("scale", [1e-280, 1.0, 1e280])
@pytest.mark.parametrize("method", FAMILIES)
def test_the_unit_of_the_norms_does_not_matter(method, scale):
    lengths, sq_norms, groups = noisy_power_law(40, 3)
    fit = fit_length_scaling(lengths=lengths, sq_norms=scale * sq_norms, groups=groups, method=method)
    reference = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
    assert fit.alpha == pytest.approx(reference.alpha, rel=1e-9)
    assert fit.alpha_stderr == pytest.approx(reference.alpha_stderr, rel=1e-9)


def test_gamma_has_less_error_than_poisson():
    """With log-normal noise of standard deviation 0.9 about the mean, in 60 data sets of 100."""
    errors = {"gamma": [], "ppml": []}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = rng.normal(4.5, 0.7, 100)
        keywords = {"lengths": np.exp(x), "sq_norms": np.exp(1.6 * x + rng.normal(-0.405, 0.9, 100))}
        for method, found in errors.items():
            found.append(fit_length_scaling(**keywords, method=method).alpha - 0.8)
    assert np.std(errors["gamma"]) < 0.7 * np.std(errors["ppml"])


def test_norms_without_an_answer_are_refused():
    lengths, sq_norms = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1e-300, 1e300, 1e-300, 1e300])
    with pytest.raises(ValueError, match="did not converge: look for squared norms that are far apart"):
        fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="ppml")


def test_ppml_describes_the_mean_where_logs_do_not():
    """Noise that grows with length moves E[log] and E apart: only ppml and gamma follow E[‖S‖² | T]."""
    rng = np.random.default_rng(0)
    lengths = np.ceil(np.exp(rng.uniform(2, 6, 20000)))
    sd = 0.3 * np.log(lengths)
    sq_norms = lengths**1.6 * np.exp(sd * rng.normal(size=20000) - sd**2 / 2)
    keywords = {"lengths": lengths, "sq_norms": sq_norms}
    assert fit_length_scaling(**keywords, method="ppml").alpha == pytest.approx(0.8, abs=0.08)
    assert fit_length_scaling(**keywords, method="gamma").alpha == pytest.approx(0.8, abs=0.04)
    assert fit_length_scaling(**keywords).alpha < 0.7
