"""Baselines that are learned on the other prompts, and their table beside published ones and the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import assert_nested, correlated_batch, quietly
from oracles.optimal_baselines import exact_optimal_baselines, mixture_form
from scipy import stats

import gradstats as gs
from gradstats import estimators as est
from gradstats.analyses.numbers import format_estimate, percentage, percentage_at_most
from gradstats.analyses.optimal_baselines import (
    EXPONENTS,
    ORACLE,
    PUBLISHED,
    LearnedBaseline,
    learned_baselines,
    learned_exponent,
    learned_mixture,
    learned_shift,
    lowest_shifted_shares,
    optimal_baselines,
    variance_with,
)
from gradstats.reference import EnumeratedPolicy
from gradstats.stats.variance.inputs import pooled, prepared_inputs
from gradstats.stats.variance.minimiser import minimiser_of
from gradstats.stats.variance.moments import split_into_groups


def pool_of(batch, scores):
    inputs, chosen, judged = prepared_inputs(batch, [est.rloo()], scores, False, "auto")
    groups = split_into_groups(batch.group_index, inputs.order, None)
    return pooled(inputs, groups, chosen, np.random.default_rng(0), judged)


def variances_at(pool, family, parameter, values):
    """tr Cov of an estimator at several values of a parameter."""
    return [variance_with(pool, family(**{parameter: one}, loo=True).weights(pool.batch)) for one in values]


def test_what_a_prompt_gets_does_not_depend_on_its_own_completions():
    batch, scores = correlated_batch(20, 4)
    other = scores.copy()
    own = batch.group_index == 7
    other[own] *= -3.0
    both = (learned_baselines(pool_of(batch, each)) for each in (scores, other))
    for first, second in zip(*both, strict=True):
        np.testing.assert_allclose(first.parameters[7], second.parameters[7], atol=1e-9)
        assert (np.abs(first.parameters - second.parameters).max(axis=1) > 1e-9).any()


def test_the_learned_shift_is_the_lowest_on_the_other_prompts():
    batch, scores = correlated_batch(20, 4)
    learned = learned_shift(pool_of(batch, scores)).parameters[:, 0]
    for prompt in (0, 11):
        others = batch.group_index != prompt
        pool = pool_of(batch.select(others), scores[others])
        deltas = [learned[prompt] + by for by in (-0.01, 0.0, 0.01)]
        below, there, above = (one.value for one in variances_at(pool, est.asymmetric, "delta", deltas))
        assert there < min(below, above)
        assert below == pytest.approx(above, rel=1e-6)


def test_shares_and_shift_are_the_lowest_of_a_search():
    rng = np.random.default_rng(1)
    roots = rng.normal(size=(8, 4, 4))
    forms = roots @ roots.transpose(0, 2, 1)
    for form, found in zip(forms, lowest_shifted_shares(forms), strict=True):
        assert (found[:3] >= 0).all()
        assert found[:3].sum() == pytest.approx(1.0)
        steps = [(i / 50, j / 50, 1 - (i + j) / 50) for i in range(51) for j in range(51 - i)]
        tried = np.array([[*shares, delta] for shares in steps for delta in np.linspace(-3, 3, 61)])
        assert found @ form @ found <= np.einsum("ni,ij,nj->n", tried, form, tried).min() + 1e-12
    # What makes no difference is left as the mean of the group alone.
    flat = np.ones((2, 4, 4))
    flat[0, :3, 3] = flat[0, 3, :3] = 0.0
    flat[0, 0, 0] += 4e-16  # by rounding
    flat[1] = np.diag([0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(lowest_shifted_shares(flat)[:, :3], [[1, 0, 0], [1, 0, 0]])
    # Where no score is left, nothing is shifted.
    without = np.pad(forms[:, :3, :3], ((0, 0), (0, 1), (0, 1)))
    np.testing.assert_array_equal(lowest_shifted_shares(without)[:, 3], 0.0)


def test_a_mixture_is_learned_in_units_of_the_rewards():
    batch, scores = correlated_batch(40, 4)
    one, large = (learned_mixture(pool_of(batch.with_fields(rewards=by * batch.rewards), scores)) for by in (1, 8))
    np.testing.assert_allclose(large.parameters, one.parameters * [1, 1, 1, 8], rtol=1e-6)
    np.testing.assert_allclose(large.given, 8 * one.given, rtol=1e-6)


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
    assert mixture.trace_cov < form.diagonal()[:3].min()  # a mixture is better than each of its means
    found = learned_mixture(pool).parameters.mean(axis=0)
    assert found @ form @ found == pytest.approx(mixture.trace_cov, rel=0.01)

    alpha = float(learned_exponent(pool).parameters.mean())
    assert exact(est.length_weighted(alpha=alpha, loo=True)) == pytest.approx(exponent.trace_cov, rel=0.01)


def test_a_learned_baseline_is_described_and_bound_to_its_completions():
    one = LearnedBaseline("learned shift", ("delta",), np.array([[0.1], [0.3]]), np.ones(4))
    assert one.described() == "delta 0.2 (0.1 to 0.3)"
    assert (one.name, one.level, one.needs, one.across_groups) == ("learned shift", "sequence", (), False)
    assert one.expected_scale(4) == 1.0
    with pytest.raises(ValueError, match="learned shift has weights for 4 completions, got 80"):
        one.weights(correlated_batch(20, 4)[0])


def test_refusals():
    batch, scores = inputs()
    drift = 0.3 * np.random.default_rng(0).normal(size=batch.mask.shape)
    logs = np.where(batch.mask, -1.0, 0.0)
    far = {"logprobs": logs, "old_logprobs": np.where(batch.mask, drift - 1.0, 0.0)}
    for given, asked, message in (
        (inputs(3)[0], {}, "needs at least 4 prompts, got 3"),
        (batch.with_fields(sq_norms=None), {}, "needs sq_norms"),
        (batch.with_fields(**far), {}, "leave-one-out baselines are biased for completions of another policy"),
        (
            batch.with_fields(logprobs=logs, old_logprobs=logs),
            {"target": "importance"},
            "have no importance weights, so that target='importance' does not judge them",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            optimal_baselines(given, scores[: len(given.rewards)], **asked)
    for changed, cause in (
        ({"rewards": np.zeros(160)}, "every reward equals 0 .choose problems that are solved"),
        ({"groups": np.arange(160)}, "groups hold a single completion"),
    ):
        with pytest.raises(ValueError, match=f"has weight 0: {cause}"):
            learned_exponent(pool_of(batch.with_fields(**changed), scores))


def test_the_interval_of_the_shift_is_where_the_slope_may_be_zero():
    batch, scores = correlated_batch(60, 4)
    pool = pool_of(batch, scores)
    learned = learned_shift(pool)
    low, high = learned.confidence_interval(0.9)
    assert low < learned.parameters.mean() < high
    at = learned.optimum.value
    below, above = variances_at(pool, est.asymmetric, "delta", (at - 0.5, at + 0.5))
    psi = (above - below).pseudo_values  # influence on the slope at the lowest point
    psi = psi - psi.mean()
    degrees = 2 / ((psi**4).sum() / (psi**2).sum() ** 2 - 1 / 60)
    assert 5 < degrees < 55
    quantile = stats.t.ppf(0.95, degrees)
    for end in (low, high):
        before, after = variances_at(pool, est.asymmetric, "delta", (end - 0.5, end + 0.5))
        slope = after - before  # of a parabola: exact
        assert abs(slope.value) == pytest.approx(quantile * np.sqrt(slope.variance()), rel=1e-6)
    wide = learned.confidence_interval(0.99)
    assert wide[0] < low < high < wide[1]
    assert learned.described(0.9) == f"delta {learned.parameters.mean():.2g} [{low:.2g}, {high:.2g}]"


def test_the_interval_of_the_exponent_is_that_of_a_curve():
    batch, scores = correlated_batch(60, 4)
    pool = pool_of(batch, scores)
    curve = minimiser_of(EXPONENTS, variances_at(pool, est.length_weighted, "alpha", EXPONENTS))
    learned = learned_exponent(pool)
    assert learned.confidence_interval(0.9) == pytest.approx(curve.confidence_interval(0.9))
    low, high = learned.confidence_interval(0.9999)
    assert high == EXPONENTS[-1]
    ends = f"[{'≤ ' * (low == -1)}{low:.2g}, ≥ 2]".replace("-", "−")
    assert learned.described(0.9999) == f"alpha {learned.parameters.mean():.2g} {ends}"
    assert np.isnan(learned_mixture(pool).confidence_interval()).all()
    with pytest.raises(ValueError, match="confidence_level=2 must lie"):
        learned_mixture(pool).confidence_interval(2)


def inputs(n_prompts=40, size=4):
    batch, scores = correlated_batch(n_prompts, size)
    scores = scores + 2.0 * batch.rewards[:, None]
    return batch.with_fields(sq_norms=(scores**2).sum(axis=1)), scores


@pytest.fixture(scope="module")
def found():
    return quietly(optimal_baselines, *inputs())


def test_the_rows_are_learned_published_and_the_oracle(found):
    frame = found.to_frame()
    learned = ["learned exponent", "learned shift", "learned mixture"]
    assert list(frame["estimator"]) == [*learned, *PUBLISHED, ORACLE]
    assert list(frame["kind"]) == ["learned"] * 3 + ["published"] * len(PUBLISHED) + ["oracle"]
    assert frame["parameters"][0].startswith("alpha ")
    assert frame.attrs["best_learned"] == found.best == learned[int(np.argmin(frame["trace_cov"][:3]))]
    assert_nested(frame, "ratio", "ratio_to_learned")
    batch, scores = inputs()
    labels = ["rloo", "token_mean(loo=True)", "length_weighted(alpha=within_prompt, loo=True)"]
    expected = quietly(gs.compare, batch, labels, scores, reference=ORACLE).to_frame().set_index("estimator")
    frame = frame.set_index("estimator")
    for name in ("trace_cov", "ratio", "ratio_low", "ratio_high"):
        np.testing.assert_allclose(frame.loc[labels, name], expected[name], rtol=1e-9)
    relative = frame["trace_cov"] / frame.loc[found.best, "trace_cov"]
    local = ["rloo", "token_mean(loo=True)", ORACLE]
    np.testing.assert_allclose(frame.loc[local, "ratio_to_learned"], relative[local])


def test_the_sentence_states_the_gain(found):
    ends = ("", "_simultaneous_low", "_simultaneous_high")  # as in the table that stands below
    for level, resolved in ((0.9999999999, False), (0.01, True)):
        frame = found.to_frame(level).set_index("estimator")
        columns = [f"ratio_to_learned{end}" for end in ends]
        ratios, oracle = (frame.loc[label, columns].astype(float) for label in ("rloo", ORACLE))
        gain, low, high = 1.0 - 1.0 / ratios
        assert (low > 0) == resolved
        start = f"No learned baseline is shown to beat rloo: the {found.best} saves at most {percentage_at_most(high)}"
        if resolved:
            start = f"The {found.best} saves {percentage(gain, low, high)} of the variance of rloo"
        times = f"{format_estimate(*oracle)} times the variance of the {found.best.removeprefix('learned ')}."
        assert found.sentence(level) == f"{start}; the oracle has {times}"
    # No gain is promised where few prompts carry the variance.
    batch, scores = inputs()
    scores = scores * np.exp(2.0 * np.random.default_rng(0).normal(size=40))[batch.group_index, None]
    heavy = quietly(optimal_baselines, batch.with_fields(sq_norms=(scores**2).sum(axis=1)), scores, published=["rloo"])
    said = f"Too few prompts carry the variance to learn from: the {heavy.best} may lose to rloo; the oracle has "
    assert all(heavy.sentence(level).startswith(said) for level in (0.95, 0.01))
