"""Every public name has an example, or its page says where one is."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pandas as pd
import pytest

import gradstats as gs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(docs_module):
    return docs_module("shown_elsewhere")


def has_example(thing: object) -> bool:
    """Whether a docstring, or that of a method, holds an example that the test suite runs."""
    methods = [inspect.unwrap(one) for one in vars(thing).values()] if inspect.isclass(thing) else []
    return any(">>>" in (getattr(one, "__doc__", None) or "") for one in (thing, *methods))


def tables(elsewhere) -> list[dict[str, str]]:
    return [elsewhere.RETURNED_BY, elsewhere.CALLED_LIKE, elsewhere.USED_ON, elsewhere.LINES]


def test_every_public_name_has_an_example_or_says_where_one_is(elsewhere, public):
    listed = [name for table in tables(elsewhere) for name in table]
    assert len(listed) == len(set(listed))
    assert {name for name, thing in public.items() if not has_example(thing)} == set(listed)
    assert all(elsewhere.sentence_about(f"gradstats.{name}") for name in listed)
    assert elsewhere.sentence_about("gradstats.measure") == []


def test_examples_are_where_they_are_said_to_be(elsewhere, public):
    for target in {**elsewhere.RETURNED_BY, **elsewhere.CALLED_LIKE}.values():
        assert has_example(public[target]), target
    for name, page in elsewhere.USED_ON.items():
        source = ROOT / f"{page}.{'py' if page.startswith('notebooks') else 'md'}"
        written = name.rsplit(".", 1)[1] if "." in name else name
        # A result is not named on its page: what makes it is.
        made = {"OptimalBaselines": "optimal_baselines", "ProxyQuality": "proxy_quality", "SweepResult": "read_sweep"}
        assert made.get(written, written) in source.read_text("utf-8"), name


def test_single_lines_name_what_there_is(elsewhere):
    points = gs.data.load("gloeckle2026")
    fit = gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm)
    for line in elsewhere.LINES.values():
        tree = ast.parse(line, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("gs.") and "(" not in ast.unparse(node):
                assert eval(ast.unparse(node), {"gs": gs}) is not None
        free = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if free <= {"gs", "fit"} and "runs/" not in line:
            assert eval(line, {"gs": gs, "fit": fit}) is not None
    assert isinstance(gs.alpha_without_each_prompt(fit), pd.DataFrame)


def test_examples_of_the_site_are_those_that_the_suite_runs(public):
    rule = next(line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if line.startswith("EXAMPLES"))
    assert rule.endswith("--doctest-modules --doctest-ignore-import-errors gradstats")
    for name, thing in public.items():
        if has_example(thing):
            source = Path(inspect.getsourcefile(inspect.unwrap(thing)))
            assert source.is_relative_to(ROOT / "gradstats"), name
