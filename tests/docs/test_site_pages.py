"""What the documentation site says of names, commands and figures is what there is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from programs import program

import gradstats as gs
from gradstats.analyses import registry
from gradstats.cli.commands import COMMANDS
from gradstats.report.columns import INDEX
from gradstats.report.glossary import TERMS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return program("docs/site_pages.py")


def test_every_public_name_is_listed_once_and_found(pages):
    groups = pages.api_groups()
    listed = [name for names in groups.values() for name in names]
    assert len(listed) == len(set(listed))
    for name in listed:
        module, attribute = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), attribute)
    own = {name for name in gs.__all__ if not name.startswith("__") and not inspect.ismodule(getattr(gs, name))}
    assert own == {name.split(".")[1] for name in listed if name.count(".") == 1}
    modules = ("estimators", "plots", "tables", "data", "reference", "integrations.trl", "integrations.verl")
    assert {f"`gradstats.{name}`" for name in modules} <= set(groups)
    assert "algorithm.adv_estimator=gradstats/rloo" in pages.api_page()
    assert "gradstats.plots.style.VENUES" in listed  # a constant is documented where it is set


def test_the_help_of_every_command_is_printed(pages):
    page = pages.commands_page()
    questions = [f"ask RUN {name}" for name in registry.names()]
    assert [line[13:] for line in page.splitlines() if line.startswith("## gradstats ")] == [*COMMANDS, *questions]
    assert "usage: gradstats ask RUN success_bins" in page
    assert "\x1b" not in page


def test_every_column_is_listed_with_its_file(pages):
    page = pages.quantities_page()
    *tables, terms = page.split("## ")[1:]
    assert all(f"**{term}.** {meaning}" in terms for term, meaning in TERMS.items())
    assert [table.split("\n")[0] for table in tables] == list(INDEX)
    for text, columns in zip(tables, INDEX.values(), strict=True):
        for column in columns:
            assert f"| `{column.name}` | {column.meaning.replace('|', chr(92) + '|')} | `{column.file}` |" in text


def test_every_figure_is_shown_with_its_command(pages, monkeypatch):
    page = pages.gallery_page()
    pictures = [f"figures/{one.parent.name}/{one.name})" for one in DOCS.parent.glob("figures/*/*.png")]
    assert [picture for picture in pictures if picture not in page] == []
    assert "<function" not in page  # a caption that states what a run was asked with
    assert re.search(r"Thin bars: intervals that hold for all \d+ estimators compared at once\.", page)
    for shown in (
        "[Numbers](../../figures/qwen_mawps/tables/allocation.csv)",
        "[Numbers](../../figures/embedded_cap/sweep.csv)",
        *("gradstats run qwen_mawps\n", "gradstats run embedded_cap\n", "python benchmarks/long_traces.py\n"),
    ):
        assert shown in page
    monkeypatch.setattr(pages, "OTHER_COMMANDS", {})
    with pytest.raises(LookupError, match="nothing says what made .*figures"):
        list(pages.drawn_folders())


def test_pages_are_written_when_they_change_and_gone_names_lose_theirs(pages, monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "GENERATED", tmp_path / "generated")
    for name in ("commands_page", "quantities_page", "gallery_page"):
        monkeypatch.setattr(pages, name, lambda: "# Page\n")
    pages.write()
    before = (tmp_path / "generated" / "gallery.md").stat().st_mtime_ns
    (tmp_path / "generated" / "api").mkdir()
    for name in ("gradstats.measure", "gradstats.gone"):
        (tmp_path / "generated" / "api" / f"{name}.rst").touch()
    pages.write()
    assert (tmp_path / "generated" / "gallery.md").stat().st_mtime_ns == before
    assert [path.stem for path in tmp_path.glob("generated/api/*")] == ["gradstats.measure"]


def test_pages_of_the_site_are_those_that_its_index_lists():
    listed = {line.strip() for line in (DOCS / "index.md").read_text("utf-8").splitlines() if line.strip()}
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= listed
    assert {f"../notebooks/{path.stem}" for path in DOCS.parent.glob("notebooks/*.ipynb")} <= listed
    for script in DOCS.glob("*_page*.py"):
        assert ast.get_docstring(ast.parse(script.read_text("utf-8"))).startswith("Write ")
