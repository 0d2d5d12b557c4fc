"""Proxies of completions against their squared gradients, on numbers whose ranks are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from measured_by_hand import measured_by_hand
from scipy import stats

from gradstats.analyses.proxies import proxies_by_block
from gradstats.measurement.measurement import Measurement


@pytest.fixture(scope="module")
def measured() -> Measurement:
    """Twelve prompts of five completions, one of whose blocks its proxy knows up to a factor."""
    drawn = measured_by_hand(60, tokens=False)
    frame = drawn.rollouts.frame.assign(
        prompt_id=np.repeat([f"p{one}" for one in range(12)], 5), sample_id=np.tile(np.arange(5), 12)
    )
    values = np.random.default_rng(1).lognormal(size=(60, 2))
    norms = pd.DataFrame({"head": 3.0 * values[:, 0], "rest": values[:, 0] ** 0.5 * values[:, 1]})
    proxies = {"mine": values[:, 0], "flat": np.ones(60)}
    return replace(
        drawn, rollouts=replace(drawn.rollouts, frame=frame), sq_norms_by_block=norms, proxies=proxies, weighted={}
    )


def test_ranks_and_factors_equal_those_of_scipy(measured):
    found = proxies_by_block(measured)
    frame = found.to_frame().set_index(["block", "proxy"])
    assert list(frame.index.unique("block")) == ["all", "head", "rest"]
    perfect, flat = frame.loc[("head", "mine")], frame.loc[("head", "flat")]
    assert perfect[["rank_within", "rank_between", "factor"]].tolist() == pytest.approx([1, 1, 1])
    assert flat[["rank_within", "rank_between"]].isna().all()
    values, rest = measured.proxies["mine"], measured.sq_norms_by_block["rest"].to_numpy()
    row = frame.loc[("rest", "mine")]
    within = [stats.spearmanr(*one).statistic for one in zip(values.reshape(12, 5), rest.reshape(12, 5), strict=True)]
    between = stats.spearmanr(values.reshape(12, 5).mean(axis=1), rest.reshape(12, 5).mean(axis=1)).statistic
    off = np.abs(np.log(rest / (rest.sum() / values.sum() * values)))
    expected = [np.mean(within), between, np.exp(rest @ off / rest.sum())]
    assert row[["rank_within", "rank_between", "factor"]].tolist() == pytest.approx(expected)
    for name in ("rank_within", "rank_between", "factor"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    assert "of the proxies mine is nearest" in found.sentence().lower()


def test_an_older_measurement_has_those_of_its_tokens(measured):
    frame = proxies_by_block(replace(measured, proxies={})).to_frame()
    assert set(frame["proxy"]) == {"logit", "surprisal", "entropy", "length"}
