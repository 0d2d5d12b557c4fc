"""Several runs on one page: α and the ratios of all, with links to the page of each."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from saved_runs import save_run, saved_sweep

from gradstats.cli import commands
from gradstats.report.gallery import gallery_page, write_gallery
from gradstats.report.numbers import number_with_interval
from gradstats.report.saved_results import read_results
from gradstats.system.files import read_json, write_json


@pytest.fixture
def folders(tmp_path):
    other = {"policy": {"name": "models/<a model with a long name>"}}
    return [save_run(tmp_path / "runs" / "one", name="one"), save_run(tmp_path / "runs" / "two #2", "two", 1, **other)]


def test_every_run_has_its_alpha_and_every_estimator_its_ratios(folders, tmp_path):
    page = write_gallery(folders, tmp_path / "gallery.html").read_text()
    for folder in folders:
        alpha = read_json(folder / "alpha.json")
        numbers = (alpha["alpha"], alpha["alpha_low"], alpha["alpha_high"])
        assert f'<td data-key="{numbers[0]!r}">{number_with_interval(*numbers, markup="html")}</td>' in page
    assert page.count('0.93 <span class="sides"><span>+0.28</span> <span>−0.19</span></span>') == 4
    assert page.count("<strong>") == 2
    assert '<button type="button">one</button>' in page
    assert "&lt;a model with a long name&gt;" in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "The runs differ in policy.name (one: models/p, two: models/&lt;a model with a long name&gt;)." in page
    assert "Ratios are to RLOO, on the completions of the same run." in page
    assert "Intervals are at the level of 95%" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_links_lead_to_the_pages_that_exist(folders, tmp_path):
    (folders[1] / "report.html").write_text("written by gradstats")
    page = write_gallery(folders, tmp_path / "gallery.html").read_text()
    assert re.findall(r'<a href="(runs[^"]*)">', page) == ["runs/two%20%232/report.html"]


def test_an_estimator_of_one_run_only_leaves_a_cell_empty(folders, tmp_path):
    table = pd.read_csv(folders[1] / "variance.csv")
    table[table["estimator"] != "reinforce"].to_csv(folders[1] / "variance.csv", index=False)
    (folders[0] / "alpha.json").unlink()
    page = gallery_page([read_results(folder) for folder in folders], tmp_path)
    assert page.count('<td data-key=""></td>') == 2
    assert '<td data-key="">–</td>' in page


def test_other_references_and_shared_names_are_said(folders, tmp_path):
    write_json(folders[1] / "variance.json", read_json(folders[1] / "variance.json") | {"reference": "reinforce"})
    runs = [read_results(folder) for folder in folders]
    page = gallery_page(runs, tmp_path)
    assert "Ratios are to different references and do not compare across runs (one: RLOO, two: REINFORCE)." in page
    twice = gallery_page([runs[0], read_results(save_run(tmp_path / "elsewhere", name="one"))], tmp_path)
    assert 'data-key="elsewhere"' in twice
    hostile = gallery_page([read_results(save_run(tmp_path / "hostile", name="<b>a_b"))], tmp_path)
    assert hostile.count("&lt;b&gt;a_<wbr>b") == 3
    assert "<b>" not in hostile


def test_the_runs_of_a_sweep_are_listed(tmp_path, monkeypatch, capsys):
    sweep = saved_sweep(tmp_path / "sweep", missing=("temperature=1.0",))
    monkeypatch.setattr("sys.argv", ["gradstats", "report", "--gallery", str(sweep), "--out", str(tmp_path / "g.html")])
    commands.main()
    assert capsys.readouterr().out.strip() == str(tmp_path / "g.html")
    page = (tmp_path / "g.html").read_text()
    assert "<h1>cell 0</h1>" in page
    assert "cell 1" not in page


def test_nothing_foreign_is_replaced_and_several_runs_need_the_gallery(folders, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a report that gradstats wrote"):
        write_gallery(folders, tmp_path / "mine.html")
    page = folders[0] / "report.html"
    page.write_text("written by gradstats")
    (folders[0] / "rollouts").mkdir()
    (folders[0] / "rollouts" / "plan.json").write_text("{}")
    with pytest.raises(FileExistsError, match="belongs to the run"):
        write_gallery(folders, page)
    with pytest.raises(ValueError, match="name at least one run directory"):
        write_gallery([], tmp_path / "gallery.html")
    monkeypatch.setattr("sys.argv", ["gradstats", "report", *map(str, folders)])
    with pytest.raises(SystemExit):
        commands.main()
    assert "gradstats report --gallery RUN RUN" in " ".join(capsys.readouterr().err.split())
