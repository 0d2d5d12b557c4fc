"""Every public name has an example, or its page says where one is."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

import gradstats as gs
from gradstats.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
MOST_CHARACTERS = 600


def test_entries_are_short_and_listed_once():
    releases = re.split(r"^## ", TEXT, flags=re.M)[1:]
    assert [release.split("\n")[0] for release in releases] == ["0.2.0 (unreleased)", "0.1.0"]
    kinds = [re.findall(r"^### (.*)", release, re.M) for release in releases]
    assert [len(set(one)) for one in kinds] == list(map(len, kinds))
    entries = [" ".join(entry.split()) for entry in re.split(r"^- |^#.*", TEXT, flags=re.M)]
    assert [entry for entry in entries if len(entry) > MOST_CHARACTERS] == []
    assert len(set(entries)) == len(entries) - entries.count("") + 1


#: Roles, code and quotations of code.
SPAN = re.compile(r":\w+:`[^`]*`|``.*?``", re.DOTALL)
#: What starts an entry of a section, such as ``max_grad_norm: the norm``.
ENTRY = re.compile(r"^\s*\*{0,2}[\w, *.]+(\([^)]*\))?: ")
#: Subscripts, superscripts, commands of LaTeX and dollars: no reader sees these as they are meant outside of a role.
UNSET = re.compile(r"\S*[_^$\\]\S*")
#: A directive with what is indented below it, and an example up to the next empty line.
DIRECTIVE = re.compile(r"^( *)\.\. .*(?:\n(?:\1 .*| *$))*", re.M)
EXAMPLE = re.compile(r"^ *>>>.*(?:\n.*\S.*)*", re.M)


def prose(text: str) -> str:
    """A docstring without its roles, code, directives, examples and the names of its arguments."""
    for pattern in (SPAN, EXAMPLE, DIRECTIVE):
        text = pattern.sub("", text)
    return "\n".join(ENTRY.sub("", line) for line in text.splitlines())


def docstrings(name: str, thing: object) -> Iterator[tuple[str, str]]:
    """What the page of a public name shows: its docstring and those of its methods and properties."""
    yield name, inspect.getdoc(thing) or ""
    for attribute, member in vars(thing).items() if inspect.isclass(thing) else ():
        method = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if not attribute.startswith("_") and inspect.isfunction(method):
            yield f"{name}.{attribute}", inspect.getdoc(method) or ""


def test_what_needs_markup_has_it(public):
    wrong = [
        f"{name}: {found[0]} needs :math: or double backticks"
        for public_name, thing in public.items()
        for name, text in docstrings(public_name, thing)
        for found in UNSET.finditer(prose(text))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "unset"),
    [
        ("the sum of R_i", "R_i"),
        ("grows as T^α", "T^α"),
        (r"a \\frac", r"\\frac"),
        ("costs $x$", "$x$"),
        ("Args:\n    sq_norm: of S_i.", "S_i."),
        ("Uses ``sq_norms``, :math:`R_i`.\n\n.. math:: a_i\n\nArgs:\n    sq_norms: the norms.\n\n>>> a_b\nc_d\n", None),
    ],
)
def test_the_rule_finds_what_needs_markup(text, unset):
    found = UNSET.search(prose(text))
    assert (found and found[0]) == unset


TEXT_OF_README = (ROOT / "README.md").read_text("utf-8")


def first_python(text: str) -> str:
    return text.split("```python\n", 1)[1].split("```", 1)[0]


def test_the_first_lines_are_those_of_the_site():
    assert first_python(TEXT_OF_README) == first_python((ROOT / "docs" / "index.md").read_text("utf-8"))


@pytest.mark.filterwarnings("ignore::UserWarning")  # six prompts resolve little
def test_the_first_lines_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    code = first_python(TEXT_OF_README)
    assert "n=96)" in code
    names: dict[str, object] = {}
    exec(code.replace("n=96)", "n=6)"), names)
    plt.close("all")
    printed = capsys.readouterr().out
    assert "alpha" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["variance.pdf", "variance.png"]
    assert list(names["table"].to_frame()["estimator"])[:3] == ["reinforce", "rloo", "recipe:grpo"]


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page, docs_module):
    anchor = docs_module("results_pages").anchor
    for link, at in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        target = page.parent / link if link else page
        assert "://" in link or target.exists(), link
        if at and target.suffix == ".md":
            assert at in [anchor(one) for one in re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M)], (link, at)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_are_there(page, docs_module):
    for command, rest in re.findall(r"(?:^|`)gradstats ([a-z-]+)([^`#\n]*)", in_one_line(code_of(page)), re.M):
        if command == "ask":  # whose questions have options of their own
            continue
        assert command in COMMANDS, command
        helped, options = docs_module("site_pages").help_of(command), re.findall(r"(?<=\s)--[a-z-]+", rest)
        assert [option for option in options if option not in helped] == [], (command, rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_in_python_are_there(page):
    for name in re.findall(r"\bgs\.([A-Za-z_][\w.]*\w)", code_of(page)):
        thing: object = gs
        for part in name.split("."):
            thing = getattr(thing, part)


def test_targets_and_extras_are_there():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", code_of(ROOT / "README.md")))
    assert {"demo", "test", "docs"} <= named <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    installation = (ROOT / "docs" / "get_started.md").read_text("utf-8").split("## Install")[1].split("\n## ")[0]
    assert {name for name in extras if f"`{name}`" not in installation} == set()


def in_one_line(text: str) -> str:
    """What stands behind a backslash at the end of a line belongs to it."""
    return re.sub(r"\\\n\s*", "", text)


def code_of(page: Path) -> str:
    """What stands in blocks and spans of code."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text("utf-8"), re.S))


def words(page: Path) -> int:
    return len(page.read_text("utf-8").split())


def test_pages_stay_short():
    assert words(ROOT / "README.md") <= 900
    assert words(ROOT / "CHANGELOG.md") <= 800
    written = {*(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "experiment_file.md"}  # grows with each setting
    assert sum(map(words, written)) <= 19_560


def test_numbers_of_the_first_pages_are_those_of_the_findings(docs_module):
    pages = [ROOT / "docs" / name for name in ("findings.md", "findings_details.md")]
    found = " ".join(word for page in pages for word in page.read_text("utf-8").split())  # a line may end in a number
    number, table = (getattr(docs_module("committed_numbers"), name) for name in ("number", "table"))
    # of the demo the first pages have rows that the findings take from larger runs
    found += " ".join(str(number(row, "matched_ratio")) for _, row in table("embedded", "variance").iterrows())
    for page in (ROOT / "README.md", ROOT / "docs" / "get_started.md"):
        stated = re.findall(r"\d[\d.]* \[[^\]]+\]", " ".join(page.read_text("utf-8").split()))
        assert stated
        assert [number for number in stated if number not in found] == [], page


@pytest.fixture
def elsewhere(docs_module):
    return docs_module("shown_elsewhere")


def has_example(thing: object) -> bool:
    """Whether a docstring, or that of a method, holds an example that the test suite runs."""
    methods = [inspect.unwrap(one) for one in vars(thing).values()] if inspect.isclass(thing) else []
    return any(">>>" in (getattr(one, "__doc__", None) or "") for one in (thing, *methods))


def test_every_public_name_has_an_example_or_says_where_one_is(elsewhere, public):
    tables = (elsewhere.RETURNED_BY, elsewhere.CALLED_LIKE, elsewhere.USED_ON, elsewhere.LINES)
    listed = [name for table in tables for name in table]
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
    assert isinstance(gs.stats.alpha_without_each_prompt(fit), pd.DataFrame)


def test_examples_of_the_site_are_those_that_the_suite_runs(public):
    rule = next(line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if line.startswith("EXAMPLES"))
    assert rule.endswith("--doctest-modules --doctest-ignore-import-errors gradstats")
    for name, thing in public.items():
        if has_example(thing):
            source = Path(inspect.getsourcefile(inspect.unwrap(thing)))
            assert source.is_relative_to(ROOT / "gradstats"), name
