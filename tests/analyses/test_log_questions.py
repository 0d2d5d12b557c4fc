"""The other questions of a log, against loops over completions."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gradstats.analyses import Analysis, drift, log_lengths, log_noise, mismatch, registry, silent_groups, spike
from gradstats.report.analysis_tables import table_of
from gradstats.rollouts import Log

ASK = {
    "silent_groups": silent_groups,
    "log_noise": log_noise,
    "log_lengths": log_lengths,
    "mismatch": mismatch,
    "drift": drift,
    "spike": spike,
}


@pytest.fixture(scope="module")
def log():
    """Six steps of 20 prompts × 4 completions, of which the long ones fail and rewards rise."""
    rng = np.random.default_rng(0)
    step, prompt = (one.ravel() for one in np.meshgrid(np.arange(6), np.repeat(np.arange(20), 4), indexing="ij"))
    length = rng.integers(10, 200, step.size).astype(float)
    reward = (rng.random(step.size) < 0.3 + 0.12 * step - 0.002 * length).astype(float)
    frame = pd.DataFrame({"step": step, "prompt": prompt, "group": 20 * step + prompt, "reward": reward})
    frame = frame.assign(length=length, truncated=(length > 180) * 1.0, entropy=rng.random(step.size))
    logs = rng.normal(0.0, 0.03 * np.sqrt(length))
    return Log(frame.assign(log_ratio=logs, n_ratios=length, abs_gap=0.02 * length, n_capped=1.0, n_outside=0.0), "six")


def test_rewards_of_many_values_are_binned(log):
    many = Log(log.frame.assign(reward=np.linspace(-1, 1, len(log.frame))), "many")
    rows = log_lengths(many).by_reward
    assert [row.n for row in rows] == [160, 160, 160]
    assert rows[0].rewards == (-1.0, pytest.approx(-1 / 3, abs=0.01))
    # Without any token nothing is said of their share.
    assert "tokens" not in silent_groups(Log(log.frame.assign(length=0.0), "empty")).sentence()
    assert "% of tokens" in silent_groups(log).sentence()


def test_bins_of_length_are_means_over_their_completions(log):
    found = log_lengths(log, n_bins=4)
    frame = log.frame.assign(within=log.frame["reward"] - log.frame.groupby("group")["reward"].transform("mean"))
    assert sum(row.n for row in found.rows) == len(frame)
    for row in found.rows:
        here = frame.loc[frame["length"].between(*row.length)]
        assert row.n == len(here)
        for name, column in (("reward", "reward"), ("within", "within"), ("truncated", "truncated")):
            assert getattr(row, name).value == pytest.approx(here[column].mean())
        assert row.tokens.value == pytest.approx(here["length"].sum() / frame["length"].sum())
    for row, reward in zip(found.by_reward, (0.0, 1.0), strict=True):
        here = frame.loc[frame["reward"] == reward]
        assert (row.n, row.rewards) == (len(here), (reward, reward))
        assert row.mean_length.value == pytest.approx(here["length"].mean())
    assert re.match(r"Longer completions of a group earn less \(correlation within groups −0.\d+ ", found.sentence())
    assert re.search(r"\. 1\d\.\d% are cut off: \d+\.\d% with reward 0, \d\.\d% with reward 1\.$", found.sentence())


def test_the_mismatch_is_that_of_the_ratios(log):
    found = mismatch(log, n_bins=3)
    for row in found.rows:
        here = log.frame.loc[log.frame["length"].between(*row.length)]
        ratios = np.exp(here["log_ratio"])
        assert row.effective.value * row.n == pytest.approx(ratios.sum() ** 2 / (ratios**2).sum())
        assert row.spread.value == pytest.approx(np.sqrt((here["log_ratio"] ** 2).mean()))
        assert row.masked.value == pytest.approx((ratios > 3).mean())
        assert row.capped.value == pytest.approx(len(here) / here["length"].sum())
        assert row.gap.value == pytest.approx(0.02)
    low, high = found.growth.confidence_interval(0.99)
    assert low < 0.5 < high  # tokens differ independently
    assert "Weighted by their ratios, 480 completions are worth" in found.sentence()
    equal = mismatch(Log(log.frame.assign(log_ratio=1e-6, abs_gap=1e-6), "equal"))
    assert re.match(r"Trainer and sampler agree \(.*\): nothing to correct\.$", equal.sentence())


def test_every_step_is_a_row_and_the_sentence_compares_the_ends(log):
    found = drift(log)
    for row, (step, here) in zip(found.rows, log.frame.groupby("step"), strict=True):
        groups = here.groupby("group")["reward"]
        silent = groups.nunique() == 1
        in_silent = here["group"].map(silent)
        assert (row.step, row.n) == (step, len(here))
        assert row.silent.value == pytest.approx(silent.mean())
        assert row.silent_tokens.value == pytest.approx(here.loc[in_silent, "length"].sum() / here["length"].sum())
        for name in ("reward", "length", "truncated", "entropy"):
            assert getattr(row, name).value == pytest.approx(here[name].mean())
    assert re.match(r"Over steps 0 to 5, first to last quarter: reward 0\.\d+ → 0\.\d+", found.sentence())
    still = Log(log.frame.assign(reward=np.tile([0.0, 1.0], len(log.frame) // 2), length=9.0, truncated=0.0), "still")
    assert drift(Log(still.frame.drop(columns=["entropy", "abs_gap"]), "still")).sentence().startswith("No change is")


@pytest.mark.parametrize("name", registry.OF_LOGS)
def test_every_question_of_a_log_is_declared_and_drawn(name, log):
    analysis, found = registry.get(name), ASK[name](log)
    assert isinstance(analysis, Analysis)
    answer = analysis.answer_of(found, 0.9)
    assert {f"{one.name}_low" for one in analysis.columns if one.estimated} <= set(answer.frame)
    for table in analysis.tables:
        frame = answer.frame if table is analysis else answer.further[table.name].frame
        assert registry.of_answer(table.name) is table
        if table.shown_in("paper"):
            assert len(table_of(table, frame).rows) == len(frame)
    for figure in analysis.figures:
        figure.draw(answer.further[figure.table].frame if figure.table else answer.frame)
        plt.close("all")
    assert found.sentence() in repr(found)
    assert registry.get(name).question.endswith("?")


@pytest.mark.parametrize(
    ("name", "without", "message"),
    [
        ("log_lengths", ["length"], "the log has no lengths: name the column"),
        ("log_noise", ["length"], "the log has no lengths: name the column"),
        ("mismatch", ["log_ratio"], "no log-probabilities of both sampler and trainer"),
        ("drift", [], "the log holds one step: give the files of several"),
        ("spike", [], "the log holds one step: give the files of several"),
    ],
)
def test_what_a_log_lacks_is_named(name, without, message, log):
    poorer = Log(log.frame.query("step == 0").drop(columns=without), "poorer")
    assert message in registry.get(name).unavailable_because(poorer)
    with pytest.raises(ValueError, match=message):
        ASK[name](poorer)
    assert registry.get(name).unavailable_because(log) == ""


@pytest.mark.parametrize("ask", [log_lengths, mismatch])
def test_bins_are_at_least_one(ask, log):
    with pytest.raises(ValueError, match="n_bins=0 must be at least 1"):
        ask(log, n_bins=0)
