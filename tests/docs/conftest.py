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
def public(docs_module) -> dict[str, object]:
    """Public name without the package → what it is."""
    listed = [name for names in docs_module("site_pages").api_groups().values() for name in names]
    split = (name.rsplit(".", 1) for name in listed)
    return {f"{module}.{name}"[10:]: getattr(importlib.import_module(module), name) for module, name in split}
