"""Mathematics in the docstrings that the site shows: what needs markup stands in a ``:math:`` role."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

#: Roles, code and quotations of code.
SPAN = re.compile(r":\w+:`[^`]*`|``.*?``", re.DOTALL)
#: What starts an entry of a section, such as ``max_grad_norm: the norm``.
ENTRY = re.compile(r"^\s*\*{0,2}[\w, *.]+(\([^)]*\))?: ")
#: Subscripts, superscripts, commands of LaTeX and dollars: no reader sees these as they are meant outside of a role.
UNSET = re.compile(r"\S*[_^$\\]\S*")


def prose(text: str) -> str:
    """A docstring without its roles, code, directives, examples and the names of its arguments."""
    kept: list[str] = []
    directive: int | None = None  # the indentation of the one that these lines belong to
    example = False
    for line in SPAN.sub("", text).splitlines():
        indentation = len(line) - len(line.lstrip())
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if directive is not None and (not line.strip() or indentation > directive):
            continue
        directive = indentation if line.lstrip().startswith(".. ") else None
        if directive is None and not example:
            kept.append(ENTRY.sub("", line))
    return "\n".join(kept)


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
    "text", ["the sum of R_i", "grows as T^α", r"a \\frac", "costs $x$", "Args:\n    sq_norm: of S_i."]
)
def test_the_rule_finds(text):
    assert UNSET.search(prose(text))


def test_the_rule_passes_what_is_set():
    text = "Uses ``sq_norms`` and :math:`R_i`.\n\n.. math:: a_i\n\nArgs:\n    sq_norms: the norms.\n\n>>> a_b\nc_d\n"
    assert not UNSET.search(prose(text))
