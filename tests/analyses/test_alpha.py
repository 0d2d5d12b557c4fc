"""The diagnostics reported with α, and which are omitted and why."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gradstats import data
from gradstats.analyses import alpha_report
from gradstats.analyses.alpha import within_and_between
from gradstats.rollouts.table import Rollouts
from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.alpha import METHODS
from gradstats.system.files import to_json

POINTS = data.load("gloeckle2026")


def measured(n_prompts=30, per_prompt=4, bend=0.0, sampler_temperature=1.0, seed=0):
    """Completions of a policy that samples uniformly from 8 tokens, some of them cut off."""
    rng = np.random.default_rng(seed)
    n = n_prompts * per_prompt
    lengths = np.ceil(np.exp(rng.normal(3.0, 0.6, n))).astype(int)
    x = np.log(lengths)
    sq_norms = np.exp(1.6 * x + bend * (x - 3.0) ** 2 + rng.normal(0.0, 0.4, n))
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [[0] * length for length in lengths],
        np.zeros(n),
        [f"p{row // per_prompt:02d}" for row in range(n)],
        finish_reason=["length" if row % 10 == 0 else "stop" for row in range(n)],
        metadata={"sampler": {"temperature": sampler_temperature, "top_p": 1.0, "top_k": 0}},
    )
    drift = 0.0 if sampler_temperature == 1.0 else 0.3
    known = {
        "sq_norms_by_block": pd.DataFrame({"a": 0.25 * sq_norms, "b": 0.75 * sq_norms}),
        "logprobs": [np.log(0.125) + rng.normal(drift, 0.8, length) for length in lengths],
        "entropy": [np.full(length, np.log(8.0)) for length in lengths],
        "token_energy": [np.full(length, sq_norms.mean() / lengths.mean()) for length in lengths],
        "metadata": {"policy": {"temperature": 1.0}},
    }
    return SimpleNamespace(rollouts=rollouts, lengths=lengths, sq_norms=sq_norms, sketches=None, **known)


def test_a_measurement_gets_every_diagnostic():
    given = measured()
    report = alpha_report(given)
    fit = fit_length_scaling(given)
    assert report.fit.alpha == fit.alpha
    assert (report.low, report.high) == fit.confidence_interval() == report.confidence_interval()
    assert report.mean_fit.alpha == fit_length_scaling(given, method="gamma").alpha
    assert report.uncut_fit.alpha == fit.without_truncated().alpha
    assert report.energy_fit.alpha == pytest.approx(0.5)
    assert list(report.by_block["block"]) == ["a", "b", "total"]
    assert report.influence["prompt"].iloc[0].startswith("p")
    said = report.sentences()
    assert said[0].startswith("Consistent with on-policy sampling")
    assert "12 of 120 completions were cut off at the cap; without them: α = " in " ".join(said)
    assert "power law does not fit" not in " ".join(said)
    summary = json.loads(to_json(report.summary()))
    assert summary["alpha"] == fit.alpha
    assert summary["without_truncated"]["n"] == 108
    assert summary["mean_scaling"]["method"] == "gamma"
    assert summary["within_between"]["difference"] == report.within_between.difference
    assert within_and_between(report.within_between) in said
    assert summary["sentences"] == said
    assert [row["quantity"] for row in summary["on_policy"]] == ["surprise", "mean_score_sq", "energy_ratio"]


def test_a_bend_and_another_temperature_are_reported():
    said = " ".join(alpha_report(measured(bend=0.5, sampler_temperature=0.6)).sentences())
    assert "Not on-policy" in said
    assert "drawn with temperature=0.6 and scored at temperature 1" in said
    assert "One power law does not fit: the line steepens" in said


def test_bare_points_state_what_is_unknown():
    report = alpha_report(lengths=POINTS["length"], sq_norms=POINTS["sq_norm"], interval="hc3", confidence_level=0.9)
    said = report.sentences()
    assert "not known" in said[0]
    assert report.on_policy is report.by_block is report.energy_fit is report.uncut_fit is None
    assert report.within_between is report.summary()["within_between"] is report.summary()["on_policy"] is None
    assert report.interval == report.to_frame()["interval"].item() == "hc3"
    assert (report.low, report.high) == report.fit.confidence_interval(0.9, "hc3")
    # The largest residual of the published points: without it α = 0.707.
    assert "moves α by at most 0.082 (prompt 24, to 0.707)" in " ".join(said)
    few = alpha_report(lengths=[5, 9, 14], sq_norms=[2.0, 3.0, 7.0])  # which keep the fit
    assert few.curvature is None
    assert np.isfinite(few.low)
    assert alpha_report(measured(n_prompts=80), method="theil_sen").influence is None
    with pytest.raises(ValueError, match="method='rank' is not available here for a fit by 'ols'"):
        alpha_report(measured(), interval="rank")


@pytest.mark.parametrize("interval", ["t", "hc3", "cluster", "bootstrap"])
def test_the_standard_error_is_that_of_the_interval(interval):
    """At n = 120 the half-width of each interval is its standard error times a quantile between 1.8 and 2.2."""
    given = measured()
    report = alpha_report(given, interval=interval)
    assert report.stderr == report.fit.standard_error(interval)
    frame = report.to_frame()
    assert frame["interval"].item() == report.summary()["interval"] == interval
    assert frame["alpha_stderr"].item() == frame["slope_stderr"].item() / 2 == report.stderr
    assert 1.8 < (report.high - report.low) / 2 / report.stderr < 2.2
    assert tuple(frame[["alpha_low", "alpha_high"]].iloc[0]) == (report.low, report.high)
    others = {name: report.fit.standard_error(name) for name in ("t", "hc3", "cluster", "bootstrap")}
    assert len(set(others.values())) == 4


@pytest.mark.parametrize("method", list(METHODS))
def test_influence_in_closed_form_is_refitting(method):
    given = measured(n_prompts=12)
    keywords = {"lengths": given.lengths, "sq_norms": given.sq_norms, "groups": given.rollouts.prompt_id}
    report = alpha_report(**keywords, method=method)
    assert (report.mean_fit is None) == (method != "ols")
    for row in report.influence.to_dict("records"):
        rest = given.rollouts.prompt_id != row["prompt"]
        alone = fit_length_scaling(**{name: np.asarray(v)[rest] for name, v in keywords.items()}, method=method)
        assert row["alpha"] == pytest.approx(alone.alpha, rel=1e-9)
        assert row["change"] == pytest.approx(alone.alpha - report.fit.alpha, abs=1e-9)


def test_noise_that_changes_with_length_is_reported_where_the_interval_does_not_allow_for_it():
    rng = np.random.default_rng(0)
    x = rng.normal(4.5, 0.7, 200)
    noise = rng.normal(size=200)
    for scale, reported in ((1.0, False), (0.2 + np.abs(x - 4.5), True)):
        keywords = {"lengths": np.exp(x), "sq_norms": np.exp(1.6 * x + scale * noise)}
        said = " ".join(alpha_report(**keywords, interval="t").sentences())
        assert ("or is shared by answers to a prompt, which the t interval does not allow for" in said) is reported
        for interval in (None, "cluster", "hc3"):
            assert "The noise changes" not in " ".join(alpha_report(**keywords, interval=interval).sentences())


def test_alpha_within_prompts_stands_beside_the_pooled_one():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 4)
    lengths = np.exp(rng.normal(5, 0.5, 80))
    sq_norms = lengths**1.6 * np.exp(rng.normal(0, 0.3, 20))[groups]
    report = alpha_report(lengths=lengths, sq_norms=sq_norms, groups=groups)
    assert report.within_fit is not None
    assert report.within_fit.alpha == pytest.approx(0.8)
    assert report.summary()["within_prompt"]["alpha"] == report.within_fit.alpha
    (sentence,) = report.beside()
    assert sentence.startswith("Among answers to one prompt, as a group baseline sees them, α = 0.800 [")
    itself = alpha_report(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    assert itself.within_fit is itself.fit
    assert itself.beside() == []
    assert alpha_report(lengths=lengths, sq_norms=sq_norms).within_fit is None


def test_alpha_states_its_metric():
    plain = measured()
    adam = {"name": "adam", "eps": 1e-8, "power": 0.5, "step": None, "beta2": 0.999, "moments": "1a2b"}
    scaled = SimpleNamespace(**{**vars(plain), "metadata": {"metric": adam}})
    assert alpha_report(plain).summary()["metric"] == "euclidean"
    report = alpha_report(scaled)
    label = "adam(eps=1e-08, power=0.5, moments=1a2b)"
    assert report.summary()["metric"] == report.within_fit.metric == report.fit.without_truncated().metric == label
    assert f"α is the exponent of norms in the metric {label}, not of Euclidean ones." in report.sentences()
    assert "the metric" not in " ".join(alpha_report(plain).sentences())
