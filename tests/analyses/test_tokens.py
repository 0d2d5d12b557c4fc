"""The quality of forward-only proxies, on proxies whose quality is known."""

from __future__ import annotations

import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from probed_policies import drawn_tokens
from scipy import stats

import gradstats as gs
from gradstats.analyses.tokens import otb_ratio
from gradstats.estimators import Batch


def ratio_of(measured, values):
    return otb_ratio(measured, "mine", values, Batch.from_measurement(measured), None, 0)


def test_one_completion_a_prompt_or_no_sketches_leave_the_cost_open():
    measured = drawn_tokens(n_groups=60)[0]
    values = list(measured.token_energy)
    assert np.isnan(ratio_of(replace(measured, sketches=None), values).value)
    quality = gs.proxy_quality(measured.select(slice(0, None, 3)))
    assert quality.to_frame()["otb_ratio"].isna().all()
    assert "at least two completions per prompt" in quality.notes[0]


def with_last_layer(measured, energies):
    """The measurement with hidden norms that make the last-layer proxy equal the given energies."""
    logit = [
        1 - 2 * np.exp(logprobs) + squares
        for logprobs, squares in zip(measured.logprobs, measured.sum_pi_squared, strict=True)
    ]
    hidden = [energy / weight for energy, weight in zip(energies, logit, strict=True)]
    return replace(measured, hidden_sq_norms=hidden)


def test_a_perfect_proxy_is_perfect():
    measured, _, _ = drawn_tokens(n_groups=60)
    quality = gs.proxy_quality(with_last_layer(measured, [7.0 * energy for energy in measured.token_energy]))
    row = quality.to_frame().set_index("proxy").loc["last_layer"]
    assert row["rank_correlation"] == pytest.approx(1.0)
    assert row["log_slope"] == pytest.approx(1.0)
    assert row["factor"] == pytest.approx(1.0)
    assert row["cumulative_error"] == pytest.approx(0.0, abs=1e-12)
    assert row["otb_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert quality.share_exact == pytest.approx(1.0)
    assert quality.confidence_interval(quantity="otb_ratio")[0].shape == (4,)


def test_logit_row_is_that_of_the_formula():
    measured, batch, scores = drawn_tokens(n_groups=60)
    frame = gs.proxy_quality(measured).to_frame().set_index("proxy")
    by_prompt: dict = {}
    for row in range(len(batch.rewards)):
        length = batch.lengths[row]
        if length > 2:
            proxy = 1 - 2 * np.exp(batch.logprobs[row, :length]) + batch.sum_pi_squared[row, :length]
            found = stats.spearmanr(proxy, (scores[row, :length] ** 2).sum(axis=1)).statistic
            by_prompt.setdefault(batch.groups[row], []).append(found)
    expected = np.mean([np.mean(found) for found in by_prompt.values()])
    assert frame.loc["logit", "rank_correlation"] == pytest.approx(expected)
    assert frame.loc["logit", "rank_correlation_low"] < expected < frame.loc["logit", "rank_correlation_high"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = gs.compare(batch, ["otb(loo=True)"], scores, reference="otb(energy=exact, loo=True)").to_frame()
    assert frame.loc["logit", "otb_ratio"] == pytest.approx(table["ratio"][0], rel=1e-6)
    assert frame.loc["logit", "otb_ratio_low"] == pytest.approx(table["ratio_low"][0], rel=1e-6)


def test_a_constant_proxy_has_no_ranks():
    measured, _, _ = drawn_tokens(n_groups=60)
    frame = gs.proxy_quality(measured).to_frame().set_index("proxy")
    assert np.isnan(frame.loc["entropy", "rank_correlation"])  # the policy's entropies were left at 0
    assert np.isnan(frame.loc["entropy", "log_slope"])


def test_tokens_are_listed():
    measured, batch, _ = drawn_tokens(n_heavy=1, n_groups=60)
    tokens = gs.proxy_quality(measured).tokens
    assert len(tokens) == batch.mask.sum()
    assert tokens["exact"].sum() == len(batch.rewards)
    assert (tokens.loc[tokens["exact"], "energy_stderr"] == 0).all()


def test_what_is_refused():
    measured, _, _ = drawn_tokens(n_groups=60)
    with pytest.raises(ValueError, match="no probes of token scores"):
        gs.proxy_quality(replace(measured, token_projections=None))
    with pytest.raises(ValueError, match="quantity='rank' is not estimated: choose from rank_correlation"):
        gs.proxy_quality(measured).confidence_interval(quantity="rank")


def test_its_figure_is_that_of_concentration():
    quality = gs.proxy_quality(drawn_tokens(n_groups=60)[0])
    ax = quality.plot()
    drawn = np.concatenate([np.ravel(line.get_ydata()) for line in ax.lines])
    assert np.isin(quality.concentration.to_frame()["share"], drawn).all()
    plt.close("all")


def test_the_concentration_of_an_adapters_residuals_is_a_note():
    """Of n weights of which one is 1 and the others 0, the Gini index is 1 − 1/n, and 1/n of them is effective."""
    measured = drawn_tokens()[0]
    residuals = [np.where(np.cumsum(mask) == 1, 1.0, 0.0) for mask in measured.rollouts.masks]
    frame = measured.rollouts.frame.assign(adapter_residual=residuals)
    notes = gs.proxy_quality(replace(measured, rollouts=replace(measured.rollouts, frame=frame))).notes
    effective = np.mean([1 / mask.sum() for mask in measured.rollouts.masks])
    assert f"Gini index of {1 - effective:.3f}" in notes[-1]
    assert f"effective tokens are {effective:.3f}" in notes[-1]
