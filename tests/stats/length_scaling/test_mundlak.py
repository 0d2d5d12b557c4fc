"""Mundlak's test of one exponent within and between prompts."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law
from scipy.linalg import sqrtm

from gradstats.stats import fit_length_scaling, mundlak_test


def test_its_slopes_are_those_within_and_between_prompts():
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    test = mundlak_test(fit_length_scaling(**keywords))
    within = fit_length_scaling(**keywords, method="within_prompt")
    between = fit_length_scaling(**keywords, method="between_prompt")
    assert test.alpha_within == pytest.approx(within.alpha, rel=1e-10)
    assert test.alpha_between == pytest.approx(between.alpha, rel=1e-10)
    assert test.difference == pytest.approx(between.alpha - within.alpha, rel=1e-9)


def test_its_error_is_cr2_of_the_coefficient_on_the_means():
    """The regression on log T and its prompt mean, with Bell and McCaffrey's n × n matrices; groups of uneven size."""
    lengths, sq_norms, groups = noisy_power_law(12, 4)
    kept = np.random.default_rng(0).random(48) < 0.8
    lengths, sq_norms, groups = lengths[kept], sq_norms[kept], np.unique(groups[kept], return_inverse=True)[1]
    x, y, n = np.log(lengths), np.log(sq_norms), len(lengths)
    means = np.array([x[groups == group].mean() for group in groups])
    design = np.column_stack([np.ones(n), x, means])
    model = sm.OLS(y, design).fit()
    bread = np.linalg.inv(design.T @ design)
    maker = np.eye(n) - design @ bread @ design.T
    variance, columns = 0.0, []
    for prompt in np.unique(groups):
        rows = groups == prompt
        weight = np.linalg.inv(np.real(sqrtm(maker[np.ix_(rows, rows)]))) @ design[rows] @ bread[2]
        variance += (weight @ model.resid[rows]) ** 2
        columns.append(maker[:, rows] @ weight)
    values = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    test = mundlak_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups))
    assert test.difference == pytest.approx(model.params[2] / 2, rel=1e-9)
    assert test.stderr == pytest.approx(np.sqrt(variance) / 2, rel=1e-9)
    assert test.degrees == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-8)
    low, high = test.confidence_interval(1.0 - test.pvalue)
    assert min(abs(low), abs(high)) == pytest.approx(0.0, abs=1e-9)


def test_it_finds_a_difference_and_says_so_only_then():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    centre = rng.normal(4.5, 0.8, 60)[groups]
    deviation = rng.normal(0, 0.5, 300)
    said = []
    for within in (0.4, 0.9):
        lengths = np.exp(centre + deviation)
        sq_norms = np.exp(1.8 * centre + 2 * within * deviation + rng.normal(0, 0.3, 300))
        test = mundlak_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups))
        said.append((test.pvalue, test.sentence()))
        assert test.to_frame()["difference_low"].item() == test.confidence_interval()[0]
    assert said[0][0] < 1e-6
    assert said[0][1].startswith("Longer answers to the same prompt give α = 0.4")
    assert "] is significant, so that α of all completions mixes the two" in said[0][1]
    assert said[1][0] > 0.05
    assert "] is not resolved" in said[1][1]


def test_false_alarms_have_the_stated_rate():
    """Noise shared by a prompt that grows away from the middle length, 200 data sets of 40 prompts."""
    alarms = []
    for seed in range(200):
        lengths, sq_norms, groups = noisy_power_law(40, 4, heteroscedastic=True, seed=seed)
        fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)
        alarms.append(mundlak_test(fit).pvalue < 0.05)
    assert 0.01 <= np.mean(alarms) <= 0.1


def test_it_needs_prompts_that_vary():
    alone = fit_length_scaling(lengths=[5, 9, 12, 30], sq_norms=[1, 2, 3, 9])
    with pytest.raises(
        ValueError, match=r"at least 3 prompts with completions of different lengths.*0 prompt\(s\) have"
    ):
        mundlak_test(alone)
    same = fit_length_scaling(lengths=[5, 9, 20] * 4, sq_norms=np.arange(1.0, 13.0), groups=np.repeat(np.arange(4), 3))
    with pytest.raises(ValueError, match="and prompts that differ in length"):
        mundlak_test(same)
