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
    assert alone.interval == "t"


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
