"""The page of every setting of an experiment file agrees with the declarations."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("experiment_page", DOCS / "experiment_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == (DOCS / "experiment_file.md").read_text(encoding="utf-8"), (
        "run: python docs/experiment_page.py"
    )
