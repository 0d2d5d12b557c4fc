"""What the README shows runs, and what it names is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from gradstats.cli.commands import COMMANDS
from gradstats.config.experiment import shipped_experiments

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")


def first_python(text: str) -> str:
    return text.split("```python\n", 1)[1].split("```", 1)[0]


def test_the_first_lines_are_those_of_the_site():
    assert first_python(TEXT) == first_python((ROOT / "docs" / "index.md").read_text("utf-8"))


@pytest.mark.filterwarnings("ignore::UserWarning")  # six prompts resolve little
def test_the_first_lines_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    code = first_python(TEXT)
    assert "n=48)" in code
    names: dict[str, object] = {}
    exec(code.replace("n=48)", "n=6)"), names)
    plt.close("all")
    printed = capsys.readouterr().out
    assert "alpha" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["variance.pdf", "variance.png"]
    assert list(names["table"].to_frame()["estimator"])[:3] == ["reinforce", "rloo", "grpo"]


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert len(links) > 20
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_commands_and_targets_are_there():
    commands = set(re.findall(r"(?:^|`)gradstats ([a-z-]+)", code_of(TEXT), re.M))
    assert {"run", "figures", "init"} <= commands <= set(COMMANDS)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", code_of(TEXT)))
    assert {"demo", "test", "docs"} <= named <= targets


def code_of(text: str) -> str:
    """What stands in blocks and spans of code."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.S))


def test_every_page_experiment_and_extra_is_listed():
    pages = {path.stem for path in ROOT.glob("docs/*.md")} - {"index"}
    assert {page for page in pages if f"(docs/{page}.md)" not in TEXT} == set()
    shipped = {**shipped_experiments(), **shipped_experiments(sweeps=True)}
    table = TEXT.split("## Included experiments")[1].split("\n## ")[0]
    assert {name for name in shipped if f"`{name}`" not in table} == set()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    installation = TEXT.split("## Installation")[1]
    assert {name for name in extras if f"`{name}`" not in installation} == set()
