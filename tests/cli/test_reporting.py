"""Drawing and reporting a run from its saved numbers."""

from __future__ import annotations

from command_line import run
from saved_runs import save_run


def test_figures_need_a_run(monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "figures")
    assert code == 1
    assert "name at least one run directory: gradstats figures RUN" in err


def test_figures_are_drawn_as_the_options_say(monkeypatch, capsys, tmp_path):
    save_run(tmp_path / "run")
    words = ("--venue", "neurips", "--column", "half", "--formats", "svg", "--out", tmp_path / "drawn")
    code, out, err = run(monkeypatch, capsys, "figures", tmp_path / "run", *words)
    assert code == 0, err
    assert str(tmp_path / "drawn" / "variance.svg") in out
    assert not list((tmp_path / "drawn").glob("*.pdf"))
    assert 'width="198pt"' in (tmp_path / "drawn" / "variance.svg").read_text()  # half of NeurIPS: 2.75 in


def test_the_report_is_one_page(monkeypatch, capsys, tmp_path):
    save_run(tmp_path / "run")
    code, out, err = run(monkeypatch, capsys, "report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert code == 0, err
    assert out.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
