"""The number of prompts that tells a ratio from 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from comparison_batches import quiet_compare, sized_batch
from measured_by_hand import measured_by_hand
from scipy import stats

from gradstats import data
from gradstats.analyses import batch_size, plan_alpha, plan_critical_batch, plan_ratio, plan_signal, registry
from gradstats.reference import EnumeratedPolicy
from gradstats.stats import fit_length_scaling
from gradstats.stats.prompt_plan import prompts_for_logarithm


def test_the_published_points_call_for_hundreds_of_sequences():
    points = data.load("gloeckle2026")
    pilot = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
    plan = plan_alpha(pilot, 0.05)
    assert 850 <= plan.n == plan.n_prompts <= 900
    assert plan_alpha(pilot, 0.1).n == pytest.approx(plan.n / 4, rel=0.02)


def test_a_plan_is_kept():
    """Of pilots and the studies that they plan, four in five have an interval that is narrow enough."""

    def fitted(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(4, 0.7, n)
        return fit_length_scaling(lengths=np.exp(x), sq_norms=np.exp(1.6 * x + rng.normal(0, 1.0, n)))

    def kept(share):
        planned = [int(plan_alpha(fitted(100, [seed, 0]), 0.05).n_assured * share) for seed in range(40)]
        ends = [fitted(n, [seed, 1]).confidence_interval() for seed, n in enumerate(planned)]
        return np.mean(np.diff(ends) / 2 <= 0.05)

    assert kept(1.0) >= 0.8 - 2.0 * np.sqrt(0.8 * 0.2 / 40)
    assert kept(1.0 / 3.0) < 0.2


def test_a_plan_from_noise_and_spread_of_lengths():
    """se(α) = σ/(2 s √n): 1.0/(2·0.5·√n)·1.96 ≤ 0.1 from n = 385 on."""
    plan = plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5)
    assert plan.n == plan.n_prompts == 387
    assert plan.pilot_n_prompts is None
    assert plan.sentences()[1] == "Planned: α ± 0.1 (95% interval)."
    assert plan_alpha(half_width=0.1, noise=2.0, length_spread=1.0).n == 387


SLOPED = fit_length_scaling(lengths=[1, 2, 3, 4], sq_norms=[1, 2, 4, 3])
EXACT = fit_length_scaling(lengths=[1, 2, 3, 4], sq_norms=[1, 1, 1, 1])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"pilot": {"alpha": 0.8}}, TypeError, "pilot is a dict: give a fit, for example gs.fit_length_scaling"),
        ({"pilot": SLOPED, "half_width": 0.0}, ValueError, "half_width=0 must be positive"),
        ({"pilot": EXACT, "half_width": 0.05}, ValueError, "the pilot has no standard error"),
        ({}, TypeError, r"either a pilot \(a fit; .*, or both noise= and length_spread="),
        ({"noise": 1.0}, TypeError, "give both noise= and length_spread="),
        ({"noise": -1.0, "length_spread": 0.5}, ValueError, "noise=-1 must be positive, for example 1"),
        ({"noise": 1.0, "length_spread": 0.5, "confidence_level": 1.0}, ValueError, "^confidence_level=1 must lie"),
    ],
)
def test_plan_refusals(given, error, message, unchecked):
    with pytest.raises(error, match=message):
        plan_alpha(**given)


def pilot(ratio=0.87, stderr=0.1, n_prompts=400, level=0.95, **columns):
    """A comparison whose ratio has that standard error of its logarithm."""
    margin = stats.t.ppf(0.5 + level / 2, n_prompts - 1) * stderr
    ends = {"ratio_low": ratio * np.exp(-margin), "ratio_high": ratio * np.exp(margin)}
    frame = pd.DataFrame([{"estimator": "grpo", "group_size": 4, "ratio": ratio, **ends, **columns}])
    frame.attrs = {"n_prompts": n_prompts, "n_groups": 2 * n_prompts, "reference": "rloo", "confidence_level": level}
    return frame


def test_the_size_by_hand():
    """((1.96 + 0.8416)·0.1·√400/|log 0.87|)² = 1619 prompts with normal quantiles."""
    plan = plan_ratio(pilot(), "grpo")
    by_hand = ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * 0.1 * 20 / abs(np.log(0.87))) ** 2
    assert by_hand == pytest.approx(1619, abs=1)
    assert by_hand < plan.n_prompts < by_hand + 6  # Student's quantile
    assert plan.asked["stderr_of_one"] == pytest.approx(2.0, rel=1e-9)
    assert (plan.completions_per_prompt, plan.n) == (8, 8 * plan.n_prompts)
    assert plan.n_prompts_low < plan.n_prompts < plan.n_prompts_assured < plan.n_prompts_high
    assert plan.sentence().endswith("completions) distinguish grpo from rloo at a ratio of 0.87 in 80% of studies.")
    planned = "Planned: distinguishing a ratio of 0.87 of grpo to rloo from 1 (95% interval, in 80% of studies);"
    assert plan.sentences()[1].startswith(planned)
    # The range is that of the variance of the pilot.
    few = plan_ratio(pilot(n_effective_prompts=40.0), "grpo")
    assert few.n_prompts == plan.n_prompts
    for size, degrees, tail in (
        (plan.n_prompts_low, 399, 0.975),
        (plan.n_prompts_high, 399, 0.025),
        (few.n_prompts_high, 39, 0.025),
    ):
        assert size / plan.n_prompts == pytest.approx(degrees / stats.chi2.ppf(tail, degrees), rel=0.01)


def test_the_assured_size_is_enough_in_four_of_five_studies():
    """Pilots of 12 prompts at the quantiles of their χ², each planning a study whose power is a noncentral t's."""
    found = []
    for quantile in (np.arange(40) + 0.5) / 40:
        stderr = 0.2 * np.sqrt(stats.chi2.ppf(quantile, 11) / 11)
        n = plan_ratio(pilot(stderr=stderr, n_prompts=12), "grpo", 0.9).n_prompts_assured
        apart = -np.log(0.9) / (0.2 * np.sqrt(12 / n))
        found.append(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, apart))
    assert np.mean(found) == pytest.approx(0.8, abs=0.01)
    assert min(found) < 0.7


def test_no_size_is_below_what_the_interval_needs():
    """400 prompts are worth 80 effective ones, so that 50 effective ones take 250, however far the ratio is from 1."""
    plan = plan_ratio(pilot(n_effective_prompts=80.0), "grpo", 0.2)
    assert plan.asked["fewest_prompts"] == 250
    assert (plan.n_prompts_low, plan.n_prompts, plan.n_prompts_high, plan.n_prompts_assured) == (250,) * 4
    assert plan.sentences()[2].startswith("Fewer would make it narrow enough")
    assert plan.sentences()[2].endswith("50 effective prompts on, which 250 prompts are worth.")
    assert len(plan_ratio(pilot(n_effective_prompts=80.0), "grpo").sentences()) == 2


def test_a_matched_ratio_is_planned_from_its_own_interval():
    columns = {"matched_ratio": 0.9, "matched_ratio_low": 0.8, "matched_ratio_high": 0.9**2 / 0.8}
    plan = plan_ratio(pilot(**columns), "grpo", quantity="matched_ratio")
    assert plan.asked["ratio"] == 0.9
    assert plan.asked["stderr_of_one"] == pytest.approx(20 * np.log(0.9 / 0.8) / stats.t.ppf(0.975, 399), rel=1e-9)
    assert plan.sentences()[1].startswith("Planned: distinguishing a relative noise of 0.9 of grpo to rloo from 1")


def test_a_closer_ratio_takes_more_and_the_level_matters():
    plan = plan_ratio(pilot(), "grpo")
    assert plan_ratio(pilot(), "grpo", 0.9).n_prompts > 1.5 * plan.n_prompts
    assert plan_ratio(pilot(), "grpo", 1 / 0.87).n_prompts == plan.n_prompts
    assert plan_ratio(pilot(level=0.8), "grpo").n_prompts == pytest.approx(plan.n_prompts, abs=1)
    assert plan_ratio(pilot(), "grpo", confidence_level=0.99).n_prompts > plan.n_prompts


def test_a_comparison_is_a_pilot():
    batch, scores = sized_batch(n_prompts=40)
    compared = quiet_compare(batch, ["rloo", "reinforce", "group_mean"], scores, group_size=4)
    plan = plan_ratio(compared, "reinforce", tokens_per_completion=30.0)
    assert plan.completions_per_prompt == 8
    assert plan.n_tokens == 30.0 * plan.n_assured
    with pytest.raises(ValueError, match=r"ratio of 'rloo' is known exactly \(1\), since it is a multiple"):
        plan_ratio(compared, "rloo")


@pytest.mark.parametrize(
    ("columns", "estimator", "asked", "message"),
    [
        ({}, "rlo", {}, "estimator='rlo' has 0 rows in the pilot and one is needed"),
        ({}, "grpo", {"ratio": 1.0}, "ratio=1 must be positive and not 1, for example 0.87"),
        ({"ratio_low": 0.0, "ratio_high": np.inf}, "grpo", {}, "'grpo' is not resolved in the pilot, .*plan those"),
        ({}, "grpo", {"quantity": "cosine"}, "quantity='cosine' is not a ratio to be planned"),
        ({}, "grpo", {"confidence_level": 2.0}, "confidence_level=2 must lie between 0 and 1"),
        ({}, "grpo", {"within": 0.1, "equivalent": 0.1}, "within and equivalent are two goals: plan for one"),
        ({}, "grpo", {"ratio": 0.87, "within": 0.1}, "within and ratio are two goals: plan for one"),
        ({}, "grpo", {"within": -0.1}, r"within=-0\.1 must be a positive share"),
        ({}, "grpo", {"ratio": 0.87, "equivalent": 0.05}, r"a ratio of 0\.87 is not within 0\.05 of 1"),
    ],
)
def test_goals_that_cannot_be_planned_are_refused(columns, estimator, asked, message):
    with pytest.raises(ValueError, match=message):
        plan_ratio(pilot(**columns), estimator, **asked)


def test_the_sentences_name_the_goal():
    same, known = plan_ratio(pilot(), "grpo", 1.0, equivalent=0.05), plan_ratio(pilot(), "grpo", within=0.03)
    assert same.sentence().endswith(" show grpo and rloo to differ by at most 5% in 80% of studies.")
    assert same.sentences()[1].startswith("Planned: showing that the ratio of grpo to rloo")
    assert known.sentence().endswith(" give the ratio of grpo to rloo ± 3% in 80% of studies.")
    assert "known to ± 0.03 of itself" in known.sentences()[1]


def test_the_size_solves_its_equation():
    batch, scores = sized_batch(n_prompts=60)
    plan = plan_signal(quiet_compare(batch, ["reinforce", "rloo"], scores, group_size=4), "reinforce")
    z, z_80 = stats.norm.ppf([0.975, 0.8])

    def margin(m):
        first, second = 4 * plan.asked["linear"] / m, 2 * plan.asked["quadratic"] / m**2
        return z * np.sqrt(first + 2 * second) + z_80 * np.sqrt(first + second)

    assert margin(plan.n_prompts) <= plan.asked["signal_sq"] < margin(plan.n_prompts - 1) or plan.n_prompts == 3
    assert plan.n_prompts_low <= plan.n_prompts <= plan.n_prompts_assured <= plan.n_prompts_high
    assert plan.completions_per_prompt == 8
    assert plan.tokens_per_completion == pytest.approx(batch.lengths.mean())
    assert plan.sentence().endswith("resolve the signal of reinforce in 80% of studies.")
    planned = "Planned: ‖E ĝ‖² of reinforce resolved (95% interval above 0 in 80% of studies);"
    assert plan.sentences()[1].startswith(planned)


def test_a_signal_that_may_be_zero_has_no_upper_end():
    batch, scores = sized_batch(n_prompts=20)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 20)
    compared = quiet_compare(batch, ["reinforce", "rloo"], scores * signs[batch.group_index][:, None], group_size=8)
    plan = plan_signal(compared, "rloo")
    assert plan.n_prompts_high == np.inf
    assert plan.sentences()[1].endswith("or more may be needed.")


def test_refusals_of_signal_plan():
    batch, scores = sized_batch(n_prompts=20)
    silent = batch.with_fields(rewards=np.ones(len(batch.rewards)))
    for given, label, asked, message in (
        (batch, "grpo", {"group_size": 4}, "estimator='grpo' is not in the pilot: choose from rloo, reinforce, batch_"),
        (batch, "rloo", {"group_size": [2, 4]}, "several group sizes: compare at one group size"),
        (silent, "rloo", {"reference": "reinforce"}, "no interval of ‖E g‖² for 'rloo' from at least 4 prompts"),
        (batch, "batch_mean", {"group_size": 4}, "no interval of ‖E g‖² for 'batch_mean'.*choose a group-level estim"),
    ):
        compared = quiet_compare(given, ["rloo", "reinforce", "batch_mean"], scores, **asked)
        with pytest.raises(ValueError, match=message):
            plan_signal(compared, label)


def test_a_ratio_is_known_as_well_as_planned_and_equals_are_shown_equal():
    """Studies of the planned size, drawn from a policy, keep both promises in at least 80 % of them."""
    policy = EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, n_prompts=12, rng=1)

    def study(n_prompts, seed):
        batch, scores, _ = policy.sample(n_prompts, 4, rng=np.random.default_rng([7, seed]))
        return quiet_compare(batch, ["token_mean(loo=True)"], scores)

    pilot = study(60, 0)
    label = "token_mean(loo=True)"
    for goal in ({"within": 0.05}, {"equivalent": 0.2, "ratio": pilot.rows[0].ratio.value}):
        plan = plan_ratio(pilot, label, **goal)

        def kept(n_prompts, goal=goal):
            rows = [study(n_prompts, seed).to_frame().iloc[0] for seed in range(1, 21)]
            if "within" in goal:
                return np.mean([np.log(row["ratio_high"] / row["ratio"]) <= np.log1p(0.05) for row in rows])
            return np.mean([row["ratio_low"] > 1.0 / 1.2 and row["ratio_high"] < 1.2 for row in rows])

        assert kept(plan.n_prompts_assured) >= 0.65, goal  # 0.8 less two standard errors
        assert plan.n_prompts <= plan.n_prompts_assured
        if "within" in goal:
            assert kept(plan.n_prompts_assured // 3) < 0.2


def test_the_variance_of_influences_plans_fewer_than_the_width_of_a_small_pilot():
    label = "token_mean(loo=True)"
    few, pilot = (quiet_compare(batch, [label], scores) for batch, scores in map(sized_batch, (12, 40)))
    by_width, by_influence = (plan_ratio(one, label, within=0.05) for one in (pilot.to_frame(), pilot))
    assert by_influence.asked["stderr_of_one"] == pytest.approx(pilot.rows[0].ratio.stderr * np.sqrt(40))
    assert by_influence.asked["stderr_of_one"] < by_width.asked["stderr_of_one"]
    # The ratio of so few prompts has one end, which says nothing of its error.
    with pytest.raises(ValueError, match="not resolved in the pilot"):
        plan_ratio(few.to_frame(), label, within=0.05)
    assert plan_ratio(few, label, within=0.05).asked["stderr_of_one"] == pytest.approx(
        few.rows[0].ratio.stderr * np.sqrt(12)
    )


def studied(n_prompts, seed):
    """The critical batch in a study of a policy."""
    policy = EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, n_prompts=12, rng=1)
    batch, scores, _ = policy.sample(n_prompts, 4, rng=np.random.default_rng([11, seed]))
    return batch_size(batch, ["rloo"], scores).rows[0].critical_batch


def test_a_critical_batch_is_known_to_the_factor_that_was_planned():
    """Studies of the planned size, drawn from a policy, keep the promise; studies of a third do not."""
    pilot = studied(200, 0)
    plan = plan_critical_batch(pilot, 2.0, estimator="rloo", completions_per_prompt=4)
    assert plan.n_prompts_low <= plan.n_prompts <= plan.n_prompts_assured <= plan.n_prompts_high
    assert plan.sentence().endswith(" give the critical batch of rloo to a factor of 2 in 80% of studies.")

    def kept(n_prompts):
        found = [studied(n_prompts, seed).with_interval(0.95) for seed in range(1, 25)]
        return np.mean([high <= 2.0 * value and value <= 2.0 * low for value, low, high in found])

    least = 0.8 - 2.0 * np.sqrt(0.8 * 0.2 / 24)
    assert kept(plan.n_prompts_assured) >= least > kept(plan.n_prompts // 3)
    with pytest.raises(ValueError, match="critical_batch=1 must be a factor above 1, for example 2"):
        plan_critical_batch(pilot, 1.0, estimator="rloo")
    with pytest.raises(ValueError, match="does not resolve the signal of 'grpo'.*as many prompts as --signal plans"):
        plan_critical_batch(replace(pilot, only_low=True), estimator="grpo")


def test_a_critical_batch_without_a_target_is_refused_with_the_reason():
    """Of completions whose importance ratios are worth too few of them there is a sentence and no plan."""
    measured = measured_by_hand(n=24, tokens=False, blocks=False)
    rng, rollouts = np.random.default_rng(0), measured.rollouts
    drawn = [rng.normal(-1.0, 0.1, length) for length in rollouts.lengths]
    known = {"reward": rng.integers(0, 2, 24).astype(float), "sampler_logprobs": drawn}
    frame = rollouts.frame.assign(prompt_id=np.arange(24) // 4, sample_id=np.arange(24) % 4, **known)
    scored = [values + rng.normal(0.0, 2.0, len(values)) for values in drawn]
    far = replace(measured, rollouts=replace(rollouts, frame=frame), logprobs=scored)
    why = "no critical batch of 'rloo': No batch size can be judged, since the effective"
    with pytest.raises(ValueError, match=why):
        registry.get("plan").ask(far, estimator="rloo", critical_batch=2.0)


def test_a_planned_width_of_a_logarithm_is_reached_in_four_of_five_studies():
    """Over pilots and studies whose squared standard errors are χ² of 10 degrees of freedom."""
    draws = np.random.default_rng(0).chisquare(10, (2, 2000)) / 10
    pilots, studies = np.sqrt(draws)
    width = {"distance": 0.2, "level": 0.95, "degrees": 10, "fewest": 3, "power": 0.0}
    sizes = [prompts_for_logarithm(float(pilot), **width).n_prompts_assured for pilot in pilots]
    reached = stats.t.ppf(0.975, np.array(sizes) - 1) * studies / np.sqrt(sizes) <= 0.2
    assert 0.77 < reached.mean() < 0.84
