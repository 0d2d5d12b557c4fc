"""The studentised bootstrap over prompts, against a loop and on heavy tails."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gradstats.estimators import Batch
from gradstats.estimators import ratios as in_blocks
from gradstats.stats import compare
from gradstats.stats import intervals as studentised
from gradstats.stats.intervals import resampled_prompts, studentised_ratio
from gradstats.stats.jackknife import mean_statistic


def test_draws_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    a, b = np.exp(np.array([[2.5], [0.3]]) * rng.normal(size=(2, 15)))
    found = studentised_ratio(mean_statistic(a), mean_statistic(b))
    observed, draws = np.log(a.mean() / b.mean()), []
    for counts in resampled_prompts(15):
        drawn = np.repeat(np.arange(15), counts.astype(int))
        x, y = a[drawn], b[drawn]
        influence = x / x.mean() - y / y.mean()
        draws.append((np.log(x.mean() / y.mean()) - observed) / np.sqrt((influence**2).sum() / (15 * 14)))
    np.testing.assert_allclose(found.draws, draws, rtol=1e-9)
    without = np.log((a.sum() - a) / (b.sum() - b))
    assert found.stderr == pytest.approx(np.sqrt(14 / 15 * ((without - without.mean()) ** 2).sum()), rel=1e-12)
    psi = a / a.mean() - b / b.mean()
    share = (psi**4).sum() / (psi**2).sum() ** 2
    student = stats.t.ppf(0.95, 14)
    wider = stats.t.ppf(0.95, 1 / (share - 1 / 15)) / student
    missing = 1 - 3 / share / 15
    assert 0 < missing < 1
    ends = [*np.abs(np.quantile(draws, [0.05, 0.95])), np.quantile(np.abs(draws), 0.9 + 0.05 * missing)]
    margin = max(*ends, student) * found.stderr * wider
    assert wider > 1.1
    expected = (found.value * np.exp(-margin), found.value * np.exp(margin))
    assert found.confidence_interval(0.9) == pytest.approx(expected, rel=1e-9)


def test_a_multiple_is_exact():
    values = np.array([3.0, 1.0, 2.0, 7.0])
    found = studentised_ratio(mean_statistic(0.25 * values), mean_statistic(values))
    assert (found.value, found.confidence_interval(0.95)) == (0.25, (0.25, 0.25))


def test_a_nearly_exact_ratio_keeps_its_digits():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(size=40))
    wiggle = rng.normal(size=40)
    coarse, fine = (
        studentised_ratio(mean_statistic(values * (1 + e * wiggle)), mean_statistic(values)) for e in (1e-4, 1e-8)
    )
    np.testing.assert_allclose(fine.draws, coarse.draws, rtol=1e-2, atol=1e-3)
    assert fine.stderr == pytest.approx(1e-4 * coarse.stderr, rel=1e-3)


def test_what_has_no_logarithm_has_no_interval():
    found = studentised_ratio(mean_statistic(np.array([1.0, -2.0, 0.5, 0.2])), mean_statistic(np.ones(4)))
    assert np.isnan(found.confidence_interval(0.95)).all()
    two = studentised_ratio(mean_statistic(np.array([1.0, 2.0])), mean_statistic(np.ones(2)))
    assert np.isnan(two.confidence_interval(0.95)).all()


def test_it_covers_paired_ratios_of_lognormal_means():
    """Sd of log 0.8 and 1.0, 100 prompts, 500 data sets: error of a share 0.01; somewhat conservative."""
    rng, hits, truth = np.random.default_rng(3), 0, np.exp((1.0**2 - 0.8**2) / 2)
    for _ in range(500):
        common = 0.8 * rng.normal(size=100)
        top = np.exp(common + 0.6 * rng.normal(size=100))
        low, high = studentised_ratio(mean_statistic(top), mean_statistic(np.exp(common))).confidence_interval(0.95)
        hits += low <= truth <= high
    assert 0.93 <= hits / 500 <= 0.992


def test_light_tails_are_not_paid_for():
    """Where every prompt has an influence of one size, the interval is Student's but for the resamples' own error."""
    rng = np.random.default_rng(4)
    signs = rng.permutation(np.repeat([-1.0, 1.0], 100))
    base = np.exp(0.1 * rng.normal(size=200))
    found = studentised_ratio(mean_statistic(base * (1.0 + 0.05 * signs)), mean_statistic(base))
    low, high = found.confidence_interval(0.95)
    assert found.degrees_of_error > 199
    assert np.log(high / low) / 2.0 == pytest.approx(stats.t.ppf(0.975, 199) * found.stderr, rel=0.05)
    # One prompt in a hundred that holds most of the error: a degree of freedom, and a quantile of both sides.
    alone = studentised_ratio(mean_statistic(np.r_[30.0, base[1:]]), mean_statistic(base))
    assert alone.degrees_of_error == pytest.approx(1.0, abs=0.05)


def test_blocks_of_resamples_give_the_same_intervals(monkeypatch):
    """300 resamples and one prompt at a time, in every column of a comparison."""
    rng = np.random.default_rng(0)
    rewards, lengths = rng.integers(0, 2, 160).astype(float), rng.integers(5, 60, 160)
    scores = (rewards[:, None] + rng.normal(size=(160, 8))) * np.sqrt(lengths)[:, None]
    batch = Batch(rewards, lengths, np.repeat(np.arange(40), 4), sq_norms=1.1 * (scores**2).sum(axis=1))
    labels = ["reinforce", "group_mean", "recipe:grpo", "length_weighted(alpha=0.8, loo=True)", "batch_mean"]

    def compared():
        studentised.resampled_prompts.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return compare(batch, labels, scores, scores_are_sketches=True, n_resamples=4).to_frame()

    whole = compared()
    monkeypatch.setattr(in_blocks, "TOKENS_AT_ONCE", 1)
    monkeypatch.setattr(studentised, "COUNTS_AT_ONCE", 40 * 300)
    blocks = compared()
    studentised.resampled_prompts.cache_clear()
    pd.testing.assert_frame_equal(blocks, whole, rtol=1e-12, atol=0)
    assert whole["ratio_high"].notna().all()


def test_few_groups_of_two_success_rates_do_not_blow_the_interval_up():
    """Most prompts give no gradient, and the others one of two quotients: some resamples hold a single one of these."""
    rng = np.random.default_rng(0)
    size = np.exp(0.2 * rng.normal(size=12)) * ([0.0] * 6 + [1.0] * 6)
    quotient = np.array([4.0] * 9 + [4.6] * 3) * np.exp(1e-4 * rng.normal(size=12))
    low, high = studentised_ratio(mean_statistic(quotient * size), mean_statistic(size)).confidence_interval()
    assert 3.5 < low < 4.1
    assert 4.4 < high < 5.0
