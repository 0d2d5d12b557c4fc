"""The generated sections of docs/estimators.md agree with the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page_module():
    spec = importlib.util.spec_from_file_location("estimators_page", DOCS / "estimators_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current(page_module):
    page = (DOCS / "estimators.md").read_text(encoding="utf-8")
    rendered = page_module.render(page)
    assert rendered == page, "run: python docs/estimators_page.py"


def test_rankings_show_wins_and_losses(page_module):
    matched = {
        name: make_ranking.set_index("estimator")["at matched signal"]
        for name, policy in page_module.POLICIES.items()
        for make_ranking in [page_module.ranking(policy())]
    }
    length, otb = "`length_weighted(alpha=0.8, loo=True)`", "`otb(loo=True)`"
    assert matched["patient"][length] < 1
    assert matched["patient"][otb] < 1
    assert matched["last word"][length] > 1
    assert matched["last word"][otb] > 1
    assert matched["steady"][length] > 1
    assert matched["steady"][otb] < 1


def test_a_missing_marker_is_named(page_module):
    with pytest.raises(ValueError, match="one pair of markers for 'estimators', found 0"):
        page_module.render(re.sub("generated: estimators", "gone", (DOCS / "estimators.md").read_text()))
