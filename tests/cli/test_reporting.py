"""Drawing and reporting a run from its saved numbers."""

from __future__ import annotations

from command_line import run
from saved_runs import save_run, saved_sweep


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


def test_a_sweep_is_compared_in_a_gallery(monkeypatch, capsys, tmp_path):
    sweep = saved_sweep(tmp_path / "sweep")
    code, _, err = run(monkeypatch, capsys, "report", sweep)
    assert code == 1
    assert "gradstats report --gallery" in " ".join(err.split())
    code, out, err = run(monkeypatch, capsys, "report", "--gallery", sweep, "--out", tmp_path / "gallery.html")
    assert code == 0, err
    assert out.strip() == str(tmp_path / "gallery.html")
    assert "2 runs side by side" in (tmp_path / "gallery.html").read_text()
