"""Lines within and between prompts."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law
from scipy import stats

from gradstats.stats import fit_length_scaling


def test_too_few_prompts_to_cluster_is_nan_with_a_reason():
    with pytest.warns(UserWarning, match=r"answer 2 prompt\(s\), too few.*measure more prompts"):
        fit = fit_length_scaling(lengths=[5, 9, 12, 30], sq_norms=[1, 2, 3, 9], groups=["a", "a", "b", "b"])
    assert np.isnan(fit.alpha_stderr)
    assert np.all(np.isfinite(fit.confidence_interval(method="t")))


def test_within_prompt_is_the_fixed_effects_regression():
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    groups[:3] = [100, 101, 102]  # three prompts lose a completion to prompts of their own, which say nothing
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    dummies = (groups[:, None] == np.unique(groups)).astype(float)
    oracle = sm.OLS(np.log(sq_norms), np.column_stack([np.log(lengths), dummies])).fit()
    assert fit.slope == pytest.approx(oracle.params[0], rel=1e-10)
    np.testing.assert_allclose(fit.confidence_interval(method="t"), oracle.conf_int()[0] / 2, rtol=1e-8)
    assert fit.interval == "cluster"


def with_prompts_of_one_length():
    """Twelve prompts of four completions, three of which have one length, and three prompts of one completion."""
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    lengths[groups < 3] = 70.0
    kept = (groups < 12) | (np.arange(60) % 4 == 0)
    return lengths[kept], sq_norms[kept], groups[kept]


@pytest.mark.parametrize(("method", "kind"), [("t", "nonrobust"), ("hc3", "HC3")])
def test_errors_within_prompts_are_those_of_explicit_dummies(method, kind):
    """Prompts of one length estimate the noise; the means that are subtracted have leverages of their own."""
    lengths, sq_norms, groups = with_prompts_of_one_length()
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    several = np.bincount(groups)[groups] > 1  # statsmodels divides by 1 - h = 0 where a dummy has one completion
    dummies = (groups[several, None] == np.arange(12)).astype(float)
    design = np.column_stack([np.log(lengths[several]), dummies])
    oracle = sm.OLS(np.log(sq_norms[several]), design).fit(cov_type=kind, use_t=True)
    assert fit.slope == pytest.approx(oracle.params[0], rel=1e-10)
    assert 2 * fit.standard_error(method) == pytest.approx(oracle.bse[0], rel=1e-9)
    np.testing.assert_allclose(fit.confidence_interval(method=method), oracle.conf_int()[0] / 2, rtol=1e-8)


def test_cr2_within_prompts_is_that_of_explicit_dummies():
    """Bell and McCaffrey's matrices with a dummy for each prompt, adjusted by pseudo-inverse roots."""
    lengths, sq_norms, groups = with_prompts_of_one_length()
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    design = np.column_stack([np.log(lengths), (groups[:, None] == np.arange(15)).astype(float)])
    bread = np.linalg.inv(design.T @ design)
    maker = np.eye(len(groups)) - design @ bread @ design.T
    residuals = maker @ np.log(sq_norms)
    variance, columns = 0.0, []
    for prompt in range(15):
        rows = groups == prompt
        values, vectors = np.linalg.eigh(maker[np.ix_(rows, rows)])
        root = np.divide(1.0, np.sqrt(np.maximum(values, 1e-30)), out=np.zeros_like(values), where=values > 1e-9)
        weight = (vectors * root) @ vectors.T @ design[rows] @ bread[0]
        variance += (weight @ residuals[rows]) ** 2
        columns.append(maker[:, rows] @ weight)
    values = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    stderr, degrees = fit.line.regression.cr2(np.ones((1, 1)), fit.line.clusters)
    assert stderr[0] == pytest.approx(np.sqrt(variance), rel=1e-9)
    assert degrees[0] == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-9)


def test_within_two_prompts_of_different_lengths_the_interval_is_nan():
    lengths, sq_norms, groups = with_prompts_of_one_length()
    kept = (groups < 5) | (groups > 11)
    with pytest.warns(UserWarning, match=r"answer 2 prompt\(s\), too few"):
        fit = fit_length_scaling(
            lengths=lengths[kept], sq_norms=sq_norms[kept], groups=groups[kept], method="within_prompt"
        )
    assert np.isnan(fit.alpha_stderr)


def test_between_prompt_is_the_regression_of_means():
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="between_prompt")
    x, y = (np.log(v).reshape(15, 4).mean(axis=1) for v in (lengths, sq_norms))
    oracle = stats.linregress(x, y)
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    expected = oracle.slope / 2 + np.array([-1, 1]) * oracle.stderr / 2 * stats.t.ppf(0.975, 13)
    np.testing.assert_allclose(fit.confidence_interval(method="t"), expected, rtol=1e-10)
    assert fit.interval == "cluster"
    alone = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="between_prompt")
    assert alone.interval == "cluster"


def test_within_and_between_part_ways_when_prompts_differ():
    """Here a longer answer to the same prompt does not grow the norm at all, and harder prompts do."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    centre = rng.normal(4.5, 0.8, 60)[groups]
    lengths = np.ceil(np.exp(centre + rng.normal(0, 0.5, 300)))
    sq_norms = np.exp(2.0 * centre + rng.normal(0, 0.3, 300))
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    within = fit_length_scaling(**keywords, method="within_prompt").confidence_interval()
    between = fit_length_scaling(**keywords, method="between_prompt").confidence_interval()
    assert within[0] < 0.0 < within[1]
    assert between[0] > 0.7
