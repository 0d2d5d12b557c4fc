"""A question of an installed package: named without a colon, and shown wherever those of this package are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from gradstats.analyses import registry
from gradstats.runs.validate import check_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of installed packages, with the question of CONTRIBUTING as one of them."""
    folder = tmp_path_factory.mktemp("site")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = text.partition("## Add a question")[2].partition("```python\n")[2].partition("```")[0]
    (folder / "own_lengths.py").write_text(code)
    about = folder / "own_lengths-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-lengths\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gradstats.analyses]\nlengths = own_lengths:question\n")
    return folder


@pytest.fixture
def installed(site, monkeypatch):
    """Install the package in this process, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(site))
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()
    sys.modules.pop("own_lengths", None)


def test_a_process_in_which_it_is_installed_lists_it(site):
    search = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": search, "COLUMNS": "120"}
    words = [sys.executable, "-m", "gradstats", "ask"]
    assert "\n  lengths " in subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def test_an_installed_question_is_explained_kept_and_shown_without_trust(
    installed, drawn, tmp_path, monkeypatch, capsys
):
    path = shutil.copytree(drawn.run.path, tmp_path / "run")
    (path / "report.html").unlink()
    printed = []
    for words in (
        ("ask", "lengths", "--help"),
        ("ask", path, "lengths", "--longest", 3),
        ("report", path),
        ("export", path, "--only", "tables"),
    ):
        code, out, err = run(monkeypatch, capsys, *words)
        assert code == 0, err
        printed.append(out)
    assert "--longest" in printed[0]
    assert "mean length" in printed[1]
    assert (path / "figures" / "lengths.png").is_file()
    assert "Mean lengths." in (path / "report.html").read_text(encoding="utf-8")
    assert (path / "tables" / "lengths.tex").is_file()


def test_the_settings_of_an_installed_question_are_checked(installed, drawing):
    check_names(drawing.model_copy(update={"analyses": {"lengths": {"longest": 2}}}))
    with pytest.raises(ValueError, match=r"analyses\.lengths: there is no setting 'longes': did you mean longest"):
        check_names(drawing.model_copy(update={"analyses": {"lengths": {"longes": 2}}}))
