"""The on-policy check on a softmax policy over tokens, sampled at the scored temperature and at another."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from gradstats.analyses import check_on_policy
from gradstats.stats.jackknife import Estimate
from gradstats.stats.on_policy import (
    TemperatureTest,
    departures_of,
    energy_ratio,
    holm,
    mean_score_sq,
    temperature_test,
)


def softmax(z):
    return np.exp(z) / np.exp(z).sum()


def drawn(temperature, n_prompts=150, per_prompt=4, seed=0, energies=True):
    """Completions of a bag-of-tokens policy with logits θ, whose token score is onehot(y) − π."""
    rng, logits = np.random.default_rng(seed), np.random.default_rng(9).normal(size=6)
    scored, sampled = softmax(logits), softmax(logits / temperature)
    n = n_prompts * per_prompt
    lengths = rng.integers(3, 30, n)
    tokens = np.split(rng.choice(6, size=lengths.sum(), p=sampled), np.cumsum(lengths)[:-1])
    token_scores = [np.eye(6)[y] - scored for y in tokens]
    total = np.array([s.sum(axis=0) for s in token_scores])
    rollouts = SimpleNamespace(
        prompt_id=np.repeat(np.arange(n_prompts), per_prompt).astype(str),
        masks=[np.ones(length, dtype=bool) for length in lengths],
        metadata={"sampler": {"temperature": temperature, "top_p": 1.0, "top_k": 0}},
    )
    return SimpleNamespace(
        rollouts=rollouts,
        logprobs=[np.log(scored)[y] for y in tokens],
        entropy=[np.full(length, -np.sum(scored * np.log(scored))) for length in lengths],
        sq_norms=(total**2).sum(axis=1),
        sketches=np.pad(total, ((0, 0), (0, 2042))),
        token_energy=[(s**2).sum(axis=1) for s in token_scores] if energies else None,
        metadata={"policy": {"temperature": 1.0}},
    )


def test_on_policy_samples_pass():
    check = check_on_policy(drawn(1.0))
    assert check.failures() == []
    low, high = check.compatible_temperatures()
    assert 0.9 < low < 1.0 < high < 1.1
    assert check.verdict().startswith(
        f"Consistent with on-policy sampling: temperatures below {low:.3g} and above {high:.3g} are excluded (surprise "
    )
    assert check.energy_ratio.value == pytest.approx(1.0, abs=0.1)
    assert check.holds() is True


def test_samples_of_another_temperature_fail_by_all_three():
    check = check_on_policy(drawn(0.6))
    assert check.failures() == ["surprise", "mean_score_sq", "energy_ratio"]
    assert check.surprise.value < 0
    assert check.energy_ratio.value > 1.5
    verdict = check.verdict()
    assert verdict.startswith("Not on-policy by the recorded settings: the tokens were drawn with temperature=0.6 and ")
    assert "scored at temperature 1 without" in verdict
    assert "Surprise minus entropy and squared mean score and energy ratio off" in verdict
    assert check.holds() is False


def test_the_squared_mean_score_of_large_sketches_is_read_in_blocks(monkeypatch):
    measured = drawn(0.8)
    prompts = np.unique(measured.rollouts.prompt_id, return_inverse=True)[1]
    found = []
    for fewest in (2**24, 0):
        monkeypatch.setattr("gradstats.stats.variance.products.FEWEST_NUMBERS", fewest)
        found.append(mean_score_sq(measured, prompts, np.random.default_rng(0)))
    assert found[1].value == pytest.approx(found[0].value, rel=1e-9)
    assert found[1].stderr == pytest.approx(found[0].stderr, rel=1e-6)


def test_recorded_settings_overrule_a_test_that_finds_nothing():
    """Drawn at 0.97 and scored at 1: no test of 150 prompts sees it, and the settings state it."""
    measured = drawn(0.97)
    check = check_on_policy(measured)
    assert check.failures() == []
    assert check.holds() is False
    assert check.verdict().startswith(
        "Not on-policy by the recorded settings: the tokens were drawn with temperature=0.97"
    )
    assert "The samples do not resolve it (surprise minus entropy" in check.verdict()
    measured.rollouts.metadata["sampler"]["temperature"] = 1.0
    assert check_on_policy(measured).verdict().startswith("Consistent with on-policy sampling")


def test_a_test_without_power_resolves_nothing():
    few = drawn(1.0, n_prompts=4, per_prompt=1)
    verdict = check_on_policy(few).verdict()
    assert check_on_policy(few).holds() is None
    assert verdict.startswith("On-policy by its settings; the samples alone cannot tell (")
    assert re.search(r"\. (Every sampling temperature fits|Sampling temperatures .* fit); more prompts would", verdict)
    few.rollouts.metadata = {}
    assert check_on_policy(few).verdict().startswith("The samples alone cannot tell whether they are on-policy (")


def test_temperatures_are_those_of_the_scorer_where_it_is_known():
    measured = drawn(1.0)
    relative = check_on_policy(measured).compatible_temperatures()
    measured.metadata = {"policy": {"temperature": 0.5}}
    measured.rollouts.metadata["sampler"]["temperature"] = 0.5
    check = check_on_policy(measured)
    assert check.compatible_temperatures() == pytest.approx((0.5 * relative[0], 0.5 * relative[1]))
    assert f"temperatures below {0.5 * relative[0]:.3g} and above" in check.verdict()
    measured.metadata = {}
    assert "times the scored one are excluded" in check_on_policy(measured).verdict()


def test_pvalues_are_adjusted_for_there_being_several():
    check = check_on_policy(drawn(1.0))
    pvalues = check.pvalues()
    assert list(pvalues) == ["surprise", "mean_score_sq", "energy_ratio"]
    level = 1.0 - 0.006
    one = replace(check, surprise=Estimate(3.1, 1.0, "raw", np.inf), energy_ratio=Estimate(1.0, 0.1, "raw", np.inf))
    # Alone a normal value of 3.1 has p = 0.0019; the smallest of three counts three times.
    assert one.pvalues()["surprise"] == pytest.approx(0.0058056, rel=1e-4)
    assert one.failures(level) == ["surprise"]
    assert one.failures(1.0 - 0.005) == []
    assert one.to_frame()["pvalue"].tolist() == list(one.pvalues().values())
    below = replace(check, mean_score_sq=Estimate(-3.1, 1.0, "raw", np.inf))
    assert below.pvalues()["mean_score_sq"] == 1.0
    exact = replace(check, energy_ratio=Estimate(1.0, 0.0, "raw", 10.0))
    assert exact.pvalues()["energy_ratio"] == 1.0
    with pytest.raises(ValueError, match="confidence_level=99 must lie between 0 and 1"):
        check.failures(99.0)


def test_the_true_temperature_is_rarely_excluded_and_false_alarms_are_rare():
    alarms = []
    for temperature in (0.85, 1.0, 1.15):
        checks = [check_on_policy(drawn(temperature, n_prompts=40, seed=seed)) for seed in range(40)]
        intervals = [check.compatible_temperatures(0.95) for check in checks]
        assert sum(not low <= temperature <= high for low, high in intervals) <= 7  # 5 % of 40 is 2
        alarms += [bool(check.failures()) for check in checks if temperature == 1.0]
    assert np.mean(alarms) < 0.08


def test_what_was_not_measured_is_nan():
    measured = drawn(1.0, energies=False)
    measured.sketches = None
    check = check_on_policy(measured)
    assert check.to_frame()["estimate"].isna().tolist() == [False, True, True]
    assert check.energy_prompts == np.inf
    assert "energy ratio" not in check.verdict()
    measured = drawn(0.6)
    measured.rollouts.metadata = {}
    assert "recorded settings do not explain it" in check_on_policy(measured).verdict()


def test_too_few_prompts():
    with pytest.raises(ValueError, match="at least 3 prompts, got 2"):
        check_on_policy(drawn(1.0, n_prompts=2))


def test_an_energy_ratio_of_few_prompts_does_not_count():
    """If one prompt has nearly all the energy, the jackknife interval rests on that prompt."""
    measured = drawn(0.6, n_prompts=60)
    assert check_on_policy(measured).energy_prompts > 30
    measured.token_energy[0] = 1e6 * measured.token_energy[0]
    measured.sq_norms[0] *= 1e6
    check = check_on_policy(measured)
    assert check.energy_prompts < 2
    assert "energy_ratio" not in check.failures()
    assert "the last not counted since it rests on effectively 1.0 prompts" in check.verdict()


def measured(**known):
    nothing = dict.fromkeys(("rollouts", "lengths", "sq_norms", "sketches", "token_energy"))
    return SimpleNamespace(logprobs=[], entropy=[], metadata={}, **nothing | known)


def test_the_energy_ratio_by_hand():
    energies = [np.array([1.0, 1.0]), np.array([2.0]), np.array([4.0]), np.array([1.0, 3.0])]
    given = measured(sq_norms=np.array([2.0, 4.0, 5.0, 6.0]), token_energy=energies)
    ratio, effective_prompts = energy_ratio(given, np.array([0, 0, 1, 2]))
    assert ratio.value == pytest.approx((3.0 + 5.0 + 6.0) / (2.0 + 4.0 + 4.0))
    assert effective_prompts == pytest.approx(10.0**2 / (4.0 + 16.0 + 16.0))


@pytest.mark.parametrize("pvalues", [[0.01, 0.04, 0.03], [0.5, 0.6], [1e-9, 0.02, 0.02, 0.9], [0.3]])
def test_adjusted_values_are_those_of_statsmodels(pvalues):
    np.testing.assert_allclose(holm(pvalues), multipletests(pvalues, method="holm")[1], rtol=1e-12)


def test_it_is_the_mean_inner_product_of_different_prompts():
    rng = np.random.default_rng(0)
    sketches, prompts = rng.normal(size=(9, 5)), np.repeat(np.arange(3), 3)
    means = sketches.reshape(3, 3, 5).mean(axis=1)
    products = means @ means.T
    estimate = mean_score_sq(measured(sketches=sketches), prompts, np.random.default_rng(1))
    assert estimate.value == pytest.approx((products.sum() - np.trace(products)) / 6.0)


@pytest.mark.parametrize(
    ("sampler", "scorer_temperature", "departures"),
    [
        ({"temperature": 0.6, "top_p": 0.95}, 1.0, "top_p=0.95 temperature=0.6"),
        ({"temperature": 0.6}, 0.6000000001, ""),
        ({"temperature": 0.6}, None, ""),
        ({"top_k": -1, "top_p": 1, "min_p": None, "repetition_penalty": 1.0, "temperature": None}, 1.0, ""),
        ({"top_k": 50, "min_p": 0.1, "repetition_penalty": 1.1}, 1.0, "top_k=50 min_p=0.1 repetition_penalty=1.1"),
        ({}, 1.0, ""),
    ],
)
def test_only_what_was_recorded_and_differs_is_a_departure(sampler, scorer_temperature, departures):
    assert departures_of(sampler, scorer_temperature) == departures.split()


def test_means_and_errors_are_those_of_prompts():
    excess = [np.array([0.5, -0.2]), np.array([1.0]), np.array([-0.3, 0.1, 0.4])]
    test = temperature_test(excess, np.array([0, 0, 1]))
    for at in (0, 17, 40):
        shift = 1.0 - 1.0 / test.temperatures[at]
        one, two, three = (np.sum(d * np.exp(-shift * d)) for d in excess)
        values = np.array([(one + two) / 2, three])
        assert test.means[at] == pytest.approx(values.mean(), rel=1e-12)
        assert test.stderrs[at] == pytest.approx(stats.sem(values), rel=1e-12)
    assert test.degrees == 1.0


def test_ends_by_hand():
    temperatures = np.geomspace(0.5, 2.0, 41)
    at = np.log(temperatures)
    ones = np.ones(len(at))
    # t = (0.02 − log τ)/0.05 lies within ±1.96 for log τ in 0.02 ± 0.098.
    low, high = TemperatureTest(temperatures, (0.02 - at) / 0.05, ones, np.inf).compatible(0.95)
    z = stats.norm.ppf(0.975)
    assert (low, high) == pytest.approx((np.exp(0.02 - 0.05 * z), np.exp(0.02 + 0.05 * z)), rel=1e-9)
    assert TemperatureTest(temperatures, -at, ones, np.inf).compatible(0.95) == (0.0, np.inf)
    for means, stderrs in ((9.0 - at, ones), (-9.0 - at, ones), (-at, 0.0 * ones)):
        assert np.isnan(TemperatureTest(temperatures, means, stderrs, np.inf).compatible(0.95)).all()
