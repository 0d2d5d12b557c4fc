"""Figures of saved runs: one, several, what they refuse and warn about."""

from __future__ import annotations

import json
import subprocess
import sys

import matplotlib as mpl
import pandas as pd
import pytest
from saved_runs import save_run

from gradstats.cli import commands
from gradstats.config.experiment import FiguresSection
from gradstats.report.figures import draw_overlay, draw_run
from gradstats.report.saved_results import differing_settings, read_results, run_labels

mpl.use("Agg")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        save_run(folder / "warm", name="warm"),
        save_run(folder / "cool", name="cool", seed=1, sampling={"temperature": 0.6}),
    ]


def command(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["gradstats", "figures", *map(str, words)])
    code = 0
    try:
        commands.main()
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def test_a_run_is_drawn_byte_identically_in_every_format(runs, tmp_path):
    look = FiguresSection(venue="acl", column="half", formats=["pdf", "svg", "png", "pgf"])
    builds = [draw_run(read_results(runs[0]), tmp_path / name, look) for name in ("one", "two")]
    assert [path.read_bytes() for path in builds[0]] == [path.read_bytes() for path in builds[1]]
    names = {path.name for path in builds[0]}
    assert {f"{figure}.{suffix}" for figure in ("length_scaling", "variance") for suffix in look.formats} <= names
    for path in builds[0]:
        if path.suffix == ".pdf":
            content = path.read_bytes()
            assert b"/Type3" not in content
            assert f"/MediaBox [ 0 0 {3.03 * 72:.2f}".rstrip("0").encode() in content
        if path.suffix == ".pgf":
            assert r"\pgfqpoint{3.030000in}" in path.read_text()
            assert "setmainfont" not in path.read_text()


def test_several_runs_are_labelled_and_warned_about(runs, monkeypatch, capsys, tmp_path):
    code, out, err = command(monkeypatch, capsys, *runs, "--out", tmp_path, "--formats", "svg", "--venue", "iclr")
    assert code == 0
    assert "the runs differ in sampling.temperature (warm: 1.0, cool: 0.6)" in err
    assert [line.rsplit("/", 1)[1] for line in out.split()] == [
        "length_scaling.svg", "length_scaling.csv", "variance.svg", "variance.csv",
    ]  # fmt: skip
    table = pd.read_csv(tmp_path / "variance.csv")
    assert list(table["run"][:2]) == ["warm (temperature 1.0)", "cool (temperature 0.6)"]
    assert list(table["estimator"][:4]) == ["rloo", "rloo", "reinforce", "reinforce"]


def test_runs_alike_are_not_warned_about(runs):
    results = [read_results(runs[0])] * 2
    assert differing_settings(results) == {}
    assert run_labels(results) == ["warm", "warm"]


def test_different_references_are_different_units(runs, tmp_path):
    other = save_run(tmp_path / "other", name="other")
    about = json.loads((other / "variance.json").read_text())
    (other / "variance.json").write_text(json.dumps(about | {"reference": "reinforce"}))
    with pytest.raises(
        ValueError, match=r"ratios are to different references \(rloo, reinforce\), which are different"
    ):
        draw_overlay([read_results(runs[0]), read_results(other)], tmp_path / "out", FiguresSection(formats=["svg"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name at least one run directory"),
        (["nowhere"], "nowhere is no run directory: make one with `gradstats run EXPERIMENT --out nowhere`"),
        (["RUN", "--venue", "nature"], "venue='nature' is not known: choose from icml, neurips, iclr, colm, acl, jmlr"),
        (["RUN", "--formats", "bmp"], "formats holds 'bmp': choose from pdf, svg, png, pgf"),
        (["RUN", "--out", "FILE/figures"], "figures cannot be written to"),
    ],
)
def test_bad_input_is_one_sentence(runs, monkeypatch, capsys, tmp_path, words, message):
    (tmp_path / "file").write_text("")
    words = [word.replace("RUN", str(runs[0])).replace("FILE", str(tmp_path / "file")) for word in words]
    code, _, err = command(monkeypatch, capsys, *words)
    assert code != 0
    assert message in " ".join(err.split())


def test_drawing_and_reporting_import_no_torch(runs, tmp_path):
    code = (
        "import sys\nfrom gradstats.cli import commands\n"
        f"sys.argv = ['gradstats', 'figures', {str(runs[0])!r}, '--out', {str(tmp_path)!r}, '--formats', 'svg']\n"
        "commands.main()\n"
        f"sys.argv = ['gradstats', 'report', {str(runs[0])!r}, '--out', {str(tmp_path / 'r.html')!r}]\n"
        "commands.main()\nprint([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
