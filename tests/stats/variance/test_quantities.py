"""Each quantity of a comparison against its definition, and intervals that hold together."""

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly

from gradstats.analyses.variance import compare
from gradstats.stats.intervals import studentised_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic
from gradstats.stats.variance.moments import Groups, cross_signal, prompt_moments
from gradstats.stats.variance.quantities import (
    QUANTITIES,
    GradientStatistics,
    between_prompt,
    bias_share,
    cosine,
    matched_bias_share,
    matched_ratio,
    matched_trace_cov,
    most_influential_prompt,
    n_effective_beside,
    n_effective_prompts,
    noise_to_signal,
    ratio,
    share_kept,
    signal_sq,
    simultaneous,
    trace_cov,
    within_prompt,
)
from gradstats.stats.variance.row import EstimatorVariance


def moments_of(gradients):
    """The moments of a list of prompts, each a list of its groups' gradients."""
    rows = np.concatenate([np.atleast_2d(groups) for groups in gradients]).astype(float)
    prompt = np.repeat(np.arange(len(gradients)), [len(np.atleast_2d(groups)) for groups in gradients])
    n = np.arange(len(rows))
    return prompt_moments(rows, np.ones(len(rows)), Groups(n, n, prompt, 0))


def statistics_of(gradients, reference=None, target=None, *, known=None, scale=None, prompts_per_batch=10):
    """What quantities are computed from, of gradients beside a reference's and a target's."""
    moments = moments_of(gradients)
    reference, target = (None if one is None else moments_of(one) for one in (reference, target))
    on_target = None if target is None else cross_signal(moments, target)
    of_reference = None if reference is None or target is None else cross_signal(reference, target)
    parts = (moments.trace_cov, moments.second_moment, moments.signal, np.ones(len(gradients)), prompts_per_batch)
    return GradientStatistics(*parts, reference, target, on_target, of_reference, known, moments.within, scale)


RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(30, 3)) + np.array([3.0, 1.0, 0.0])
NOISE = RNG.normal(size=(30, 3))
FIRST, SECOND = np.array([5.0, 6.0, 5.0, 6.0, 5.5]), np.array([9.0, 10.0, 12.0, 10.0, 11.0])
THIRD = np.array([7.0, 8.0, 7.5, 7.0, 8.5])
#: Gradients of an estimator, the reference and the target: (M, D) each.
PROBLEMS = {
    "numbers": (FIRST[:, None], SECOND[:, None], THIRD[:, None]),
    "a constant beside the target": (FIRST[:, None] + 0.4, SECOND[:, None], FIRST[:, None]),
    "turned": (0.3 * VECTORS + 0.2 * NOISE + np.array([0.0, 0.0, 0.8]), 2.0 * VECTORS + NOISE[::-1], VECTORS),
    "rotated": (VECTORS @ np.array([[0.6, 0.8, 0.0], [-0.8, 0.6, 0.0], [0.0, 0.0, 1.0]]), VECTORS + NOISE, VECTORS),
}


def of(gradients, reference=None, target=None, **options):
    """Statistics of gradients with one group a prompt: (M, D), or (M,) of one dimension."""
    each = [None if one is None else np.reshape(one, (len(one), 1, -1)) for one in (gradients, reference, target)]
    return statistics_of(*each, **options)


def mean_over_pairs(first, second):
    """The mean of ⟨a_m, b_m'⟩ over m ≠ m', by a loop."""
    m = len(first)
    return sum(float(first[i] @ second[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))


def without_bias(statistic, *gradients):
    """A function of gradients less the jackknife's estimate of its bias."""
    m = len(gradients[0])
    replicates = [statistic(*(np.delete(one, left_out, axis=0) for one in gradients)) for left_out in range(m)]
    return m * statistic(*gradients) - (m - 1) * np.mean(replicates)


def turned(g, target):
    """‖E g‖²‖G‖² − ⟨E g, G⟩², 0 where they point the same way."""
    return mean_over_pairs(g, g) * mean_over_pairs(target, target) - mean_over_pairs(g, target) ** 2


def squared_along(g, target):
    """The squared norm of E g along G."""
    return mean_over_pairs(g, target) ** 2 / mean_over_pairs(target, target)


def norms(g, target):
    return np.sqrt(mean_over_pairs(g, g) * mean_over_pairs(target, target))


def by_definition(g, reference, target, size):
    """Every quantity of gradients with one group a prompt; ``size`` prompts make a batch."""
    variance, of_reference = (np.trace(np.atleast_2d(np.cov(one.T))) for one in (g, reference))
    signal, of_target = mean_over_pairs(g, g), mean_over_pairs(target, target)
    bias_sq = mean_over_pairs(g - target, g - target)
    direction = without_bias(turned, g, target) if g.shape[1] > 1 else np.nan  # one dimension has none
    coefficient = mean_over_pairs(g, target) / mean_over_pairs(reference, target)
    return {
        trace_cov: variance,
        signal_sq: signal,
        noise_to_signal: variance / without_bias(squared_along, g, target),
        ratio: variance / of_reference,
        matched_ratio: variance / of_reference / coefficient**2,
        cosine: mean_over_pairs(g, target) / without_bias(norms, g, target),
        bias_share: bias_sq / (bias_sq + variance / size),
        matched_bias_share: direction / (direction + variance * of_target / size),
    }


@pytest.mark.parametrize("size", [1, 10, 128])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_quantity_is_its_definition(problem, size):
    statistics = of(*PROBLEMS[problem], prompts_per_batch=size)
    for quantity, expected in by_definition(*PROBLEMS[problem], size).items():
        if np.isnan(expected):
            continue
        estimated = quantity(statistics)
        value, low, high = estimated.with_interval(0.95)
        if quantity is matched_ratio and (low, high) == (0.0, np.inf):
            assert np.isnan(value)
            value = estimated.root.value**2
        assert value == pytest.approx(expected, rel=1e-9), quantity
        possible = {cosine: (-1.0, 1.0), bias_share: (0.0, 1.0), matched_bias_share: (0.0, 1.0)}
        assert low <= np.clip(value, *possible.get(quantity, (-np.inf, np.inf))) <= high, quantity
        assert low < high or quantity in possible, quantity  # of one dimension they may be cut to a point


def test_unbiased_estimates_may_be_negative():
    assert between_prompt(statistics_of([[[1.0], [3.0]], [[3.0], [1.0]], [[0.0], [4.0]]])).value < 0
    assert signal_sq(of([1, -1, 0])).value == pytest.approx(-1 / 3, rel=1e-14)
    changed = FIRST - np.array([0.5, -0.5, 0.5, -0.5, 0.0])
    value, low, _ = bias_share(of(changed, target=FIRST, prompts_per_batch=1)).with_interval(0.95)
    assert value == pytest.approx(-0.05 / (np.var(changed, ddof=1) - 0.05), rel=1e-12)
    assert low == 0.0


@pytest.mark.parametrize(
    ("quantity", "statistics", "exact"),
    [
        (bias_share, of(FIRST, target=FIRST), 0.0),
        (cosine, of(0.1 * VECTORS, target=VECTORS), 1.0),
        (ratio, of(FIRST, 2 * FIRST), 0.25),
        (matched_ratio, of(3 * FIRST, FIRST, FIRST), 1.0),
        # A factor that is not a power of two leaves rounding, which is not shown as bias.
        *((matched_bias_share, of(by * VECTORS, target=VECTORS), 0.0) for by in (0.125, 0.7)),
        *((matched_bias_share, of(by * VECTORS, target=VECTORS, scale=by), 0.0) for by in (0.125, 0.7)),
    ],
)
def test_a_multiple_is_known_without_error(quantity, statistics, exact):
    found = quantity(statistics).with_interval(0.95)
    assert found == pytest.approx((exact, exact, exact), rel=1e-6, abs=1e-12)
    assert quantity is not matched_bias_share or found == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("quantity", "statistics"),
    [
        *((quantity, of(FIRST)) for quantity in (ratio, matched_ratio, cosine, bias_share, matched_bias_share)),
        *((quantity, of(FIRST)) for quantity in (within_prompt, between_prompt)),  # a single group of each prompt
        (matched_ratio, of(FIRST, FIRST)),
        (matched_ratio, of(FIRST, SECOND, SECOND, known=0.0)),
    ],
)
def test_what_is_not_known_is_nan(quantity, statistics):
    assert np.isnan(quantity(statistics).with_interval(0.95)).all()


@pytest.mark.parametrize(
    ("quantity", "statistics", "lowest", "highest"),
    [
        (noise_to_signal, of(NOISE, target=NOISE), None, np.inf),
        (matched_ratio, of(NOISE, VECTORS, VECTORS), None, np.inf),
        (cosine, of(NOISE - NOISE.mean(axis=0), target=VECTORS), -1.0, 1.0),
        (matched_bias_share, of(NOISE + 0.1, target=NOISE), 0.0, 1.0),
    ],
)
def test_without_a_resolved_signal_there_is_an_interval_and_no_value(quantity, statistics, lowest, highest):
    value, low, high = quantity(statistics).with_interval(0.95)
    assert np.isnan(value)
    assert low > 0 if lowest is None else low == lowest
    assert high == highest


@pytest.mark.parametrize("factor", [1.0, 7.0, -0.3])
@pytest.mark.parametrize("target", [VECTORS, NOISE])
def test_a_multiple_of_the_target_has_its_direction_and_no_interval(factor, target):
    statistics = of(factor * target, target=target)
    assert cosine(statistics).with_interval(0.95) == (np.sign(factor),) * 3
    assert matched_bias_share(of(factor * VECTORS, target=VECTORS)).with_interval(0.95) == (0.0, 0.0, 0.0)
    assert bias_share(of(target / 0.7 * 0.7, target=target)).with_interval(0.95) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["cosine", "bias_share", "matched_bias_share"])
def test_where_few_prompts_carry_the_variance_only_the_upper_end_is_known(name):
    """Of 30 prompts alike the lower one as well; not of 14, nor where one has most of estimator or target."""
    quantity, turn = QUANTITIES[name].estimate, np.array([0.0, 0.0, 2.0])
    heavy = np.where(np.arange(30)[:, None] == 3, 6.0, 1.0)
    lowest = -1.0 if name == "cosine" else 0.0
    for few, g, target in (
        (False, VECTORS + turn, VECTORS),
        (True, (VECTORS + turn)[:14], VECTORS[:14]),
        (True, heavy * (VECTORS + turn), VECTORS),
        (True, VECTORS + turn, heavy * VECTORS),
    ):
        value, low, high = quantity(of(g, target=target)).with_interval(0.95)
        assert (low == lowest) == few
        assert lowest <= low < value < high


@pytest.mark.parametrize("factor", [7.0, 0.01, -0.3])
@pytest.mark.parametrize("quantity", [noise_to_signal, matched_ratio, matched_bias_share])
def test_scale_and_sign_do_not_enter(quantity, factor):
    g, reference, target = PROBLEMS["turned"]
    expected = quantity(of(g, reference, target)).with_interval(0.9)
    assert quantity(of(factor * g, reference, target)).with_interval(0.9) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("quantity", [trace_cov, ratio])
def test_the_standard_error_is_the_jackknife_of_the_logarithm(quantity):
    first, second = np.array([3.0, 1.0, 2.0, 7.0]), np.array([1.0, 1.0, 2.0, 5.0])
    without = np.array([[np.var(np.delete(one, m), ddof=1) for m in range(4)] for one in (first, second)])
    logs = np.log(without[0] if quantity is trace_cov else without[0] / without[1])
    estimate = quantity(of(first, second))
    assert estimate.scale == "log"
    assert estimate.stderr == pytest.approx(np.sqrt(3 / 4 * np.sum((logs - logs.mean()) ** 2)), rel=1e-12)


def test_variance_within_and_between_prompts_are_those_of_an_analysis_of_variance():
    statistics = statistics_of([[[1.0], [3.0]], [[0.0], [4.0]], [[8.0], [8.5]]])
    within = np.mean([2.0, 8.0, 0.125])
    between = np.var([2.0, 2.0, 8.25], ddof=1) - within / 2
    values = [quantity(statistics).value for quantity in (within_prompt, between_prompt, trace_cov)]
    assert values == pytest.approx([within, between, within + between], rel=1e-12)


def test_a_signal_is_resolved_where_its_interval_lies_above_zero():
    narrow, wide = (EstimatorVariance("mine", {"signal_sq": Estimate(1.0, by, "raw", np.inf)}) for by in (0.4, 0.6))
    assert (narrow.resolved(0.95), wide.resolved(0.95), wide.resolved(0.8)) == (True, False, True)


def test_with_a_known_scale_the_direction_of_the_bias_needs_no_resolved_target():
    """With c = 1 it is the share of bias itself: a constant difference of (0.1, 0.1, 0.1)."""
    value, low, high = matched_bias_share(of(NOISE + 0.1, target=NOISE, scale=1.0)).with_interval(0.95)
    assert low <= value <= high
    assert value == pytest.approx(0.03 / (0.03 + np.trace(np.cov(NOISE.T)) / 10), rel=1e-9)


def test_in_one_dimension_a_bias_has_no_direction():
    """What the estimated scale brings there is bias alone, which is taken off to the next order in 1/M."""
    target = 5.0 + np.random.default_rng(1).normal(size=60)
    statistics = of(target + 2.0, target=target, prompts_per_batch=1)
    plain = (statistics.signal - statistics.on_target * statistics.on_target / statistics.target.signal).value
    value, low, _ = matched_bias_share(statistics).with_interval(0.95)
    assert abs(value) < 0.1 * abs(plain / statistics.trace_cov.value)
    assert low == 0.0


def test_a_known_coefficient_takes_the_place_of_the_estimate():
    value, low, high = matched_ratio(of(FIRST, SECOND, SECOND, known=0.5)).with_interval(0.95)
    assert value == pytest.approx(4 * np.var(FIRST) / np.var(SECOND), rel=1e-12)
    assert low < value < high
    halved = matched_trace_cov(of(FIRST, SECOND, known=0.5))
    assert halved.value == pytest.approx(4 * np.var(FIRST, ddof=1), rel=1e-12)
    # What ranks estimators is the matched ratio up to a common factor.
    values = [matched_trace_cov(of(first, SECOND, SECOND)).value for first in (FIRST, SECOND)]
    found = matched_ratio(of(FIRST, SECOND, SECOND)).root.value ** 2
    assert values[0] / values[1] == pytest.approx(found, rel=1e-12)


def test_where_few_prompts_leave_an_interval_without_ends_there_is_no_value():
    few, enough = of(FIRST, SECOND, SECOND), of(VECTORS, VECTORS + 0.5 * NOISE, VECTORS + NOISE[::-1])
    assert matched_ratio(few).root.is_bounded(0.95)
    np.testing.assert_equal(matched_ratio(few).with_interval(0.95), (np.nan, 0.0, np.inf))
    value, low, _ = matched_ratio(enough).with_interval(0.95)
    assert 0.0 < low < value


Z = 1.959963984540054


MARGIN = Z * np.sqrt(0.25 / 19 + Z**2 / (4 * 19**2)) / (1 + Z**2 / 19)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        # Ten of twenty, with the standard error of a mean of independent groups (ddof 1): n_eff = 19.
        (np.repeat([0.0, 1.0], 10), (0.5, 0.5 - MARGIN, 0.5 + MARGIN)),
        (np.ones(20), (1.0, 20 / (20 + Z**2), 1.0)),
        (np.zeros(20), (0.0, 0.0, Z**2 / (20 + Z**2))),
    ],
)
def test_independent_groups_have_wilsons_interval(kept, expected):
    assert share_kept(kept).with_interval(0.95) == pytest.approx(expected, rel=1e-9)


HEAVY, EVEN = (1e-3, 1e3, -1e-3, 1e-3), (1, -1, 1, -1)


@pytest.mark.parametrize(
    ("statistics", "most_influential", "n_effective"),
    [
        (of(HEAVY), 1, 1.0),
        (of(EVEN), 0, 4.0),
        # About their mean of 9 the gradients lie at 1, 1, 1 and −3: the smallest is the one that spreads them.
        (of([10.0, 10.0, 10.0, 6.0]), 3, 336**2 / (3 * 1e4 + 36**2)),
        # Several groups of a prompt count once: squares of 1, 2 and 0.
        (statistics_of([[[1.0], [-1.0]], [[2.0], [0.0]], [[0.0], [0.0]]]), None, 9 / 5),
    ],
)
def test_how_many_prompts_carry_the_variance_and_which_counts_most(statistics, most_influential, n_effective):
    assert n_effective_prompts(statistics) == pytest.approx(n_effective, rel=1e-8)
    assert most_influential is None or most_influential_prompt(statistics) == most_influential


def test_prompts_that_carry_what_it_is_compared_with_count_as_well():
    assert n_effective_beside(of(EVEN)) == np.inf
    assert n_effective_beside(of(EVEN, EVEN, HEAVY)) < 2.0 < n_effective_beside(of(EVEN, EVEN))


ESTIMATORS = ["rloo", "token_mean", "grpo", "length_weighted(alpha=1.0)"]


@pytest.fixture(scope="module")
def rows():
    batch, scores = correlated_batch(60, 4)
    return quietly(compare, batch, ESTIMATORS, scores + 2.0 * batch.rewards[:, None]).rows


@pytest.mark.parametrize("name", ["cosine", "matched_bias_share"])
def test_fieller_sets_that_hold_together_contain_those_of_each_row_alone(rows, name):
    estimates = [getattr(row, name) for row in rows]
    wider = 0
    for one, (low, high) in zip(estimates, simultaneous(estimates, 0.9), strict=True):
        alone = one.with_interval(0.9)
        assert low <= alone[1] <= alone[2] <= high
        wider += high - low > alone[2] - alone[1] + 1e-9
    # rloo is the target: what is known exactly has one interval; few completions carry a length-weighted gradient
    assert wider >= len(ESTIMATORS) - 2
    assert np.isnan(simultaneous([NOT_ESTIMATED, estimates[2]], 0.95)[0]).all()


def ratios_of(rng, truths, n=60):
    base = np.exp(0.5 * rng.normal(size=n))
    tops = [truth * np.exp(0.5 * rng.normal(size=n)) for truth in truths]
    return [studentised_ratio(mean_statistic(top), mean_statistic(base)) for top in tops]


def matched_ratios_of(rng, known):
    """Matched ratios to one base, which is reference and target, each with a known coefficient or None."""
    base, *others = 3.0 + rng.normal(size=(len(known) + 1, 60))
    return [matched_ratio(of(one, base, base, known=each)) for one, each in zip(others, known, strict=True)]


def test_simultaneous_matched_ratios_contain_the_single_sets_and_widen_with_the_number_of_rows():
    found = matched_ratios_of(np.random.default_rng(1), (None, 1.0, None, None))
    few, many = simultaneous(found[:1], 0.9), simultaneous(found, 0.9)
    for row, (low, high) in zip(found, many, strict=True):
        _, alone_low, alone_high = row.with_interval(0.9)
        assert low < alone_low < alone_high < high
    assert many[0][0] < few[0][0] < few[0][1] < many[0][1]


def test_exact_ratios_and_unknown_ones_take_no_part():
    values = np.exp(np.random.default_rng(1).normal(size=60))
    *known, zero = matched_ratios_of(np.random.default_rng(2), (None, 1.0, 0.0))
    base = 3.0 + NOISE[:, 0]
    for ratios, exact, at, unknown in (
        (
            ratios_of(np.random.default_rng(0), [1.0, 2.0]),
            [studentised_ratio(mean_statistic(2 * values), mean_statistic(values))],
            2.0,
            [NOT_ESTIMATED],
        ),
        (known, [matched_ratio(of(by * base, base, base)) for by in (1.0, 2.0)], 1.0, [NOT_ESTIMATED, zero]),
    ):
        together = simultaneous([*exact, *ratios, *unknown], 0.9)
        np.testing.assert_allclose(together[: len(exact)], at)
        np.testing.assert_allclose(together[len(exact) : -len(unknown)], simultaneous(ratios, 0.9))
        assert np.isnan(together[-len(unknown) :]).all()
    assert np.isnan(simultaneous([NOT_ESTIMATED], 0.9)).all()


def test_simultaneous_matched_ratios_of_known_scales_are_those_of_the_ratios_scaled():
    found = matched_ratios_of(np.random.default_rng(0), (1.0, 0.5))
    plain = simultaneous([row.ratio for row in found], 0.9)
    np.testing.assert_allclose(simultaneous(found, 0.9), [plain[0], tuple(4 * end for end in plain[1])])
    base = 3.0 + VECTORS[:, 2]
    ((low, high),) = simultaneous([matched_ratio(of(NOISE[:, 0], base, base))], 0.9)  # a ray
    assert low >= 0
    assert high == np.inf


def held(sets, truths):
    return all(low <= truth <= high for truth, (low, high) in zip(truths, sets, strict=True))


def test_all_ratios_of_a_table_hold_at_the_stated_rate():
    """Eight ratios, 200 data sets, error of a share 0.015; single intervals hold together far less often."""
    rng, truths, together, alone = np.random.default_rng(1), np.linspace(0.5, 2.0, 8), 0, 0
    for _ in range(200):
        ratios = ratios_of(rng, truths)
        together += held(simultaneous(ratios, 0.95), truths)
        alone += held([one.confidence_interval(0.95) for one in ratios], truths)
    assert 0.92 <= together / 200 < 1
    assert alone / 200 < 0.88


@pytest.mark.slow
def test_all_matched_ratios_of_a_table_hold_at_the_stated_rate():
    """Six estimated scales, 300 data sets, error of a share 0.013; single sets hold together less often."""
    rng, together, alone = np.random.default_rng(4), 0, 0
    scales, spreads = np.linspace(0.5, 2.0, 6), np.linspace(0.7, 1.5, 6)
    for _ in range(300):
        base = 3.0 + rng.normal(size=80)
        drawn = scales[:, None] * (3.0 + spreads[:, None] * rng.normal(size=(6, 80)))
        found = [matched_ratio(of(one, base, base)) for one in drawn]
        together += held(simultaneous(found, 0.95), spreads**2)
        alone += held([row.with_interval(0.95)[1:] for row in found], spreads**2)
    assert 0.92 <= together / 300 <= 0.99
    assert alone / 300 < 0.9
