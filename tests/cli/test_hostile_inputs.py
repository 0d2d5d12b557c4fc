"""Measurements that no one wants, through the commands: one sentence with argument or column, value and remedy."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from command_line import run

import gradstats as gs
from gradstats.measurement.measurement import Measurement

WORDS = {
    "variance": ["variance", "MEASURED", "--estimators", "rloo", "recipe:grpo", "recipe:gspo", "--notes"],
    "what is lacking": ["variance", "MEASURED", "--estimators", "rloo", "gae", "otb", "remax", "--notes"],
    "ratios": ["ask", "MEASURED", "ratios", "--notes"],
    "shift": ["ask", "MEASURED", "shift", "recipe:dr_grpo"],
    "group_sizes": ["ask", "MEASURED", "group_sizes", "recipe:grpo", "--group-size", "4"],
    "tokens": ["ask", "MEASURED", "group_sizes", "otb(loo=True)", "--group-size", "4"],
}


def shifted(known: Measurement, by: float, at: slice = slice(None)) -> list[np.ndarray]:
    """Log-probabilities of which those of one completion are moved."""
    moved = [scored.copy() for scored in known.logprobs]
    moved[3][at] += by
    return moved


def measured_with(known: Measurement, columns=None, metadata=None, **fields) -> Measurement:
    """The measurement with some columns of the rollouts, of their metadata and of itself replaced."""
    frame = known.rollouts.frame.assign(**(columns or {}))
    return replace(known, rollouts=gs.Rollouts(frame, {**known.rollouts.metadata, **(metadata or {})}), **fields)


#: What is wrong → how the measurement becomes so.
CHANGES = {
    "nothing": measured_with,
    "ratios overflow": lambda known: measured_with(known, {"sampler_logprobs": shifted(known, -900.0)}),
    "impossible tokens drawn": lambda known: measured_with(
        known, {"sampler_logprobs": shifted(known, -np.inf, slice(1))}
    ),
    "impossible tokens scored": lambda known: measured_with(
        known, {"sampler_logprobs": known.logprobs}, logprobs=shifted(known, -np.inf, slice(1))
    ),
    "off-policy, unknown": lambda known: measured_with(known, metadata={"sampler": {"temperature": 0.6, "top_k": 0}}),
    "one a group": lambda known: measured_with(
        known, {"prompt_id": [f"q{row}" for row in range(len(known.rollouts))], "sample_id": 0}
    ),
    "rewards zero": lambda known: measured_with(known, {"reward": 0.0}),
}
OVERFLOWS = "the ratio π/π_old of completion 3 is e^900, which overflows"
EVERY = ("variance", "ratios", "shift", "group_sizes")
INFINITE = "-inf, at completion 3, position 0"
DRAWN = "the sampler cannot have drawn a token of probability 0: record"
#: What is wrong, and the command → exit code, and parts of what is answered or of why not.
SAID = {
    ("ratios overflow", "variance"): (
        0, "no row for recipe:grpo and recipe:gspo: the notes say why",  # the other row stays
        f"the row is NaN: recipe:grpo: {OVERFLOWS}", f"the row is NaN: recipe:gspo: {OVERFLOWS}",
        "ratios of whole completions overflow (that of completion 3 is e^TOTAL): score a policy closer",
    ),
    ("ratios overflow", "ratios"): (
        0, "(π/π_old of completion 3 is e^TOTAL), so that mean, variance and χ² are not finite: score a"
    ),
    ("ratios overflow", "shift"): (0, "0 by construction"),  # ratios do not enter a baseline
    ("ratios overflow", "group_sizes"): (1, f"recipe:grpo: {OVERFLOWS}"),
    **{("impossible tokens drawn", one): (1, INFINITE, DRAWN) for one in EVERY},
    **{("impossible tokens scored", one): (1, INFINITE, "score in") for one in EVERY},
    ("off-policy, unknown", "variance"): (
        0, "the row is NaN: recipe:grpo weights by the ratios π/π_old, and the completions were drawn with "
        "temperature=0.6 by a sampler whose log-probabilities are not known: sample with",
    ),
    ("off-policy, unknown", "ratios"): (
        1, "ratios need the log-probabilities of sampler and scorer at every counted token: sample with"
    ),
    ("off-policy, unknown", "shift"): (0, "0 by construction"),
    ("one a group", "variance"): (
        0, "groups hold a single completion (choose group_size of at least 2), so rloo, recipe:grpo and"
    ),
    ("one a group", "group_sizes"): (1, "a prompt has a single completion, and groups need two: sample more"),
    ("rewards zero", "variance"): (
        0, "every reward equals 0 (choose problems that are solved sometimes, not always), so rloo",
        "where 5% were cut off",
    ),
    ("rewards zero", "group_sizes"): (
        1, "no completion any weight in groups of 2, since every reward equals 0 (choose problems that"
    ),
    ("nothing", "what is lacking"): (
        0, "the row is NaN: gae needs values, which this batch lacks (values: pass", " rloo 1 ",  # its row stays
        "the row is NaN: otb weights each token, and only scores of whole completions are known: pass",
        "the row is NaN: remax needs greedy_rewards, which this batch lacks (greedy_rewards: sample with",
    ),
    ("nothing", "tokens"): (1, "otb(loo=True) weights each token, and only scores of whole completions are known"),
}  # fmt: skip


@pytest.fixture
def known(measured):
    return gs.read_measurement(measured)


@pytest.mark.parametrize(("wrong", "command"), SAID)
def test_what_is_wrong_is_said_with_its_remedy(wrong, command, known, tmp_path, monkeypatch, capsys):
    CHANGES[wrong](known).save(tmp_path / "measurement")
    words = [tmp_path / "measurement" if word == "MEASURED" else word for word in WORDS[command]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy's own
        code, out, err = run(monkeypatch, capsys, *words)
    expected, *parts = SAID[wrong, command]
    assert (code, "Traceback" in out + err, "a file may be damaged" in out + err) == (expected, False, False)
    said = " ".join((out if code == 0 else err).split())
    assert [part for part in parts if part.replace("TOTAL", str(900 * len(known.logprobs[3]))) not in said] == []
    assert "∞" not in said
    assert ("group_size" in said) <= (wrong != "rewards zero")
