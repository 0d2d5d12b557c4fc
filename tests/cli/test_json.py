"""Every command that answers a question can answer in JSON, and prints nothing else then."""

from __future__ import annotations

import inspect
import json

import pytest
from command_line import run

from gradstats.cli.commands import COMMANDS

#: Commands whose answer is a file or a folder, or which print JSON in any case.
WITHOUT = {"init", "run", "sample", "measure", "regrade", "figures", "tables", "report", "env"}


def test_every_command_that_answers_has_the_option():
    have = {name for name, command in COMMANDS.items() if "as_json" in inspect.signature(command).parameters}
    assert have == set(COMMANDS) - WITHOUT


@pytest.mark.parametrize("what", ["estimators", "terms", "quantities", "experiments", "rewards"])
def test_a_list_is_rows(monkeypatch, capsys, what):
    code, out, _ = run(monkeypatch, capsys, "list", what, "--json")
    assert code == 0
    assert len(json.loads(out)["rows"]) > 2
    assert len(json.loads(out)["rows"][0]) > 1


@pytest.mark.parametrize(
    "words",
    [
        ("variance", "SOURCE", "--estimators", "rloo", "grpo"),
        ("variance", "SOURCE", "--estimators", "rloo", "grpo", "--by-length", 2),
        ("allocate", "SOURCE", "rloo", "--tokens", 1000),
    ],
)
def test_a_table_is_rows_also_where_it_is_written(monkeypatch, capsys, tmp_path, measured, words):
    words = [measured if word == "SOURCE" else word for word in words]
    code, out, _ = run(monkeypatch, capsys, *words, "--json", "--out", tmp_path / "table.csv")
    assert code == 0
    answer = json.loads(out)
    assert all(len(rows) > 0 for name, rows in answer.items() if name in ("rows", "ratios"))
    assert (tmp_path / "table.csv").is_file()
