"""Drawing and reporting a run from its saved numbers."""

import re

from saved_runs import save_run, saved_sweep
from small_runs import only_two_figures

from gradstats.report.saved_results import read_results


def test_figures_are_drawn_as_the_options_say(answered, monkeypatch, tmp_path):
    only_two_figures(monkeypatch)
    save_run(tmp_path / "run")
    words = ("--venue", "neurips", "--column", "half", "--formats", "svg", "--out", tmp_path / "drawn")
    out = answered("export", tmp_path / "run", "--only", "figures", *words)
    assert re.search(rf"{tmp_path / 'drawn'}: \d+ figures \(svg, csv\)", out)
    assert not list((tmp_path / "drawn").glob("*.pdf"))
    assert 'width="198pt"' in (tmp_path / "drawn" / "variance.svg").read_text()  # half of NeurIPS: 2.75 in


def test_the_report_is_one_page(answered, refused, monkeypatch, tmp_path):
    only_two_figures(monkeypatch)
    before = {path: path.read_bytes() for path in save_run(tmp_path / "run").rglob("*") if path.is_file()}
    out = answered("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    assert out.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert "a report is HTML" in refused("report", tmp_path / "run", "--out", tmp_path / "page.pdf")
    assert not (tmp_path / "page.pdf").exists()


def test_a_sweep_is_compared_in_a_gallery(answered, refused, tmp_path):
    sweep = saved_sweep(tmp_path / "sweep")
    assert "gradstats report --gallery" in refused("report", sweep)
    assert "name at least one run directory: gradstats export RUN" in refused("export")
    out = answered("report", "--gallery", sweep, "--out", tmp_path / "gallery.html")
    assert out.strip() == str(tmp_path / "gallery.html")
    assert "2 runs side by side" in (tmp_path / "gallery.html").read_text()


def test_tables_fit_the_venue_and_say_what_they_leave_out(answered, tmp_path):
    save_run(tmp_path / "run")
    words = ("--venue", "neurips", "--column", "half", "--out", tmp_path / "tex")
    out = answered("export", tmp_path / "run", "--only", "tables", *words)
    written = {path.name for path in (tmp_path / "tex").iterdir()}
    assert {"variance.tex", "alpha.tex", "group_sizes.tex"} <= written
    assert f"{tmp_path / 'tex'}: {len(written)} tables (tex)" in out
    assert r"\begin{minipage}{2.75in}" in (tmp_path / "tex" / "variance.tex").read_text()
    assert "neurips's half column has no room for every column of " in " ".join(out.split())
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_columns_of_tables_are_chosen_and_a_misspelt_one_is_refused(answered, refused, tmp_path):
    save_run(tmp_path / "run")
    words = ("export", tmp_path / "run", "--only", "tables", "--columns")
    answered(*words, "cosine", "--siunitx")
    text = (tmp_path / "run" / "tables" / "variance.tex").read_text()
    assert "{cosine}" in text
    assert "{tr Cov}" not in text
    assert "S[table-format=" in text
    assert "--columns cosin: no table of the run has such a column, only" in refused(*words, "cosin")


def test_rows_of_tables_are_chosen_ordered_and_named(answered, refused, tmp_path):
    labels = list(read_results(save_run(tmp_path / "run")).variance["estimator"])
    words = ("--estimators", labels[1], labels[0], "--labels", f"{labels[1]}=ours, at $x_1$", "--columns", "cosine")
    answered("export", tmp_path / "run", "--only", "tables", *words, "--out", tmp_path / "tex")
    rows = (tmp_path / "tex" / "variance.tex").read_text().split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert rows.strip().startswith("ours, at $x_1$ & ")
    assert rows.count("&") == 2
    assert "no run has a row of 'rlo': choose from" in refused(
        "export", tmp_path / "run", "--only", "tables", "--estimators", "rlo"
    )


def test_several_runs_and_sweeps_have_one_table_of_each_kind(answered, refused, tmp_path):
    sweep = saved_sweep(tmp_path / "sweep")
    answered("export", sweep, "--only", "tables", "--column", "full")
    assert {path.name for path in (sweep / "tables").iterdir()} == {"runs.tex", "variance.tex"}
    assert r"temperature=1.0 & $" in (sweep / "tables" / "runs.tex").read_text().replace(r"\allowbreak{}", "")
    cells = [sweep / "temperature=0.6", sweep / "temperature=1.0"]
    answered("export", *cells, "--only", "tables", "--labels", "cell 1=warm", "--out", tmp_path / "tex")
    assert "RLOO, warm & " in (tmp_path / "tex" / "variance.tex").read_text()
    assert "has results that can be tabulated yet" in refused(
        "export", saved_sweep(tmp_path / "new", missing=[c.name for c in cells]), "--only", "tables"
    )
