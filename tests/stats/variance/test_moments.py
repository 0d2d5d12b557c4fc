"""Moments of groups against loops, and batch-level estimators against complete enumeration of the deals."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from comparison_batches import correlated_batch, interleaved_batch, quiet_compare, quietly
from scipy import stats

from gradstats import estimators as est
from gradstats.analyses.variance import compare
from gradstats.plots.names import rows_of_one_unit
from gradstats.reference import EnumeratedPolicy
from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.moments import (
    DealtDifferences,
    SignalComponents,
    mean_over_pairs,
    prompt_moments,
    shuffled_deals,
    signal_components,
    split_into_groups,
)
from gradstats.stats.variance.quantities import VARIANCE_COMPONENTS
from gradstats.stats.variance.scores import Scores


def test_groups_are_split_in_sample_order():
    groups = split_into_groups(np.array([0, 0, 1, 0, 1, 1, 0]), np.arange(7)[::-1], 2)
    np.testing.assert_array_equal(groups.rows, [6, 3, 1, 0, 5, 4])
    np.testing.assert_array_equal(groups.group, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(groups.prompt, [0, 0, 1])
    assert groups.n_leftover == 1


def by_loops(first, second, signs, left_out=None):
    """The mean of ⟨a_m, b_m'⟩ over m ≠ m' with a signature, in the coordinates that both have."""
    kept = [m for m in range(len(first)) if m != left_out]
    width = min(first.shape[1], second.shape[1])
    return np.mean([(signs[:width] * first[i, :width]) @ second[j, :width] for i in kept for j in kept if i != j])


@pytest.mark.parametrize("signed", [False, True])
def test_the_u_statistic_equals_loops_with_and_without_each_unit(signed):
    """Leading axes are separate sets of units."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 4))
    signs = np.array([1.0, -1.0, 1.0, -1.0]) if signed else np.ones(4)
    values, without = mean_over_pairs(first, second, signs if signed else None)
    for k in range(2):
        assert values[k] == pytest.approx(by_loops(first[k], second[k], signs))
        expected = [by_loops(first[k], second[k], signs, left_out) for left_out in range(5)]
        np.testing.assert_allclose(without[k], expected)
    value, without = mean_over_pairs(*[first[:, :2]] * 2)  # two units have a value and no replicates
    np.testing.assert_allclose(value, (first[:, 0] * first[:, 1]).sum(axis=1))
    assert np.isnan(without).all()


@pytest.mark.parametrize("group_size", [None, 2])
def test_moments_equal_loops_over_prompts(group_size):
    """E‖g‖², ‖E g‖² and the variance within prompts, and their values without each prompt."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(5), 4)
    groups = split_into_groups(prompts, np.arange(20), group_size)
    scores, weights, surplus = rng.normal(size=(20, 3)), rng.normal(size=20), rng.random(20)
    moments = prompt_moments(scores, weights, groups, surplus)

    def by_loops(kept):
        squares, means, within = [], [], []
        for prompt in kept:
            members = [np.flatnonzero(groups.group == g) for g in np.flatnonzero(groups.prompt == prompt)]
            gradients = [weights[rows] @ scores[rows] for rows in members]
            extra = [weights[rows] ** 2 @ surplus[rows] for rows in members]
            squares.append(np.mean([g @ g + e for g, e in zip(gradients, extra, strict=True)]))
            means.append(np.mean(gradients, axis=0))
            deviations = [g - means[-1] for g in gradients]
            if len(gradients) > 1:
                within.append(sum(d @ d for d in deviations) / (len(gradients) - 1) + np.mean(extra))
        pairs = [a @ b for i, a in enumerate(means) for j, b in enumerate(means) if i != j]
        return np.mean(squares), np.mean(pairs), np.mean(within) if within else np.nan

    names = ("second_moment", "signal") if group_size is None else ("second_moment", "signal", "within")
    assert (moments.within is None) == (group_size is None)
    for position, name in enumerate(names):
        statistic = getattr(moments, name)
        assert statistic.value == pytest.approx(by_loops(range(5))[position])
        without = [by_loops([p for p in range(5) if p != left])[position] for left in range(5)]
        np.testing.assert_allclose(statistic.replicates, without)


@pytest.mark.parametrize("reference", ["rloo", "recipe"])
def test_variance_components_are_read_in_the_same_unit_as_the_comparison(reference):
    """Both frames of a comparison keep the rows in the unit of its reference, in a frame by themselves as well."""
    batch, scores = correlated_batch(n_prompts=12, size=8)
    recipe = est.Recipe("group_mean", scale="group_std", name="mine")  # no label of the registry names its unit
    chosen = {"rloo": est.get("rloo"), "recipe": recipe}
    result = quietly(compare, batch, list(chosen.values()), scores, group_size=4, reference=chosen[reference])
    components, compared = result.variance_components(0.9), result.to_frame(0.9)
    assert components.attrs.items() <= compared.attrs.items()
    assert components.attrs["reference"] == chosen[reference].label
    assert components.attrs["confidence_level"] == 0.9
    pd.testing.assert_series_equal(components["unit"], compared["unit"])
    for frame in (components, compared):
        assert rows_of_one_unit(frame, VARIANCE_COMPONENTS)[0]["estimator"].to_list() == [chosen[reference].label]


def test_variance_components_need_two_groups_of_a_prompt():
    batch, scores = correlated_batch(n_prompts=12, size=4)
    with pytest.raises(ValueError, match="every prompt has a single group.*at most half"):
        quietly(compare, batch, ["rloo"], scores).variance_components()


def test_the_parts_are_the_means_over_distinct_prompts():
    """Every pair, triple and quadruple of six prompts, one by one."""
    g = np.random.default_rng(0).normal(size=(6, 3)) + 0.5
    gram = g @ g.T
    parts = signal_components(g)
    pairs = list(permutations(range(6), 2))
    assert parts.mean == pytest.approx(np.mean([gram[m, k] for m, k in pairs]), rel=1e-12)
    mean_sq = np.mean([gram[a, b] * gram[c, d] for a, b, c, d in permutations(range(6), 4)])
    triples = np.mean([gram[a, b] * gram[a, c] for a, b, c in permutations(range(6), 3)])
    assert parts.linear == pytest.approx(triples - mean_sq, rel=1e-9)
    assert parts.quadratic == pytest.approx(
        np.mean([gram[m, k] ** 2 for m, k in pairs]) - mean_sq - 2 * parts.linear, rel=1e-9
    )
    cubes = np.mean([gram[a, b] * gram[b, c] * gram[c, a] for a, b, c in permutations(range(6), 3)])
    squares = np.mean([gram[m, k] ** 2 for m, k in pairs])
    assert parts.skewness == pytest.approx(8.0 * cubes / (2.0 * squares) ** 1.5, rel=1e-9)


def test_inner_products_may_have_a_signature():
    """⟨a, b⟩ = a₁b₁ − a₂b₂, as coordinates of positive and negative eigenvalues have it."""
    g, signs = np.random.default_rng(0).normal(size=(7, 2)), np.array([1.0, -1.0, 1.0])
    gram = g @ np.diag(signs[:2]) @ g.T
    assert signal_components(g, signs).mean == pytest.approx((gram.sum() - np.trace(gram)) / 42, rel=1e-12)


def test_few_and_many_prompts():
    g = np.random.default_rng(0).normal(size=(600, 3))
    assert signal_components(g[:3]) is None
    assert signal_components(g) == signal_components(g[:512]) != signal_components(g[:511])


def test_prompts_to_resolve_by_hand():
    """With δ = 0 the size is 4ζ((z + z₀.₈)/s)², with ζ = 0 it is (z√4δ + z₀.₈√2δ)/s."""
    z, z_80 = stats.norm.ppf([0.975, 0.8])
    linear, quadratic = SignalComponents(0.2, 3.0, -1.0), SignalComponents(0.2, -1.0, 8.0)
    assert linear.prompts_to_resolve(0.2, 0.2, 0.95) == np.ceil(12 * ((z + z_80) / 0.2) ** 2)
    assert quadratic.prompts_to_resolve(0.2, 0.2, 0.95) == np.ceil((z * np.sqrt(32) + z_80 * 4) / 0.2)
    half = linear.prompts_to_resolve(0.1, 0.2, 0.95)  # ζ in proportion to the signal
    assert half == np.ceil(6 * ((z + z_80) / 0.1) ** 2)
    assert linear.prompts_to_resolve(-0.1, -0.1, 0.95) == np.inf


def batch_level(name):
    """A group-level estimator that claims to be batch-level."""
    local = est.get(name)
    return est.Estimator(replace(local.definition, across_groups=lambda parameters: True), local.parameters)


def all_deals(n_prompts, prompts_per_batch):
    """Every way to put the prompts into disjoint batches, in every order of batches."""
    n_batches = n_prompts // prompts_per_batch
    deals = set()
    for order in permutations(range(n_prompts), n_batches * prompts_per_batch):
        batches = [tuple(sorted(order[at : at + prompts_per_batch])) for at in range(0, len(order), prompts_per_batch)]
        deals.add(tuple(batches))
    return np.array(sorted(deals)).reshape(len(deals), -1)


def enumerated(batch, scores, estimator, size, max_norm=np.inf):
    """Second moment of a batch's gradient and ‖E g‖², averaged over every batch and every pair of disjoint ones."""
    m = batch.n_groups
    found = {}
    for members in {tuple(sorted(order[:size])) for order in permutations(range(m), size)}:
        rows = np.flatnonzero(np.isin(batch.group_index, members))
        gradient = estimator.weights(batch.select(rows)) @ scores[rows] / size
        found[members] = gradient * min(1.0, max_norm / max(np.linalg.norm(gradient), 1e-300))
    second = np.mean([gradient @ gradient for gradient in found.values()])
    pairs = [found[a] @ found[b] for a in found for b in found if not set(a) & set(b)]
    return second, np.mean(pairs)


@pytest.mark.parametrize(
    ("name", "max_norm"),
    [(name, np.inf) for name in ("batch_mean", "james_stein", "token_mean(scope=batch)")]
    + [("rloo", 1.5), ("batch_mean", 2.0)],
)
@pytest.mark.parametrize(("n_prompts", "n_deals"), [(7, 630), (6, 90)])
def test_all_deals_give_the_enumeration_and_its_delete_one_replicates(name, max_norm, n_prompts, n_deals):
    """Seven prompts in batches of two: one prompt is left out of each of the 630 deals."""
    batch, scores = interleaved_batch([3, 2, 4, 2, 3, 2, 3][:n_prompts], dim=4, signal=0.5)
    estimator = est.get(name)
    groups = split_into_groups(batch.group_index, np.arange(len(batch.rewards)), None)
    ordered = batch.select(groups.rows)
    prepared = Scores(scores[groups.rows], None, False, None)
    fixed = estimator.weights(ordered)
    moments = prompt_moments(prepared.sequence, fixed, groups)
    weights_of, rng = (lambda rows: estimator.weights(ordered.select(rows))), np.random.default_rng(0)
    dealt = DealtDifferences(weights_of, fixed, prepared, groups, 2, rng, max_norm=max_norm)
    deals = all_deals(n_prompts, 2)
    assert len(deals) == n_deals
    dealt.add(deals)
    second, signal = dealt.added_to([moments.second_moment.scaled(0.5) + moments.signal.scaled(0.5), moments.signal])
    expected = enumerated(batch, scores, estimator, 2, max_norm)
    np.testing.assert_allclose([second.value, signal.value], expected, rtol=1e-10)
    assert (0 < dealt.clipped_share < 1) == np.isfinite(max_norm)
    for left_out in range(n_prompts):
        rows = np.flatnonzero(batch.group_index != left_out)
        expected = enumerated(batch.select(rows), scores[rows], estimator, 2, max_norm)
        found = [second.replicates[left_out], signal.replicates[left_out]]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("group_size", [None, 2])
def test_a_group_level_estimator_declared_batch_level_gets_its_own_row(group_size):
    """Value and standard error to 1e-12, whatever the number of deals; a ratio of exactly 1 has no error."""
    batch, scores = interleaved_batch([4] * 42, signal=1.0)
    keywords = {"group_size": group_size, "n_resamples": 5, "prompts_per_batch": 10}

    def row_of(estimator, **others):
        return quiet_compare(batch, [estimator, "reinforce"], scores, **keywords, **others).rows[0]

    local, dealt = row_of("rloo"), row_of(batch_level("rloo"))
    for name in ("trace_cov", "signal_sq"):
        mine, theirs = getattr(dealt, name), getattr(local, name)
        assert (mine.value, mine.stderr) == pytest.approx((theirs.value, theirs.stderr), rel=1e-12)
    assert dealt.ratio.value == pytest.approx(1.0, rel=1e-13)
    assert dealt.ratio.stderr < 1e-13
    assert dealt.ratio.confidence_interval(0.95) == pytest.approx((1.0, 1.0), rel=1e-13)
    assert (dealt.n_deals, dealt.share_of_deals) == (5, pytest.approx(0.0, abs=1e-12))
    different, alone = (row_of(one, reference="reinforce") for one in (batch_level("token_mean"), "token_mean"))
    assert different.ratio.stderr == pytest.approx(alone.ratio.stderr, rel=1e-10)


def test_more_deals_leave_less_error_and_the_number_is_chosen_by_it():
    batch, scores = interleaved_batch([4] * 40)
    few, many = (quiet_compare(batch, ["batch_mean"], scores, n_resamples=number).rows[0] for number in (16, 512))
    assert (few.n_deals, many.n_deals) == (16, 512)
    assert many.share_of_deals < 0.3 * few.share_of_deals
    chosen = quiet_compare(batch, ["batch_mean"], scores)
    (row,) = chosen.rows
    assert row.share_of_deals <= 0.01 or row.n_deals == 512
    assert f"shuffled into new batches {row.n_deals} times" in " ".join(chosen.notes)


def test_the_scatter_of_few_deals_is_not_counted_as_spread_between_prompts():
    """Standard errors from 16 deals agree with those from 512 on average over seeds."""
    batch, scores = interleaved_batch([4] * 20)

    def stderr_of(number, seed=0):
        options = {"prompts_per_batch": 5, "n_resamples": number, "rng": seed}
        return quiet_compare(batch, ["batch_mean(loo=True)"], scores, **options).rows[0].ratio.stderr

    few = [stderr_of(16, seed) for seed in range(12)]
    assert np.sqrt(np.mean(np.square(few))) == pytest.approx(stderr_of(512), rel=0.15)


def test_many_small_batches_are_dealt_less_often(monkeypatch):
    """Each is weighted by itself, which takes time; one that stays within its group has its weights at once."""
    monkeypatch.setattr("gradstats.stats.variance.pools.MOST_WEIGHTED_BATCHES", 100 * 20)
    monkeypatch.setattr("gradstats.stats.variance.pools.SMALL_DEAL_SHARE", 0.0)
    batch, scores = interleaved_batch([2] * 40)
    keywords = {"prompts_per_batch": 2, "max_grad_norm": 1.0}
    of_batch, local = quiet_compare(batch, ["batch_mean", "rloo"], scores, **keywords).rows
    assert (of_batch.n_deals, local.n_deals) == (100, 512)


def test_the_share_of_bias_is_that_of_the_batch_that_is_dealt():
    """Batches of a quarter of the prompts, whose bias and variance belong together."""
    batch, scores = interleaved_batch([4] * 80, signal=3.0)
    dealt = quiet_compare(batch, [batch_level("grpo")], scores).to_frame().iloc[0]
    local = quiet_compare(batch, ["grpo"], scores, prompts_per_batch=20).to_frame().iloc[0]
    for end in ("", "_low", "_high"):
        assert dealt[f"bias_share{end}"] == pytest.approx(local[f"bias_share{end}"], rel=1e-9)
    # Prompts that no deal holds do not count as dropped groups.
    batch, scores = interleaved_batch([4] * 9)
    row = quiet_compare(batch, ["constant(b=optimal)"], scores, prompts_per_batch=4, n_resamples=1).rows[0]
    assert row.kept_share.value == 1.0


def test_a_batch_level_estimator_sees_whole_batches():
    batch, scores = interleaved_batch([4] * 24)
    sizes = []
    local = est.reinforce()

    def spy(inner):
        sizes.append((inner.n_groups, len(inner.rewards)))
        return inner.rewards - inner.rewards.mean()

    definition = replace(local.definition, function=spy, across_groups=lambda parameters: True)
    quiet_compare(batch, [est.Estimator(definition, {})], scores, prompts_per_batch=8, n_resamples=2)
    # All completions once, and two deals of three batches.
    assert sizes == [(24, 96)] + [(8, 32)] * 6


POLICY = EnumeratedPolicy(vocabulary=2, max_length=3, n_prompts=2, rng=4)


def clipping_norm(estimator, n_groups=2):
    """The norm that about half of the gradients of batches exceed."""
    return 0.5 * np.sqrt(POLICY.batch_moments(estimator, 2, n_groups).trace_cov)


@pytest.mark.parametrize("name", ["rloo", "recipe:grpo", "batch_mean(loo=True)"])
def test_clipped_gradients_against_enumeration(name):
    """The mean of 2 groups of 2, clipped to a norm that about half of the batches exceed."""
    estimator = est.get(name)
    norm = clipping_norm(estimator)
    exact = POLICY.batch_moments(estimator, 2, 2, max_grad_norm=norm)
    batch, _, token_scores = POLICY.sample(1000, 2, rng=1)
    found = quiet_compare(batch, [estimator], token_scores, prompts_per_batch=2, max_grad_norm=norm, n_resamples=16)
    row = found.to_frame(0.999).iloc[0]
    assert 0.2 < found.rows[0].clipped_share < 0.8
    truth = {
        "trace_cov": 2 * exact.trace_cov,
        "signal_sq": exact.signal_sq,
        "cosine": exact.cosine,
        "bias_share": exact.bias_share(1),
        "matched_bias_share": exact.matched_bias_share(1),
    }
    for quantity, value in truth.items():
        assert row[f"{quantity}_low"] <= value <= row[f"{quantity}_high"], quantity
    assert row["trace_cov"] == pytest.approx(2 * exact.trace_cov, rel=0.1)
    assert row["ratio"] < 0.9
    plain = POLICY.batch_moments(estimator, 2, 2)
    assert not row["bias_share_low"] <= plain.bias_share(1) <= row["bias_share_high"]


def test_few_deals_leave_no_bias_in_the_cosine(monkeypatch):
    """Two deals overstate the jackknife's bias; without its correction the cosine is too small by a term of 1/D."""
    estimator = est.get("recipe:grpo")
    batch, _, token_scores = POLICY.sample(120, 2, rng=1)
    keywords = {"prompts_per_batch": 3, "max_grad_norm": clipping_norm(estimator, 3)}

    def cosine_of(n_deals, rng=0):
        found = quiet_compare(batch, [estimator], token_scores, n_resamples=n_deals, rng=rng, **keywords)
        return found.to_frame()["cosine"].iloc[0]

    many = cosine_of(128)
    corrected = np.mean([cosine_of(2, seed) for seed in range(40)]) - many
    monkeypatch.setattr(Statistic, "surplus_over_deals", 0.0)
    plain = {n_deals: np.mean([cosine_of(n_deals, seed) for seed in range(40)]) - many for n_deals in (2, 4)}
    assert plain[2] < -0.0012
    assert plain[4] / plain[2] == pytest.approx(0.5, abs=0.25)
    assert abs(corrected) < 0.0012


def test_a_norm_that_no_batch_reaches_changes_nothing():
    batch, scores = interleaved_batch([4] * 40, signal=1.0)
    keywords = {"prompts_per_batch": 8, "n_resamples": 5}
    plain = quiet_compare(batch, ["rloo", "token_mean"], scores, **keywords).to_frame()
    found = quiet_compare(batch, ["rloo", "token_mean"], scores, max_grad_norm=1e9, **keywords)
    frame = found.to_frame()
    for quantity in ("trace_cov", "signal_sq", "ratio", "cosine", "bias_share"):
        np.testing.assert_allclose(frame[quantity], plain[quantity], rtol=1e-9, atol=1e-12)
    assert frame.attrs["max_grad_norm"] == 1e9
    assert any("clipped to the norm 1e+09, which changes 0.0% (rloo) and 0.0% (token_mean)" in n for n in found.notes)
    with pytest.raises(ValueError, match="max_grad_norm clips gradients of batches, whose variance needs two disjoint"):
        quiet_compare(batch, ["rloo"], scores, prompts_per_batch=21, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="max_grad_norm is 0.0: it must be a number above 0"):
        quiet_compare(batch, ["rloo"], scores, max_grad_norm=0.0)


def test_deals_are_disjoint_batches():
    deals = np.concatenate(list(shuffled_deals(np.random.default_rng(0), 11, 3, 70)))
    assert deals.shape == (70, 9)
    assert all(len(set(deal)) == 9 for deal in deals.tolist())
