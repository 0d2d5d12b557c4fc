"""The modules of docs/ that write pages, as ``python docs/PAGE.py`` runs them: with docs/ on the path."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def docs_module(monkeypatch):
    """A function: name → module of docs/."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module


@pytest.fixture
def no_figures(docs_module, monkeypatch, tmp_path):
    """An empty folder in the place of figures/."""
    monkeypatch.setattr(docs_module("committed_numbers"), "FIGURES", tmp_path)
    return tmp_path
