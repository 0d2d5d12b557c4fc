"""The studentised bootstrap over prompts, against a loop and on heavy tails."""

import numpy as np
import pandas as pd
import pytest
from comparison_batches import correlated_batch, quiet_compare
from scipy import stats

from gradstats.estimators import ratios as in_blocks
from gradstats.stats import intervals as studentised
from gradstats.stats.intervals import (
    FiellerRatio,
    SkewedMeanEstimate,
    completions_that_carry,
    fieller_ratio,
    lognormal_carriers,
    lognormal_quantile,
    lognormal_tail,
    prompts_that_carry,
    resampled_prompts,
    skewed_mean,
    studentised_lognormal,
    studentised_quantile,
    studentised_ratio,
    tail_is_carried_by_few,
)
from gradstats.stats.jackknife import Statistic, influential_prompts, mean_statistic
from gradstats.stats.protocols import effective_sample_size


def ratio_of(numerator, denominator, numerator_variance, covariance, denominator_variance):
    r = numerator / denominator
    contrast = numerator_variance - 2 * r * covariance + r**2 * denominator_variance
    return FiellerRatio(r, denominator, contrast, covariance - r * denominator_variance, denominator_variance, 30.0)


@pytest.mark.parametrize(
    ("numbers", "n_pieces"),
    [((2.0, 5.0, 0.3, 0.1, 0.5), 1), ((6.0, 0.5, 0.3, 0.1, 0.5), 2), ((0.2, 0.1, 0.3, 0.1, 0.5), 1)],
)
def test_the_set_is_what_the_inequality_says(numbers, n_pieces):
    ratio, (numerator, denominator, *variances) = ratio_of(*numbers), numbers
    pieces = ratio.solution(0.95)
    assert len(pieces) == n_pieces
    for psi in np.linspace(-60, 60, 4001):
        variance = np.dot(variances, [1.0, -2 * psi, psi**2])
        inside = (numerator - psi * denominator) ** 2 <= stats.t.ppf(0.975, 30) ** 2 * variance
        assert inside == any(low <= psi <= high for low, high in pieces)
    assert ratio.is_bounded(0.95) == np.isfinite(pieces).all()


def test_the_set_inside_a_parameter_space():
    low, high = ratio_of(6.0, 0.5, 0.3, 0.0, 0.5).within(0.95, 0.0, np.inf)
    assert 0 < low < 12
    assert high == np.inf
    assert np.isnan(ratio_of(6.0, -5.0, 0.3, 0.0, 0.5).within(0.95, 0.0, np.inf)).all()
    assert np.isnan(FiellerRatio(np.nan, 1.0, 1.0, 0.0, 1.0, 9.0).within(0.95, 0.0, 1.0)).all()


def test_variances_are_those_of_the_means():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 12)) + np.array([[1.0], [2.0]])
    ratio = fieller_ratio(mean_statistic(x), mean_statistic(y))
    expected = np.cov(x - ratio.value * y, y) / 12
    assert ratio.contrast_variance == pytest.approx(expected[0, 0], rel=1e-12)
    assert ratio.covariance == pytest.approx(expected[0, 1], rel=1e-10)
    assert ratio.denominator_variance == pytest.approx(expected[1, 1], rel=1e-12)
    exact = fieller_ratio(mean_statistic(2 * y), mean_statistic(y))  # a ratio without error is a point
    assert exact.value == 2.0
    assert exact.solution(0.95)[0] == pytest.approx((2.0, 2.0), abs=1e-14)
    with pytest.raises(ValueError, match=r"confidence_level=1 must lie between 0 and 1"):
        ratio.solution(1.0)


@pytest.mark.parametrize("denominator", [0.0, 0.3, 3.0])
def test_it_covers_however_near_to_zero_the_denominator_is(denominator):
    """Means of 20 pairs whose denominator has a standard error of 0.22; 1500 data sets, error of a share 0.0056."""
    rng, hits, truth = np.random.default_rng(1), 0, 1.0
    for _ in range(1500):
        y = denominator + rng.normal(size=20)
        x = truth * denominator + 0.5 * (y - denominator) + rng.normal(size=20)
        ratio = fieller_ratio(mean_statistic(x), mean_statistic(y))
        hits += any(low <= truth <= high for low, high in ratio.solution(0.95))
    assert hits / 1500 == pytest.approx(0.95, abs=0.02)


def test_draws_are_those_of_lognormal_samples():
    """Zeros for the share left out; the quantiles are those of three times as many samples by a loop."""
    rng, loop = np.random.default_rng(7), []
    for _ in range(6000):
        sample = np.exp(1.2 * rng.normal(size=40)) * (rng.random(40) < 0.8)
        standard_error = sample.std(ddof=1) / np.sqrt(40) / sample.mean()
        loop.append(np.log(sample.mean() / (0.8 * np.exp(1.2**2 / 2))) / standard_error)
    found = studentised_lognormal(40, 1.2, 0.8)
    assert len(found) == 1999
    for at in (0.025, 0.5, 0.975):
        below = np.mean(np.array(loop) < np.quantile(found, at))
        assert below == pytest.approx(at, abs=4 * np.sqrt(at * (1 - at) * (1 / 1999 + 1 / 6000)))


def test_without_a_spread_the_interval_is_students():
    values = 5.0 + 1e-3 * np.random.default_rng(0).normal(size=30)
    mean = mean_statistic(values)
    low, high = skewed_mean(mean, values).confidence_interval(0.9)
    plain = mean.estimate("log").confidence_interval(0.9)
    assert np.log(high / low) == pytest.approx(np.log(plain[1] / plain[0]), rel=0.06)
    assert (low, high) >= (plain[0] * 0.9999, plain[1])
    assert skewed_mean(mean_statistic(np.ones(5)), np.ones(5)).confidence_interval(0.95) == (1.0, 1.0)
    with pytest.raises(ValueError, match="confidence_level=2"):
        skewed_mean(mean, values).confidence_interval(2.0)


def test_it_is_wider_above_where_the_tail_is_long_and_uses_the_upper_half_alone():
    values = np.exp(1.5 * np.random.default_rng(1).normal(size=100))
    # The spread does not see how small the small values are.
    smaller = np.where(values < np.quantile(values, 0.4), 1e-3 * values, values)
    found, other = (skewed_mean(mean_statistic(one), one) for one in (values, smaller))
    plain = mean_statistic(values).estimate("log").confidence_interval(0.95)
    low, high = found.confidence_interval(0.95)
    assert low == plain[0]
    assert high > 1.05 * plain[1]
    upper = np.log(values[values > np.median(values)]) - np.median(np.log(values))
    assert found.spread == pytest.approx(np.sqrt(np.mean(upper**2)), rel=1e-12)
    assert other.spread == pytest.approx(found.spread, rel=0.05)
    assert skewed_mean(mean_statistic(values), np.where(values < 0.5, -0.1, values)).share == np.mean(values >= 0.5)


@pytest.mark.parametrize(
    ("statistic", "values"),
    [(Statistic(0.0, np.zeros(4)), np.zeros(4)), (Statistic(1.0, np.array([np.nan, np.nan])), np.array([1.0, 2.0]))],
)
def test_what_is_not_known_stays_unknown(statistic, values):
    assert np.isnan(skewed_mean(statistic, values).confidence_interval(0.95)).all()


@pytest.mark.parametrize(
    ("top", "base"),
    [
        (mean_statistic(np.array([1.0, -2.0, 0.5, 0.2])), mean_statistic(np.ones(4))),
        (mean_statistic(np.array([1.0, 2.0])), mean_statistic(np.ones(2))),
        # Without the only prompt that has a variance, what is left is 0, or the rounding error of a difference.
        *((Statistic(1.0, np.array([left, 1.3, 1.3, 1.3])),) * 2 for left in (0.0, 1e-31)),
    ],
)
def test_what_has_no_logarithm_has_no_interval(top, base):
    assert np.isnan(studentised_ratio(top, base).confidence_interval(0.95)).all()


@pytest.mark.parametrize("draw", ["lognormal", "gamma", "lognormal of sd 2"])
def test_it_covers_means_that_student_does_not(draw):
    """60 prompts, 500 data sets: error of a share 0.01."""
    rng, sd, found = np.random.default_rng(3), 2.0 if draw == "lognormal of sd 2" else 1.4, []
    truth = 0.4 if draw == "gamma" else np.exp(sd**2 / 2)
    for _ in range(500):
        values = rng.gamma(0.4, size=60) if draw == "gamma" else np.exp(sd * rng.normal(size=60))
        mean = mean_statistic(values)
        low, high = skewed_mean(mean, values).confidence_interval(0.95)
        margin = stats.t.ppf(0.975, 59) * mean.estimate("log").stderr
        found.append((low <= truth <= high, np.isinf(high), abs(np.log(mean.value / truth)) <= margin))
    held, unbounded, of_student = np.mean(found, axis=0)
    assert held >= 0.92
    assert held <= 0.99 or unbounded > 0.9  # two standard deviations of the logarithm: few prompts carry all
    assert of_student <= held
    assert draw == "gamma" or of_student < 0.9


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
    # One prompt holds the upper tail of ψ: that end is further away, and open where few carry what the ratio is of.
    low, high = found.confidence_interval(0.9)
    assert low == pytest.approx(found.value * np.exp(-margin), rel=1e-9)
    assert high == pytest.approx(found.value * np.exp(found.stderr * lognormal_quantile(psi, 0.9, 0.2)), rel=1e-3)
    assert high > found.value * np.exp(margin)
    assert lognormal_quantile(psi, 0.9, 0.2) > lognormal_quantile(psi, 0.9)
    few, other_way = (
        studentised_ratio(mean_statistic(one), mean_statistic(other), carriers=14.9) for one, other in ((a, b), (b, a))
    )
    assert few.confidence_interval(0.9) == (low, np.inf)
    assert other_way.confidence_interval(0.9) == pytest.approx((0.0, 1.0 / low), rel=1e-9)
    assert tail_is_carried_by_few(psi)
    assert not tail_is_carried_by_few(stats.norm.ppf((np.arange(60) + 0.5) / 60))
    # Prompts without gradient are no part of the tail on whose side the jackknife's error puts them.
    silent = np.concatenate([psi, np.full(20, 1e-5)]), np.concatenate([psi, np.full(20, -1e-5)])
    assert lognormal_quantile(silent[0], 0.9) == pytest.approx(lognormal_quantile(silent[1], 0.9), rel=1e-3)


def test_a_nearly_exact_ratio_keeps_its_digits():
    rng = np.random.default_rng(0)
    values, wiggle = np.exp(rng.normal(size=40)), rng.normal(size=40)
    base = mean_statistic(values)
    coarse, fine = (studentised_ratio(mean_statistic(values * (1 + e * wiggle)), base) for e in (1e-4, 1e-8))
    np.testing.assert_allclose(fine.draws, coarse.draws, rtol=1e-2, atol=1e-3)
    assert fine.stderr == pytest.approx(1e-4 * coarse.stderr, rel=1e-3)
    exact = studentised_ratio(mean_statistic(0.25 * values), base)
    assert (exact.value, exact.confidence_interval(0.95)) == (0.25, (0.25, 0.25))


def test_it_covers_paired_ratios_of_lognormal_means():
    """Sd of log 0.8 and 1.0, 100 prompts, 500 data sets: error of a share 0.01; somewhat conservative."""
    rng, hits, truth = np.random.default_rng(3), 0, np.exp((1.0**2 - 0.8**2) / 2)
    for _ in range(500):
        common = 0.8 * rng.normal(size=100)
        top = mean_statistic(np.exp(common + 0.6 * rng.normal(size=100)))
        low, high = studentised_ratio(top, mean_statistic(np.exp(common))).confidence_interval(0.95)
        hits += low <= truth <= high
    assert 0.93 <= hits / 500 <= 0.992


def test_light_tails_are_not_paid_for():
    """Where every prompt has an influence of one size, the interval is Student's but for the resamples' own error."""
    rng = np.random.default_rng(4)
    signs, base = rng.permutation(np.repeat([-1.0, 1.0], 100)), np.exp(0.1 * rng.normal(size=200))
    light, alone = (
        studentised_ratio(mean_statistic(top), mean_statistic(base))
        for top in (base * (1.0 + 0.05 * signs), np.r_[30.0, base[1:]])
    )
    half = [np.log(np.divide(*one.confidence_interval(0.95)[::-1])) / 2.0 / one.stderr for one in (light, alone)]
    assert half[0] == pytest.approx(stats.t.ppf(0.975, 199), rel=0.05)
    # One prompt in two hundred that holds most of the error: a degree of freedom.
    assert half[1] >= 0.9 * stats.t.ppf(0.975, 1)


def test_blocks_of_resamples_give_the_same_intervals(monkeypatch):
    """300 resamples and one prompt at a time, in every column of a comparison."""
    batch, scores = correlated_batch(40, 4)
    batch = batch.with_fields(sq_norms=1.1 * (scores**2).sum(axis=1))
    labels = ["reinforce", "group_mean", "recipe:grpo", "length_weighted(alpha=0.8, loo=True)", "batch_mean"]

    def compared():
        studentised.resampled_prompts.cache_clear()
        return quiet_compare(batch, labels, scores + 2.0 * batch.rewards[:, None], n_resamples=4).to_frame()

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


def test_without_the_prompts_that_carry_a_mean_it_has_no_upper_end():
    """A sample that lacks its largest values looks as if many carried the mean; its logarithms still spread."""
    quantiles = stats.norm.ppf((np.arange(100) + 0.5) / 100)
    for sd, few in ((0.5, False), (1.7, True)):
        values = np.exp(sd * quantiles)
        found = skewed_mean(mean_statistic(values), values)
        assert isinstance(found, SkewedMeanEstimate)
        assert found.carriers == prompts_that_carry(values)
        assert np.isinf(found.confidence_interval(0.95)[1]) == few
        assert found.confidence_interval(0.95)[0] == mean_statistic(values).estimate("log").confidence_interval(0.95)[0]
    trimmed = np.sort(values)[:-3]
    assert effective_sample_size(trimmed) > 15.0
    assert prompts_that_carry(trimmed) < 11.0
    # s of the values are not 0, and a single one leaves no tail to fit
    half = np.concatenate([np.exp(0.5 * quantiles), np.zeros(100)])
    spread, share = lognormal_tail(half)
    assert share == 0.5
    assert prompts_that_carry(half) == pytest.approx(min(effective_sample_size(half), 100 * np.exp(-(spread**2))))
    assert prompts_that_carry(np.array([0.0, 0.0, 3.0])) == 1.0
    # A sum of eight looks lighter than its terms.
    each = np.exp(2.0 * np.random.default_rng(0).normal(size=(100, 8)))
    sums = each.sum(axis=1)
    assert lognormal_carriers(each.ravel()) == pytest.approx(800 * np.exp(-4.0), rel=0.35)
    bounded = np.exp(4.0 * np.random.default_rng(0).uniform(-2.0, 0.0, 800))  # as wide, but none is large
    assert lognormal_carriers(bounded) < 15.0
    assert completions_that_carry(bounded) == np.inf
    assert completions_that_carry(each.ravel()) < 15.0
    assert prompts_that_carry(sums) > 15.0 > prompts_that_carry(sums, lognormal_carriers(each.ravel()))
    plain, spread = (skewed_mean(mean_statistic(sums), sums, count).spread for count in (np.inf, 20.0))
    assert spread == pytest.approx(np.sqrt(np.log(100 / 20)))
    assert spread > plain


def test_a_long_tail_widens_the_contrast_of_a_fieller_set():
    """Of either side, the longer the more: samples that lack its largest values have too small a standard error."""
    quantiles, denominator = stats.norm.ppf((np.arange(100) + 0.5) / 100), mean_statistic(np.full(100, 4.0))
    for sign in (1.0, -1.0):
        factors = []
        for sd in (0.1, 1.0, 2.0):
            ratio = fieller_ratio(mean_statistic(8.0 + sign * np.exp(sd * quantiles)), denominator)
            wider = ratio.of_long_tails(0.95)
            factors.append(np.sqrt(wider.contrast_variance / ratio.contrast_variance))
            assert wider.denominator_variance == ratio.denominator_variance
        assert 1.0 <= factors[0] < 1.2 < factors[1] < factors[2]
    exact = fieller_ratio(denominator.scaled(2.0), denominator)
    assert exact.of_long_tails(0.95) is exact


def test_few_prompts_widen_the_contrast_of_a_fieller_set_and_not_its_denominator():
    rng = np.random.default_rng(2)
    denominator = mean_statistic(rng.normal(4.0, 1.0, 50))
    light, heavy = (
        fieller_ratio(mean_statistic(values), denominator)
        for values in (rng.normal(8.0, 1.0, 50), np.append(rng.normal(8.0, 0.1, 48), [-30.0, 40.0]))
    )
    for ratio, least, most in ((light, 1.0, 1.1), (heavy, 1.5, 50.0)):
        wider = ratio.of_few_prompts(0.95)
        factor = np.sqrt(wider.contrast_variance / ratio.contrast_variance)
        assert least <= factor <= most
        assert wider.covariance == pytest.approx(factor * ratio.covariance)
        assert wider.denominator_variance == ratio.denominator_variance
        assert wider.is_bounded(0.95)
        # A quantile beyond the own one leaves the error of few prompts alone.
        influential = float(influential_prompts(ratio.influence))
        alone = studentised_quantile(np.zeros(0), influential, 49.0, 0.95) / stats.t.ppf(0.975, 49)
        beyond = ratio.of_few_prompts(0.95, 1e3)
        assert np.sqrt(beyond.contrast_variance / ratio.contrast_variance) == pytest.approx(alone)
    exact = fieller_ratio(denominator.scaled(2.0), denominator)
    assert exact.of_few_prompts(0.95) is exact
