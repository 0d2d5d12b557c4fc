"""Measurements that no one wants, through the commands: one sentence with argument or column, value and remedy."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from command_line import run

import gradstats as gs
from gradstats.analyses import registry
from gradstats.measurement.measurement import Measurement

QUESTIONS = {
    "variance": ["--estimators", "rloo", "recipe:grpo", "recipe:gspo", "--notes"],
    "ratios": ["--notes"],
    "shift": ["recipe:dr_grpo"],
    "group_sizes": ["recipe:grpo", "--group-size", "4"],
}


def saved(known: Measurement, folder, columns=None, metadata=None, **fields):
    """A measurement folder with some columns of the rollouts, of their metadata and of the measurement replaced."""
    frame = known.rollouts.frame.assign(**(columns or {}))
    rollouts = gs.Rollouts(frame, {**known.rollouts.metadata, **(metadata or {})})
    replace(known, rollouts=rollouts, **fields).save(folder / "measurement")
    return folder / "measurement"


def answer(monkeypatch, capsys, command, folder):
    """What a command prints, without a traceback, with numpy's warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        words = ("ask", folder, command) if command in registry.names() and command != "variance" else (command, folder)
        code, out, err = run(monkeypatch, capsys, *words, *QUESTIONS[command])
    assert "Traceback" not in out + err
    assert "unexpected, a file may be damaged" not in out + err
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.fixture
def known(measured):
    return gs.read_measurement(measured)


@pytest.mark.parametrize("command", QUESTIONS)
def test_ratios_that_overflow(monkeypatch, capsys, known, tmp_path, command):
    old = [scored.copy() for scored in known.logprobs]
    old[3] -= 900.0
    total = 900 * len(old[3])
    folder = saved(known, tmp_path, {"sampler_logprobs": old})
    code, out, err = answer(monkeypatch, capsys, command, folder)
    if command == "variance":
        assert code == 0  # the other row stays
        assert "no row for recipe:grpo and recipe:gspo: the notes say why" in out
        assert "the row is NaN: recipe:grpo: the ratio π/π_old of completion 3 is e^900, which overflows" in out
        assert "the row is NaN: recipe:gspo: the ratio π/π_old of completion 3 is e^900, which overflows" in out
        assert f"ratios of whole completions overflow (that of completion 3 is e^{total}): score a policy closer" in out
    elif command == "ratios":
        assert code == 0
        assert f"(π/π_old of completion 3 is e^{total}), so that mean, variance and χ² are not finite: score a" in out
        assert "∞" not in out
    elif command == "shift":  # ratios do not enter a baseline
        assert code == 0
        assert "0 by construction" in out
    else:
        assert code == 1
        assert "recipe:grpo: the ratio π/π_old of completion 3 is e^900, which overflows" in err


@pytest.mark.parametrize("command", QUESTIONS)
@pytest.mark.parametrize(
    ("column", "remedy"),
    [("sampler_logprobs", "the sampler cannot have drawn a token of probability 0: record"), ("logprobs", "score in")],
)
def test_infinite_log_probabilities(monkeypatch, capsys, known, tmp_path, command, column, remedy):
    broken = [scored.copy() for scored in known.logprobs]
    broken[3][0] = -np.inf
    if column == "logprobs":
        folder = saved(known, tmp_path, {"sampler_logprobs": known.logprobs}, logprobs=broken)
    else:
        folder = saved(known, tmp_path, {"sampler_logprobs": broken})
    code, _, err = answer(monkeypatch, capsys, command, folder)
    assert code == 1
    assert "-inf, at completion 3, position 0" in err
    assert remedy in err


@pytest.mark.parametrize("command", ["variance", "ratios", "shift"])
def test_off_policy_without_log_probabilities(monkeypatch, capsys, known, tmp_path, command):
    folder = saved(known, tmp_path, metadata={"sampler": {"temperature": 0.6, "top_p": 1.0, "top_k": 0}})
    code, out, err = answer(monkeypatch, capsys, command, folder)
    if command == "variance":
        assert code == 0
        assert (
            "the row is NaN: recipe:grpo weights by the ratios π/π_old, and the completions were drawn with "
            "temperature=0.6 by a sampler whose log-probabilities are not known: sample with" in out
        )
    elif command == "ratios":
        assert code == 1
        assert "ratios need the log-probabilities of sampler and scorer at every counted token: sample with" in err
    else:
        assert code == 0
        assert "0 by construction" in out


def test_ratios_taken_as_one_on_request(known, tmp_path):
    folder = saved(known, tmp_path, metadata={"sampler": {"temperature": 0.6}})
    measured = gs.read_measurement(folder)
    with pytest.raises(ValueError, match="recipe:grpo weights by the ratios π/π_old, and the completions were drawn"):
        gs.compare(measured, ["rloo", "recipe:grpo"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = gs.compare(measured, ["rloo", "recipe:grpo"], target="on_policy").to_frame()
    assert np.isfinite(frame["trace_cov"]).all()


@pytest.mark.parametrize("command", ["variance", "group_sizes"])
def test_one_completion_a_group(monkeypatch, capsys, known, tmp_path, command):
    alone = known.rollouts.frame.assign(prompt_id=[f"q{row}" for row in range(len(known.rollouts))], sample_id=0)
    folder = saved(known, tmp_path, {name: alone[name] for name in ("prompt_id", "sample_id")})
    code, out, err = answer(monkeypatch, capsys, command, folder)
    if command == "variance":
        assert code == 0
        assert "groups hold a single completion (choose group_size of at least 2), so rloo, recipe:grpo and" in out
    else:
        assert code == 1
        assert "no prompt has the 8 completions that two groups of 4 need" in err


@pytest.mark.parametrize("command", ["variance", "group_sizes"])
def test_rewards_that_are_all_zero(monkeypatch, capsys, known, tmp_path, command):
    folder = saved(known, tmp_path, {"reward": 0.0})
    code, out, err = answer(monkeypatch, capsys, command, folder)
    if command == "variance":
        assert code == 0
        assert "every reward equals 0 (choose problems that are solved sometimes, not always), so rloo" in out
        assert "group_size" not in out
    else:
        assert code == 1
        assert "no completion any weight in groups of 2, since every reward equals 0 (choose problems that" in err


def test_what_this_measurement_lacks(monkeypatch, capsys, measured):
    labels = ["rloo", "gae", "otb", "remax"]
    code, out, _ = run(monkeypatch, capsys, "variance", measured, "--estimators", *labels, "--notes")
    assert code == 0
    text = " ".join(out.split())
    assert "the row is NaN: gae needs values, which this batch lacks (values: pass" in text
    assert "the row is NaN: otb weights each token, and only scores of whole completions are known: pass" in text
    assert "the row is NaN: remax needs greedy_rewards, which this batch lacks (greedy_rewards: sample with" in text
    assert any(line.split()[:2] == ["rloo", "1"] for line in out.splitlines())  # its row stays
    code, _, err = run(monkeypatch, capsys, "ask", measured, "group_sizes", "otb(loo=True)", "--group-size", 4)
    assert code == 1
    assert "otb(loo=True) weights each token, and only scores of whole completions are known" in err
