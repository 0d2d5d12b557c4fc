"""The scale-free share of bias, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch, interleaved_batch, quiet_compare, quietly
from gradients_by_hand import along, statistics_of

from gradstats.stats import compare
from gradstats.stats.intervals import studentised_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic
from gradstats.stats.variance.estimates import (
    between_prompt,
    bias_share,
    cosine,
    fieller_simultaneous,
    is_resolved,
    kept_share,
    matched_bias_share,
    matched_ratio,
    matched_ratio_simultaneous,
    matched_trace_cov,
    most_influential_prompt,
    n_effective_beside,
    n_effective_prompts,
    noise_to_signal,
    ratio,
    ratio_simultaneous,
    signal_sq,
    trace_cov,
    within_prompt,
)
from gradstats.stats.variance.estimates import mean_over_pairs as mean_over_pairs_for_u_statistic


def test_it_is_the_variance_of_means_less_what_groups_contribute():
    gradients = [[[1.0], [3.0]], [[0.0], [4.0]], [[8.0], [8.5]]]
    expected = np.var([2.0, 2.0, 8.25], ddof=1) - np.mean([2.0, 8.0, 0.125]) / 2
    statistics = statistics_of(gradients)
    assert between_prompt(statistics).value == pytest.approx(expected, rel=1e-12)
    assert between_prompt(statistics).value + within_prompt(statistics).value == pytest.approx(
        trace_cov(statistics).value, rel=1e-12
    )


def test_it_may_be_negative():
    assert between_prompt(statistics_of([[[1.0], [3.0]], [[3.0], [1.0]], [[0.0], [4.0]]])).value < 0


def test_single_groups_leave_it_unknown():
    assert np.isnan(between_prompt(statistics_of(along(1, 2, 3))).value)


TARGET = np.array([5.0, 6.0, 5.0, 6.0, 5.5])


@pytest.mark.parametrize("size", [1, 10, 128])
def test_it_is_bias_over_mean_squared_error_of_a_batch(size):
    """A constant difference of 0.4: bias² = 0.16, and the variance of a batch is the sample variance over its size."""
    gradient = statistics_of(along(*(TARGET + 0.4)), target=along(*TARGET), prompts_per_batch=size)
    expected = 0.16 / (0.16 + np.var(TARGET, ddof=1) / size)
    assert bias_share(gradient).with_interval(0.95)[0] == pytest.approx(expected, rel=1e-12)


def test_the_target_itself_has_none():
    gradient = statistics_of(along(*TARGET), target=along(*TARGET))
    assert bias_share(gradient).with_interval(0.95) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)


def test_an_unbiased_estimate_may_be_negative():
    changed = TARGET - np.array([0.5, -0.5, 0.5, -0.5, 0.0])
    value, low, _ = bias_share(
        statistics_of(along(*changed), target=along(*TARGET), prompts_per_batch=1)
    ).with_interval(0.95)
    assert value == pytest.approx(-0.05 / (np.var(changed, ddof=1) - 0.05), rel=1e-12)
    assert low == 0.0


def test_without_a_target_it_is_not_known():
    assert np.isnan(bias_share(statistics_of(along(*TARGET))).with_interval(0.95)).all()


TARGET_OF_COSINE = [[[5.0, 0.1]], [[6.0, -0.1]], [[5.5, 0.2]], [[6.5, -0.2]]]
ROTATION = np.array([[0.6, 0.8], [-0.8, 0.6]])


def test_it_is_that_of_the_expectations():
    rotated = [np.array(groups) @ ROTATION for groups in TARGET_OF_COSINE]
    assert cosine(statistics_of(rotated, target=TARGET_OF_COSINE)).with_interval(0.95)[0] == pytest.approx(
        0.6, abs=0.02
    )


def test_a_multiple_of_the_target_has_a_cosine_of_one_without_error():
    value, low, high = cosine(
        statistics_of([[[0.1 * x, 0.1 * y]] for [[x, y]] in TARGET_OF_COSINE], target=TARGET_OF_COSINE)
    ).with_interval(0.95)
    assert (value, low, high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)


def test_no_completion_is_paired_with_itself():
    """Noise that both share and whose expectation is 0 does not make a cosine."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(400, 3)) * [0.0, 1.0, 1.0]
    first = [[noise + np.array([1.0, 0.0, 0.0])] for noise in shared]
    second = [[noise + np.array([1.0, 1.0, 0.0])] for noise in shared]
    value, low, high = cosine(statistics_of(first, target=second)).with_interval(0.99)
    assert low < np.sqrt(0.5) < high
    assert value < 0.9


def test_no_value_is_given_without_a_target_or_a_signal():
    assert np.isnan(cosine(statistics_of(TARGET_OF_COSINE)).with_interval(0.95)).all()
    noise = [[[1.0, 0.0]], [[-1.0, 0.0]], [[0.5, 0.2]], [[-0.6, 0.3]]]
    value, low, high = cosine(statistics_of(noise, target=TARGET_OF_COSINE)).with_interval(0.95)
    assert np.isnan(value)
    assert (low, high) == (-1.0, 1.0)


ESTIMATORS = ["rloo", "token_mean", "grpo", "length_weighted(alpha=1.0)"]


def rows(names):
    batch, scores = correlated_batch(60, 4)
    return quietly(compare, batch, names, scores + 2.0 * batch.rewards[:, None]).rows


def test_they_contain_those_of_each_row_alone():
    for name in ("cosine", "matched_bias_share"):
        estimates = [getattr(row, name) for row in rows(ESTIMATORS)]
        together = fieller_simultaneous(estimates, 0.9)
        wider = 0
        for one, (low, high) in zip(estimates, together, strict=True):
            alone = one.with_interval(0.9)
            assert low <= alone[1] <= alone[2] <= high
            wider += high - low > alone[2] - alone[1] + 1e-9
        assert wider >= len(ESTIMATORS) - 1  # rloo is the target: what is known exactly has one interval


def test_what_is_not_estimated_is_nan():
    (low, high), _ = fieller_simultaneous([NOT_ESTIMATED, rows(["grpo"])[0].cosine], 0.95)
    assert np.isnan([low, high]).all()


def test_independent_groups_have_wilsons_interval():
    """Ten of twenty, with the standard error of a mean of independent groups (ddof 1): n_eff = 19."""
    value, low, high = kept_share(np.repeat([0.0, 1.0], 10)).with_interval(0.95)
    n, z = 19.0, 1.959963984540054
    margin = z * np.sqrt(0.25 / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    assert (value, low, high) == pytest.approx((0.5, 0.5 - margin, 0.5 + margin), rel=1e-9)


def test_a_share_of_all_or_none_has_an_interval_too():
    value, low, high = kept_share(np.ones(20)).with_interval(0.95)
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(20 / (20 + 1.959963984540054**2), rel=1e-9)
    value, low, high = kept_share(np.zeros(20)).with_interval(0.95)
    assert (value, low) == (0.0, 0.0)
    assert high < 0.2


RNG = np.random.default_rng(0)
TARGET_OF_MATCHED_BIAS_SHARE = RNG.normal(size=(30, 3)) + np.array([3.0, 1.0, 0.0])


def pairs_mean(first: np.ndarray, second: np.ndarray) -> float:
    """The mean of ⟨a_m, b_m'⟩ over m ≠ m', by a loop."""
    m = len(first)
    return sum(float(first[i] @ second[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))


def turned(gradients: np.ndarray, target: np.ndarray) -> float:
    """‖E g‖²‖G‖² − ⟨E g, G⟩², 0 where they point the same way."""
    cross = pairs_mean(gradients, target)
    return pairs_mean(gradients, gradients) * pairs_mean(target, target) - cross**2


@pytest.mark.parametrize("size", [1, 10, 128])
def test_against_loops(size: int):
    gradients = 0.3 * TARGET_OF_MATCHED_BIAS_SHARE + 0.2 * RNG.normal(size=(30, 3)) + np.array([0.0, 0.0, 0.8])
    statistics = statistics_of(gradients[:, None], target=TARGET_OF_MATCHED_BIAS_SHARE[:, None], prompts_per_batch=size)
    value, low, high = matched_bias_share(statistics).with_interval(0.95)
    kept = [np.flatnonzero(np.arange(30) - m) for m in range(30)]
    replicates = [turned(gradients[rows], TARGET_OF_MATCHED_BIAS_SHARE[rows]) for rows in kept]
    bias_sq = 30 * turned(gradients, TARGET_OF_MATCHED_BIAS_SHARE) - 29 * np.mean(replicates)
    signal, target_sq = (
        pairs_mean(gradients, gradients),
        pairs_mean(TARGET_OF_MATCHED_BIAS_SHARE, TARGET_OF_MATCHED_BIAS_SHARE),
    )
    trace_cov = float(np.mean(np.sum(gradients**2, axis=1))) - signal
    assert value == pytest.approx(bias_sq / (bias_sq + trace_cov * target_sq / size), rel=1e-9)
    assert 0 <= low <= value <= high <= 1


def test_scale_does_not_enter():
    gradients = TARGET_OF_MATCHED_BIAS_SHARE + np.array([0.0, 0.0, 1.0]) + RNG.normal(size=(30, 3))
    one, other = (
        matched_bias_share(
            statistics_of(scale * gradients[:, None], target=TARGET_OF_MATCHED_BIAS_SHARE[:, None])
        ).with_interval(0.9)
        for scale in (1.0, 0.01)
    )
    assert one == pytest.approx(other, rel=1e-9)
    assert one[0] > 0.1


def test_a_multiple_of_the_target_has_none():
    for known in (None, 0.125):
        statistics = statistics_of(
            0.125 * TARGET_OF_MATCHED_BIAS_SHARE[:, None], target=TARGET_OF_MATCHED_BIAS_SHARE[:, None], scale=known
        )
        assert matched_bias_share(statistics).with_interval(0.95) == pytest.approx((0, 0, 0), abs=1e-12)


def test_rounding_is_not_shown_as_bias():
    """A multiple whose factor is not a power of two: rounding would otherwise be printed, outside its interval even."""
    for known in (None, 0.7):
        statistics = statistics_of(
            0.7 * TARGET_OF_MATCHED_BIAS_SHARE[:, None], target=TARGET_OF_MATCHED_BIAS_SHARE[:, None], scale=known
        )
        assert matched_bias_share(statistics).with_interval(0.95) == (0.0, 0.0, 0.0)


def test_a_known_scale_needs_no_resolved_target():
    noise = RNG.normal(size=(30, 3))
    unresolved = statistics_of(noise[:, None] + 0.1, target=noise[:, None])
    value, low, high = matched_bias_share(unresolved).with_interval(0.95)
    assert np.isnan(value)
    assert (low, high) == (0.0, 1.0)
    known = statistics_of(noise[:, None] + 0.1, target=noise[:, None], scale=1.0)
    value, low, high = matched_bias_share(known).with_interval(0.95)
    assert low <= value <= high
    # With c = 1 it is the share of bias itself: a constant difference of (0.1, 0.1, 0.1).
    trace_cov = float(np.mean(np.sum((noise + 0.1) ** 2, axis=1))) - pairs_mean(noise + 0.1, noise + 0.1)
    assert value == pytest.approx(0.03 / (0.03 + trace_cov / 10), rel=1e-9)


def test_one_dimension_has_no_direction():
    """What the estimated scale brings there is bias alone, which is taken off to the next order in 1/M."""
    rng = np.random.default_rng(1)
    target = 5.0 + rng.normal(size=60)
    statistics = statistics_of(along(*(target + 2.0)), target=along(*target), prompts_per_batch=1)
    plain = (statistics.signal - statistics.target.cross * statistics.target.cross / statistics.target.signal).value
    value, low, _ = matched_bias_share(statistics).with_interval(0.95)
    assert abs(value) < 0.1 * abs(plain / statistics.trace_cov.value)
    assert low == 0.0


def test_without_a_target_it_is_not_known_of_matched_bias_share():
    assert np.isnan(matched_bias_share(statistics_of(TARGET_OF_MATCHED_BIAS_SHARE[:, None])).with_interval(0.95)).all()


FIRST, SECOND = np.array([5.0, 6.0, 5.0, 6.0, 5.5]), np.array([9.0, 10.0, 12.0, 10.0, 11.0])


def of(first, **keywords):
    """One gradient beside the second, which is reference and target."""
    return statistics_of(along(*first), along(*SECOND), along(*SECOND), **keywords)


def mean_over_pairs(first, second):
    return np.mean([first[i] * second[j] for i in range(5) for j in range(5) if i != j])


def test_it_is_the_ratio_after_scaling_onto_the_reference():
    coefficient = mean_over_pairs(FIRST, SECOND) / mean_over_pairs(SECOND, SECOND)
    expected = np.var(FIRST) / np.var(SECOND) / coefficient**2
    found = matched_ratio(of(FIRST)).with_interval(0.95)
    assert found[0] == pytest.approx(expected, rel=1e-12)
    assert found[1] < found[0] < found[2]


def test_it_depends_neither_on_scale_nor_on_sign():
    expected = matched_ratio(of(FIRST)).with_interval(0.95)
    for factor in (0.3, -0.3):
        found = matched_ratio(of(factor * FIRST)).with_interval(0.95)
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_known_coefficient_takes_the_place_of_the_estimate():
    value, low, high = matched_ratio(of(FIRST, known=0.5)).with_interval(0.95)
    assert value == pytest.approx(4 * np.var(FIRST) / np.var(SECOND), rel=1e-12)
    assert low < value < high
    assert np.isnan(matched_ratio(of(FIRST, known=0.0)).with_interval(0.95)).all()


def test_a_ray_without_a_value_is_given_where_the_projection_is_not_resolved():
    rng = np.random.default_rng(0)
    target = along(*(5.0 + rng.normal(size=60)))
    value, low, high = matched_ratio(statistics_of(along(*rng.normal(size=60)), target, target)).with_interval(0.95)
    assert np.isnan(value)
    assert low > 0
    assert high == np.inf
    assert np.isnan(matched_ratio(statistics_of(target)).with_interval(0.95)).all()
    assert np.isnan(matched_ratio(statistics_of(target, target)).with_interval(0.95)).all()


def test_both_scales_are_along_the_target():
    """Estimator and reference project on a third gradient."""
    third = np.array([7.0, 8.0, 7.5, 7.0, 8.5])
    scale = mean_over_pairs(FIRST, third) / mean_over_pairs(SECOND, third)
    found = matched_ratio(statistics_of(along(*FIRST), along(*SECOND), along(*third))).with_interval(0.95)
    assert found[0] == pytest.approx(np.var(FIRST) / np.var(SECOND) / scale**2, rel=1e-12)


def test_what_ranks_estimators_is_the_matched_ratio_up_to_a_common_factor():
    values = [matched_trace_cov(of(first)).value for first in (FIRST, SECOND)]
    ratio = matched_ratio(of(FIRST)).with_interval(0.95)[0]
    assert values[0] / values[1] == pytest.approx(ratio, rel=1e-12)
    halved = matched_trace_cov(statistics_of(along(*FIRST), along(*SECOND), known=0.5))
    assert halved.value == pytest.approx(4 * np.var(FIRST, ddof=1), rel=1e-12)


LEVEL = 0.9


def of_of_matched_ratio_simultaneous(first, second, **keywords):
    """One gradient beside another, which is reference and target."""
    return matched_ratio(statistics_of(along(*first), along(*second), along(*second), **keywords))


def gradients(rng, n=60, mean=3.0):
    return mean + rng.normal(size=n)


def test_of_known_scales_they_are_those_of_the_ratios_scaled():
    rng = np.random.default_rng(0)
    base = gradients(rng)
    rows = [of_of_matched_ratio_simultaneous(gradients(rng), base, known=known) for known in (1.0, 0.5)]
    plain = ratio_simultaneous([row.ratio for row in rows], LEVEL)
    found = matched_ratio_simultaneous(rows, LEVEL)
    assert found[0] == pytest.approx(plain[0])
    assert found[1] == pytest.approx([4 * end for end in plain[1]])


def test_they_contain_the_single_sets_and_widen_with_the_number_of_rows():
    rng = np.random.default_rng(1)
    base = gradients(rng)
    rows = [of_of_matched_ratio_simultaneous(gradients(rng), base, known=known) for known in (None, 1.0, None, None)]
    few, many = matched_ratio_simultaneous(rows[:1], LEVEL), matched_ratio_simultaneous(rows, LEVEL)
    for row, (low, high) in zip(rows, many, strict=True):
        _, alone_low, alone_high = row.with_interval(LEVEL)
        assert low < alone_low < alone_high < high
    assert many[0][0] < few[0][0] < few[0][1] < many[0][1]


def test_what_is_exact_or_unknown_takes_no_part():
    rng = np.random.default_rng(2)
    base = gradients(rng)
    rows = [
        of_of_matched_ratio_simultaneous(gradients(rng), base),
        of_of_matched_ratio_simultaneous(gradients(rng), base, known=1.0),
    ]
    zero = of_of_matched_ratio_simultaneous(gradients(rng), base, known=0.0)
    found = matched_ratio_simultaneous(
        [
            of_of_matched_ratio_simultaneous(base, base),
            of_of_matched_ratio_simultaneous(2 * base, base),
            NOT_ESTIMATED,
            zero,
            *rows,
        ],
        LEVEL,
    )
    assert found[0] == pytest.approx((1.0, 1.0))
    assert found[1] == pytest.approx((1.0, 1.0))
    assert np.isnan(found[2:4]).all()
    assert found[4] == pytest.approx(matched_ratio_simultaneous(rows, LEVEL)[0])
    assert np.isnan(matched_ratio_simultaneous([NOT_ESTIMATED], LEVEL)).all()


def test_a_ray_stays_a_ray():
    rng = np.random.default_rng(3)
    low, high = matched_ratio_simultaneous(
        [of_of_matched_ratio_simultaneous(gradients(rng, mean=0.0), gradients(rng))], LEVEL
    )[0]
    assert low >= 0
    assert high == np.inf


@pytest.mark.slow
def test_all_of_a_table_hold_at_the_stated_rate():
    """Six estimated scales, 300 data sets, error of a share 0.013; single sets hold together less often."""
    rng, together, alone = np.random.default_rng(4), 0, 0
    scales, spreads = np.linspace(0.5, 2.0, 6), np.linspace(0.7, 1.5, 6)
    for _ in range(300):
        base = gradients(rng, 80)
        rows = [
            of_of_matched_ratio_simultaneous(scale * (3.0 + spread * rng.normal(size=80)), base)
            for scale, spread in zip(scales, spreads, strict=True)
        ]
        sets = matched_ratio_simultaneous(rows, 0.95)
        together += all(low <= spread**2 <= high for (low, high), spread in zip(sets, spreads, strict=True))
        singles = [row.with_interval(0.95) for row in rows]
        alone += all(low <= spread**2 <= high for (_, low, high), spread in zip(singles, spreads, strict=True))
    assert 0.92 <= together / 300 <= 0.99
    assert alone / 300 < 0.9


def test_the_heaviest_gradient_counts_most():
    assert most_influential_prompt(statistics_of(along(1e-3, 1e3, -1e-3, 1e-3))) == 1


def test_a_gradient_near_the_mean_does_not_although_it_is_large():
    # About their mean of 9 the gradients lie at 1, 1, 1 and -3: the smallest is the one that spreads them.
    assert most_influential_prompt(statistics_of(along(10.0, 10.0, 10.0, 6.0))) == 3


def test_equal_gradients_are_worth_their_number_and_one_that_dominates_is_worth_one():
    assert n_effective_prompts(statistics_of(along(1, -1, 1, -1))) == pytest.approx(4.0, rel=1e-12)
    heavy = statistics_of(along(1e-3, 1e3, -1e-3, 1e-3))
    assert n_effective_prompts(heavy) == pytest.approx(1.0, rel=1e-9)


def test_what_it_is_compared_with_counts_as_well():
    even, heavy = along(1, -1, 1, -1), along(1e-3, 1e3, -1e-3, 1e-3)
    assert n_effective_beside(statistics_of(even)) == np.inf
    assert n_effective_beside(statistics_of(even, even, heavy)) < 2.0 < n_effective_beside(statistics_of(even, even))


def test_several_groups_of_a_prompt_count_once():
    statistics = statistics_of([[[1.0], [-1.0]], [[2.0], [0.0]], [[0.0], [0.0]]])
    squares = np.array([1.0, 2.0, 0.0])
    assert n_effective_prompts(statistics) == pytest.approx(squares.sum() ** 2 / (squares**2).sum(), rel=1e-12)


def test_the_frame_names_the_prompt_and_a_note_says_what_follows():
    batch, scores = interleaved_batch([4] * 80)
    at = batch.groups == "p007"
    scores[at] *= 40.0
    result = quiet_compare(batch.with_fields(sq_norms=(scores**2).sum(axis=1)), ["reinforce", "grpo"], scores)
    frame = result.to_frame()
    assert set(frame["most_influential_prompt"]) == {"p007"}
    assert (frame["n_effective_prompts"] < 2).all()
    text = " ".join(result.notes)
    assert "(prompt p007 counts most), and about 50 are needed" in text
    assert "intervals of reinforce and grpo may be too narrow" in text
    assert "80 prompts count as 1 effective prompts" in text
    alone = quiet_compare(batch, ["reinforce"], scores, reference="reinforce").notes
    assert "intervals of reinforce may be too narrow" in " ".join(alone)


def test_even_gradients_get_no_note():
    rng = np.random.default_rng(0)
    batch, _ = interleaved_batch([4] * 200)
    batch = batch.with_fields(rewards=np.ones(800))
    result = quiet_compare(batch, ["reinforce"], rng.choice([-1.0, 1.0], size=(800, 50)), reference="reinforce")
    assert not any("effective prompts" in note for note in result.notes)


def test_it_is_variance_over_signal():
    values = np.array([5.0, 6.0, 5.0, 6.0, 5.5])
    pairs = (values.sum() ** 2 - (values**2).sum()) / 20
    value, low, high = noise_to_signal(statistics_of(along(*values))).with_interval(0.95)
    assert value == pytest.approx(np.var(values, ddof=1) / pairs, rel=1e-12)
    assert 0 < low < value < high


def test_it_does_not_depend_on_the_unit():
    values = np.array([5.0, 6.0, 5.0, 6.0, 5.5])
    expected = noise_to_signal(statistics_of(along(*values))).with_interval(0.95)
    assert noise_to_signal(statistics_of(along(*(7 * values)))).with_interval(0.95) == pytest.approx(expected)


def test_without_a_resolved_signal_only_the_lower_end_is_known():
    noise = np.random.default_rng(0).normal(size=60)
    value, low, high = noise_to_signal(statistics_of(along(*noise))).with_interval(0.95)
    assert np.isnan(value)
    assert low > 0
    assert high == np.inf


def test_it_is_paired_prompt_by_prompt():
    first, second = np.array([3.0, 1.0, 2.0, 7.0]), np.array([1.0, 1.0, 2.0, 5.0])
    without = [np.var(np.delete(first, m), ddof=1) / np.var(np.delete(second, m), ddof=1) for m in range(4)]
    estimate = ratio(statistics_of(along(*first), along(*second)))
    assert estimate.value == pytest.approx(np.var(first) / np.var(second), rel=1e-13)
    logs = np.log(without)
    assert estimate.stderr == pytest.approx(np.sqrt(0.75 * np.sum((logs - logs.mean()) ** 2)), rel=1e-12)


def test_a_multiple_of_the_reference_has_the_square_of_the_factor_without_error():
    estimate = ratio(statistics_of(along(3, 1, 2, 7), along(6, 2, 4, 14)))
    assert estimate.value == pytest.approx(0.25, rel=1e-14)
    assert estimate.stderr == pytest.approx(0.0, abs=1e-14)


def test_without_a_reference_it_is_not_known():
    assert np.isnan(ratio(statistics_of(along(3, 1, 2))).with_interval(0.95)).all()


def ratios_of(rng, truths, n=60):
    base = np.exp(0.5 * rng.normal(size=n))
    tops = [truth * np.exp(0.5 * rng.normal(size=n)) for truth in truths]
    return [studentised_ratio(mean_statistic(top), mean_statistic(base)) for top in tops]


def test_they_contain_the_intervals_of_single_ratios():
    ratios = ratios_of(np.random.default_rng(0), [1.0, 2.0, 0.5])
    for one, (low, high) in zip(ratios, ratio_simultaneous(ratios, 0.9), strict=True):
        alone = one.confidence_interval(0.9)
        assert low <= alone[0] < alone[1] <= high
    assert ratio_simultaneous(ratios[:1], 0.9)[0] == pytest.approx(ratios[0].confidence_interval(0.9))


def test_exact_ratios_and_unknown_ones_take_no_part():
    ratios = ratios_of(np.random.default_rng(0), [1.0, 2.0])
    values = np.exp(np.random.default_rng(1).normal(size=60))
    exact = studentised_ratio(mean_statistic(2 * values), mean_statistic(values))
    together = ratio_simultaneous([exact, *ratios, NOT_ESTIMATED], 0.95)
    assert together[0] == (2.0, 2.0)
    assert together[1:3] == ratio_simultaneous(ratios, 0.95)
    assert np.isnan(together[3]).all()


def test_all_of_a_table_hold_at_the_stated_rate_of_ratio_simultaneous():
    """Eight ratios, 400 data sets, error of a share 0.011; single intervals hold together far less often."""
    rng, truths = np.random.default_rng(1), np.linspace(0.5, 2.0, 8)
    together, alone = 0, 0
    for _ in range(400):
        ratios = ratios_of(rng, truths)
        together += all(
            low <= truth <= high for truth, (low, high) in zip(truths, ratio_simultaneous(ratios, 0.95), strict=True)
        )
        alone += all(
            one.confidence_interval(0.95)[0] <= truth <= one.confidence_interval(0.95)[1]
            for truth, one in zip(truths, ratios, strict=True)
        )
    assert 0.93 <= together / 400 <= 0.99
    assert alone / 400 < 0.88


def test_it_is_the_mean_over_pairs_of_different_prompts():
    assert signal_sq(statistics_of(along(3, 1, 2))).value == pytest.approx((3 * 1 + 3 * 2 + 1 * 2) / 3, rel=1e-14)


def test_it_may_be_negative_of_signal_sq():
    assert signal_sq(statistics_of(along(1, -1, 0))).value == pytest.approx(-1 / 3, rel=1e-14)


def test_resolved_means_that_the_interval_lies_above_zero():
    assert is_resolved(Estimate(1.0, 0.4, "raw", np.inf), 0.95)
    assert not is_resolved(Estimate(1.0, 0.6, "raw", np.inf), 0.95)
    assert is_resolved(Estimate(1.0, 0.6, "raw", np.inf), 0.8)


def test_one_group_a_prompt_gives_the_sample_variance():
    assert trace_cov(statistics_of(along(3, 1, 2))).value == pytest.approx(1.0, rel=1e-14)
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    expected = np.trace(np.cov(vectors.T))
    assert trace_cov(statistics_of([[v] for v in vectors])).value == pytest.approx(expected, rel=1e-13)


def test_its_interval_is_the_jackknife_of_the_logarithm():
    values = np.array([3.0, 1.0, 2.0, 7.0])
    without = np.log([np.var(np.delete(values, m), ddof=1) for m in range(4)])
    expected = np.sqrt(3 / 4 * np.sum((without - without.mean()) ** 2))
    estimate = trace_cov(statistics_of(along(*values)))
    assert estimate.scale == "log"
    assert estimate.stderr == pytest.approx(expected, rel=1e-12)


def by_loops(first, second, signs, left_out=None):
    kept = [m for m in range(len(first)) if m != left_out]
    width = min(first.shape[1], second.shape[1])
    products = [sum(signs[d] * first[i, d] * second[j, d] for d in range(width)) for i in kept for j in kept if i != j]
    return np.mean(products)


@pytest.mark.parametrize("signed", [False, True])
def test_equals_loops_with_and_without_each_unit(signed):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(5, 3)), rng.normal(size=(5, 4))
    signs = np.array([1.0, -1.0, 1.0, -1.0]) if signed else np.ones(4)
    value, without = mean_over_pairs_for_u_statistic(first, second, signs if signed else None)
    assert value == pytest.approx(by_loops(first, second, signs))
    np.testing.assert_allclose(without, [by_loops(first, second, signs, left_out) for left_out in range(5)])


def test_leading_axes_are_separate_sets_of_units():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3))
    values, without = mean_over_pairs_for_u_statistic(first, second)
    for k in range(2):
        value, rest = mean_over_pairs_for_u_statistic(first[k], second[k])
        assert values[k] == pytest.approx(float(value))
        np.testing.assert_allclose(without[k], rest)


def test_two_units_have_a_value_and_no_replicates():
    vectors = np.array([[1.0, 2.0], [3.0, -1.0]])
    value, without = mean_over_pairs_for_u_statistic(vectors, vectors)
    assert value == pytest.approx(1.0)
    assert np.isnan(without).all()


def test_it_is_the_mean_of_the_sample_variances_of_prompts():
    gradients = [[[1.0], [3.0]], [[0.0], [4.0]], [[2.0], [2.5]]]
    expected = np.mean([2.0, 8.0, 0.125])
    assert within_prompt(statistics_of(gradients)).value == pytest.approx(expected, rel=1e-13)


def test_single_groups_leave_it_unknown_of_within_prompt():
    assert np.isnan(within_prompt(statistics_of(along(1, 2, 3))).value)
