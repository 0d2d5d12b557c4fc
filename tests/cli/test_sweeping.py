"""The sweep command: its dry run, and what it prints."""

from __future__ import annotations

import pytest
import yaml
from command_line import run
from rich.console import Console
from saved_runs import saved_sweep

import gradstats as gs
from gradstats.cli.running import show_sweep


def test_a_dry_run_names_the_cells_and_who_draws_for_whom(tmp_path, monkeypatch, capsys):
    data = {
        "policy": {"name": "embedded"}, "prompts": {"source": "embedded", "n": 4},
        "sampling": {"group_size": 2, "max_new_tokens": 8}, "vary": {"measurement.sketch_dim": [64, 128]},
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(data))
    code, out, notes = run(monkeypatch, capsys, "sweep", tmp_path / "s.yaml", "--dry-run")
    assert code == 0
    assert "s sketch_dim=64: would sample 8 completions of 4 prompts" in out
    assert "sketch_dim=128 takes the completions of sketch_dim=64: it samples nothing" in out + notes
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("columns", [80, 160])
def test_the_summary_fits_the_terminal(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setattr("gradstats.cli.terminal.console", Console(width=columns, highlight=False))
    show_sweep(gs.read_sweep(saved_sweep(tmp_path / "sweep", missing=["temperature=1.0"])))
    out, notes = capsys.readouterr()
    assert "temperature=0.6" in out
    assert "1.3 [" in out
    assert "temperature=1.0 has no results yet" in out + notes
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 160])
def test_differences_of_few_cells_are_printed_for_every_pair(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setattr("gradstats.cli.terminal.console", Console(width=columns, highlight=False))
    pairs = {}
    for temperatures in ((0.6, 0.8, 1.0), (0.5, 0.6, 0.7, 0.8, 0.9)):
        show_sweep(gs.read_sweep(saved_sweep(tmp_path / str(len(temperatures)), temperatures=temperatures)))
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= columns
        lines = out.partition("differences, paired over prompts")[2].splitlines()
        pairs[len(temperatures)] = [line.split()[:2] for line in lines if "mean length" in line]
    assert pairs[3] == [[f"temperature={a}", f"temperature={b}"] for a, b in ((0.8, 0.6), (1.0, 0.6), (1.0, 0.8))]
    assert pairs[5] == [[f"temperature={a}", "temperature=0.5"] for a in (0.6, 0.7, 0.8, 0.9)]
