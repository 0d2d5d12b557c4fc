"""Baselines that are learned on the other prompts."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch
from scipy import optimize, stats

from gradstats import estimators as est
from gradstats.reference import EnumeratedPolicy, exact_optimal_baselines
from gradstats.reference.optimal_baselines import mixture_form
from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.comparison import pooled, prepared_inputs
from gradstats.stats.variance.minimiser import (
    EXPONENTS,
    LearnedBaseline,
    learned_baselines,
    learned_exponent,
    learned_mixture,
    learned_shift,
    lowest_shares,
    minimiser_of,
    variance_with,
    written_interval,
)
from gradstats.stats.variance.moments import prompt_moments, split_into_groups


def pool_of(batch, scores):
    inputs, chosen, judged = prepared_inputs(batch, [est.rloo()], scores, False, "auto")
    groups = split_into_groups(batch.group_index, inputs.order, None)
    return pooled(inputs, groups, chosen, np.random.default_rng(0), None, None, judged)


def test_what_a_prompt_gets_does_not_depend_on_its_own_completions():
    batch, scores = correlated_batch(20, 4)
    other = scores.copy()
    own = batch.group_index == 7
    other[own] *= -3.0
    for first, second in zip(
        learned_baselines(pool_of(batch, scores)), learned_baselines(pool_of(batch, other)), strict=True
    ):
        np.testing.assert_allclose(first.parameters[7], second.parameters[7], atol=1e-9)
        assert (np.abs(first.parameters - second.parameters).max(axis=1) > 1e-9).any()


def test_the_learned_shift_is_the_lowest_on_the_other_prompts():
    batch, scores = correlated_batch(20, 4)
    learned = learned_shift(pool_of(batch, scores)).parameters[:, 0]
    for prompt in (0, 11):
        others = batch.group_index != prompt
        pool = pool_of(batch.select(others), scores[others])
        weights = [
            est.asymmetric(delta=learned[prompt] + by, loo=True).weights(pool.batch) for by in (-0.01, 0.0, 0.01)
        ]
        below, there, above = (variance_with(pool, one).value for one in weights)
        assert there < min(below, above)
        assert below == pytest.approx(above, rel=1e-6)


def test_shares_are_the_lowest_of_a_grid():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(40, 3, 3))
    forms = roots @ roots.transpose(0, 2, 1)
    shares = lowest_shares(forms)
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    steps = [(i / 50, j / 50, 1 - (i + j) / 50) for i in range(51) for j in range(51 - i)]
    for form, found in zip(forms, shares, strict=True):
        on_grid = min(np.array(one) @ form @ np.array(one) for one in steps)
        assert found @ form @ found <= on_grid + 1e-12
    assert len({tuple(share > 0) for share in shares}) > 2  # corners, edges and the inside occur


def test_what_is_learned_is_near_the_exact_optimum_of_an_enumerated_policy():
    policy = EnumeratedPolicy(vocabulary=3, max_length=3, dimension=5, n_prompts=6, rng=2)
    size = 3
    batch, scores, _ = policy.sample(1500, size, rng=0)
    pool = pool_of(batch, scores)

    def exact(estimator):
        return policy.moments(estimator, size).trace_cov

    exponent, shift, mixture = exact_optimal_baselines(policy, size, n_prompts=1500)
    assert learned_shift(pool).parameters.mean() == pytest.approx(shift.parameters["delta"], abs=0.03)

    form = mixture_form(policy, size)
    assert mixture.trace_cov < form.diagonal().min()  # a mixture is better than each of its parts
    shares = learned_mixture(pool).parameters.mean(axis=0)
    assert shares @ form @ shares == pytest.approx(mixture.trace_cov, rel=0.01)

    alpha = float(learned_exponent(pool).parameters.mean())
    assert exact(est.length_weighted(alpha=alpha, loo=True)) == pytest.approx(exponent.trace_cov, rel=0.01)


def test_a_learned_baseline_is_described_and_bound_to_its_completions():
    one = LearnedBaseline("learned shift", ("delta",), np.array([[0.1], [0.3]]), np.ones(4))
    assert one.described() == "delta 0.2 (0.1 to 0.3)"
    assert (one.name, one.level, one.needs, one.across_groups) == ("learned shift", "sequence", (), False)
    assert one.expected_scale(4) == 1.0
    with pytest.raises(ValueError, match="learned shift has weights for 4 completions, got 80"):
        one.weights(correlated_batch(20, 4)[0])


def test_groups_without_any_weight_are_refused_with_the_cause():
    batch, scores = correlated_batch(20, 4)
    pool = pool_of(batch.with_fields(rewards=np.zeros(80)), scores)
    with pytest.raises(ValueError, match="has weight 0: every reward equals 0 .choose problems that are solved"):
        learned_exponent(pool)
    alone = pool_of(batch.with_fields(groups=np.arange(80)), scores)
    with pytest.raises(ValueError, match="has weight 0: groups hold a single completion"):
        learned_exponent(alone)


def test_the_interval_of_the_shift_is_where_the_slope_may_be_zero():
    batch, scores = correlated_batch(60, 4)
    pool = pool_of(batch, scores)
    learned = learned_shift(pool)
    low, high = learned.confidence_interval(0.9)
    assert low < learned.parameters.mean() < high
    below, above = (
        variance_with(pool, est.asymmetric(delta=delta, loo=True).weights(pool.batch))
        for delta in (learned.optimum.value - 0.5, learned.optimum.value + 0.5)
    )
    psi = (above - below).pseudo_values  # influence on the slope at the lowest point
    psi = psi - psi.mean()
    degrees = 2 / ((psi**4).sum() / (psi**2).sum() ** 2 - 1 / 60)
    assert 5 < degrees < 55
    quantile = stats.t.ppf(0.95, degrees)
    for end in (low, high):
        before, after = (
            variance_with(pool, est.asymmetric(delta=end + by, loo=True).weights(pool.batch)) for by in (-0.5, 0.5)
        )
        slope = after - before  # of a parabola: exact
        assert abs(slope.value) == pytest.approx(quantile * np.sqrt(slope.variance()), rel=1e-6)
    wide = learned.confidence_interval(0.99)
    assert wide[0] < low < high < wide[1]
    assert learned.described(0.9) == f"delta {learned.parameters.mean():.3g} [{low:.3g}, {high:.3g}]"


def test_the_interval_of_the_exponent_is_that_of_a_curve():
    batch, scores = correlated_batch(60, 4)
    pool = pool_of(batch, scores)
    curve = minimiser_of(
        EXPONENTS,
        [variance_with(pool, est.length_weighted(alpha=one, loo=True).weights(pool.batch)) for one in EXPONENTS],
    )
    learned = learned_exponent(pool)
    assert learned.confidence_interval(0.9) == pytest.approx(curve.confidence_interval(0.9))
    low, high = learned.confidence_interval(0.9999)
    assert high == EXPONENTS[-1]
    assert learned.described(0.9999) == f"alpha {learned.parameters.mean():.3g} [{'≤ ' * (low == -1)}{low:.3g}, ≥ 2]"
    assert np.isnan(learned_mixture(pool).confidence_interval()).all()
    with pytest.raises(ValueError, match="confidence_level=2 must lie"):
        learned_mixture(pool).confidence_interval(2)


GRID = np.linspace(-1.0, 1.0, 9)


def parabolas(rng, m=400, at=0.2, noise=1.0):
    """Curves (β − b_m)² + 1, one a prompt, whose mean is lowest at the mean of b."""
    lowest = at + noise * rng.normal(size=m)
    return [mean_statistic((value - lowest) ** 2 + 1.0) for value in GRID], lowest


def test_a_parabola_has_the_minimiser_and_the_interval_of_its_mean():
    variances, lowest = parabolas(np.random.default_rng(0))
    found = minimiser_of(GRID, variances)
    assert found.value == pytest.approx(lowest.mean(), abs=1e-12)
    # V′ = 2(β − mean b) has the standard error 2·se(mean b) at every β.
    margin = 1.9659 * lowest.std(ddof=1) / np.sqrt(len(lowest))
    np.testing.assert_allclose(
        found.confidence_interval(), [lowest.mean() - margin, lowest.mean() + margin], atol=0.25 / 16
    )


def test_a_slope_that_few_prompts_carry_has_fewer_degrees_of_freedom():
    rng = np.random.default_rng(6)
    lowest = 0.1 * rng.standard_t(3, size=40)
    lowest[:2] += (0.9, -0.7)
    found = minimiser_of(GRID, [mean_statistic((value - lowest) ** 2 + 1.0) for value in GRID])
    # V′ = 2(β − mean b) has the influence b at every β.
    deviation = lowest - lowest.mean()
    kurtosis = 40 * (deviation**4).sum() / (deviation**2).sum() ** 2
    degrees = 2 * 40 / (kurtosis - 1)
    assert 3 < degrees < 15
    margin = stats.t.ppf(0.95, degrees) * lowest.std(ddof=1) / np.sqrt(40)
    assert found.confidence_interval(0.9) == pytest.approx((lowest.mean() - margin, lowest.mean() + margin), rel=1e-9)
    # The cost of a parameter rests on the same prompts: log of V(β) over V(mean b) = 1 + var b.
    quotient, low, high = found.relative_to_lowest(0.5, 0.9)
    assert np.log(high / quotient) == pytest.approx(np.log(quotient / low))
    best, there = (mean_statistic((value - lowest) ** 2 + 1.0) for value in (lowest.mean(), 0.5))
    psi = (there / best).logarithm().pseudo_values
    psi = psi - psi.mean()
    degrees = 2 / ((psi**4).sum() / (psi**2).sum() ** 2 - 1 / 40)
    expected = stats.t.ppf(0.95, degrees) * psi.std(ddof=1) / np.sqrt(40)
    assert np.log(high / quotient) == pytest.approx(expected, rel=0.05)  # to first order


def test_an_end_that_is_cut_is_written_as_such():
    values = [2.0, 0.0, 1.0]
    assert written_interval(0.25, 1.0, values) == "[0.25, 1]"
    assert written_interval(0.0, 1.2345, values) == "[≤ 0, 1.23]"
    assert written_interval(1.2345, 2.0, values, digits=2) == "[1.2, ≥ 2]"
    assert written_interval(0.0, 2.0, values) == "[≤ 0, ≥ 2]"
    assert written_interval(-np.inf, 1.0, (-np.inf, np.inf)) == "[-inf, 1]"


def test_the_order_and_the_unit_of_the_curve_do_not_matter():
    variances, _ = parabolas(np.random.default_rng(1))
    first = minimiser_of(GRID, variances)
    other = minimiser_of(GRID[::-1], [one.scaled(1e6) for one in variances[::-1]])
    assert other.value == pytest.approx(first.value)
    assert other.confidence_interval() == pytest.approx(first.confidence_interval())


def test_a_curve_that_is_lowest_at_an_end():
    variances, _ = parabolas(np.random.default_rng(2), at=3.0, noise=0.1)
    found = minimiser_of(GRID, variances)
    assert (found.value, *found.confidence_interval()) == (1.0, 1.0, 1.0)
    assert found.is_at_an_end
    inside = minimiser_of(GRID, parabolas(np.random.default_rng(2))[0])
    assert not inside.is_at_an_end


def test_a_constant_or_unknown_curve_has_no_minimiser():
    flat = [mean_statistic(np.ones(5))] * 9
    assert np.isnan(minimiser_of(GRID, flat).value)
    assert np.isnan(minimiser_of(GRID, flat).confidence_interval()).all()
    assert minimiser_of(GRID, [*flat[:8], None]) is None


def test_of_few_values_one_is_chosen():
    rng = np.random.default_rng(3)
    values = np.array([1.0, 2.0, 4.0])
    shared = rng.normal(size=200)
    variances = [mean_statistic(10.0 + shared + shift + 0.1 * rng.normal(size=200)) for shift in (3.0, 0.0, 0.001)]
    found = minimiser_of(values, variances)
    assert found.discrete
    assert found.value in (2.0, 4.0)
    assert found.confidence_interval() == (2.0, 4.0)


def test_the_cost_of_another_parameter():
    variances, lowest = parabolas(np.random.default_rng(4))
    found = minimiser_of(GRID, variances)
    quotient, low, high = found.relative_to_lowest(0.9)
    best = np.mean((lowest.mean() - lowest) ** 2 + 1.0)
    there = np.mean((0.9 - lowest) ** 2 + 1.0)
    assert quotient == pytest.approx(there / best)
    assert low < quotient < high
    assert found.relative_to_lowest(found.value)[0] == pytest.approx(1.0)
    assert np.isnan(found.relative_to_lowest(1.5)).all()


def test_two_prompts_give_no_interval():
    variances = [Statistic(float(value**2 + 1.0), np.full(2, np.nan)) for value in GRID]
    found = minimiser_of(GRID, variances)
    assert found.value == pytest.approx(0.0)
    assert np.isnan(found.confidence_interval()).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "grid", "n_prompts"),
    [
        (lambda value: est.length_weighted(alpha=value, loo=True), np.linspace(-2, 2, 17), 100),
        (lambda value: est.asymmetric(delta=value, loo=True), np.linspace(-1, 1, 9), 200),
    ],
    ids=["exponent", "shift"],
)
def test_the_interval_covers_the_exact_minimiser_of_an_enumerated_policy(make, grid, n_prompts):
    policy = EnumeratedPolicy(vocabulary=3, max_length=4, dimension=6, n_prompts=20, rng=1)

    def exact(value):
        return policy.moments(make(value), group_size=3).trace_cov

    around = grid[np.argmin([exact(value) for value in grid])]
    step = grid[1] - grid[0]
    truth = optimize.minimize_scalar(exact, bounds=(around - step, around + step), method="bounded").x
    covered = 0
    n_sets = 300
    for seed in range(n_sets):
        batch, scores, _ = policy.sample(n_prompts, 3, rng=seed)
        groups = split_into_groups(batch.group_index, np.arange(len(scores)), None)
        variances = [prompt_moments(scores, make(value).weights(batch), groups).trace_cov for value in grid]
        low, high = minimiser_of(grid, variances).confidence_interval()
        covered += low <= truth <= high
    # 95 % of 300 data sets, within three standard errors
    assert 0.912 < covered / n_sets < 0.988
