"""Generalised least squares with a random effect of each prompt."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law
from scipy.linalg import block_diag, sqrtm

from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.regression import variance_ratio


def uneven():
    lengths, sq_norms, groups = noisy_power_law(25, 5)
    kept = np.random.default_rng(1).random(125) < 0.7
    groups = np.unique(groups[kept], return_inverse=True)[1]
    return lengths[kept], sq_norms[kept], groups


def test_gls_is_the_mixed_model_of_statsmodels():
    lengths, sq_norms, groups = uneven()
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="gls")
    design = sm.add_constant(np.log(lengths))
    oracle = sm.MixedLM(np.log(sq_norms), design, groups).fit(reml=True, gtol=1e-9)
    assert fit.slope == pytest.approx(oracle.params[1], rel=1e-6)
    assert fit.intercept == pytest.approx(oracle.params[0], rel=1e-6)
    ratio = variance_ratio(np.log(lengths), np.log(sq_norms), groups)
    assert ratio == pytest.approx(oracle.cov_re[0, 0] / oracle.scale, rel=1e-4)


def test_its_cr2_is_that_of_dense_matrices():
    """Bell and McCaffrey's adjustment after whitening by the symmetric root of V⁻¹, from n × n matrices."""
    lengths, sq_norms, groups = uneven()
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="gls")
    ratio = variance_ratio(np.log(lengths), np.log(sq_norms), groups)
    blocks = [np.eye(size) + ratio for size in np.bincount(groups)]
    covariance = block_diag(*blocks)
    order = np.argsort(groups, kind="stable")
    design, y = sm.add_constant(np.log(lengths))[order], np.log(sq_norms)[order]
    model = sm.GLS(y, design, sigma=covariance).fit()
    assert 2 * fit.standard_error("t") == pytest.approx(model.bse[1], rel=1e-7)
    whiten = np.real(sqrtm(np.linalg.inv(covariance)))
    design, y = whiten @ design, whiten @ y
    bread = np.linalg.inv(design.T @ design)
    slope = bread @ design.T @ y
    assert fit.slope == pytest.approx(slope[1], rel=1e-8)
    residuals = y - design @ slope
    variance = 0.0
    for prompt in np.unique(groups):
        rows = groups[order] == prompt
        inner = np.eye(rows.sum()) - design[rows] @ bread @ design[rows].T
        variance += (bread[1] @ design[rows].T @ np.linalg.inv(np.real(sqrtm(inner))) @ residuals[rows]) ** 2
    assert fit.interval == "cluster"
    assert fit.slope_stderr == pytest.approx(np.sqrt(variance), rel=1e-7)


def test_without_repeated_prompts_or_shared_noise_it_is_ordinary_least_squares():
    lengths, sq_norms, groups = noisy_power_law(30, 1)
    alone = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="gls")
    assert alone.alpha == fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups).alpha
    lengths, sq_norms, groups = noisy_power_law(30, 4, prompt_sd=0.0, seed=2)
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    assert variance_ratio(np.log(lengths), np.log(sq_norms), groups) == 0.0
    shared = fit_length_scaling(**keywords, method="gls")
    assert shared.alpha == pytest.approx(fit_length_scaling(**keywords).alpha, rel=1e-12)
    assert variance_ratio(np.log(lengths), 1.6 * np.log(lengths), groups) == 0.0


def test_noise_that_is_all_shared_gives_the_line_within_prompts():
    lengths, _, groups = noisy_power_law(20, 4)
    sq_norms = lengths**1.4 * np.exp(np.random.default_rng(0).normal(size=20))[groups]
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    assert fit_length_scaling(**keywords, method="gls").alpha == pytest.approx(0.7, abs=1e-4)
    assert abs(fit_length_scaling(**keywords).alpha - 0.7) > 0.01
