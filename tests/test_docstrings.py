"""One dialect in docstrings: names in roles that resolve, everything else in double backticks."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gradstats"
#: Not imported: they need an extra, or run as a process of their own.
NOT_IMPORTED = {"gradstats.prompts.task_entries", "gradstats.integrations.verl", "gradstats.integrations.certify.verl"}

_ROLE = re.compile(r":(?P<role>\w+):`(?P<target>[^`]*)`")
_SPAN = re.compile(r":\w+:`[^`]*`|``.*?``|`[^`]+`", re.DOTALL)
_NAMES = {"func", "class", "meth", "mod", "data", "attr", "exc"}


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Each docstring, after the name of the class that it stands in, if any."""

    def of(node: ast.AST, owner: str) -> Iterator[tuple[str, str]]:
        for entry in ast.iter_child_nodes(node):
            if isinstance(entry, ast.FunctionDef | ast.ClassDef):
                inside = entry.name if isinstance(entry, ast.ClassDef) else owner
                if text := ast.get_docstring(entry):
                    yield inside, text
                yield from of(entry, inside)

    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield "", ast.get_docstring(tree) or ""
    yield from of(tree, "")


def exists(target: str, module: object, owner: str) -> bool:
    """Whether a target is a name of the module, of the class, or a full name of this package."""
    holders = [module, getattr(module, owner, None)] if owner else [module]
    if any(has(holder, target.split(".")) for holder in holders):
        return True
    parts = target.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        return has(found, parts[cut:])
    return False


def has(holder: object, names: list[str]) -> bool:
    for name in names:
        fields = getattr(holder, "__dataclass_fields__", {})
        if not hasattr(holder, name):
            return name in fields
        holder = getattr(holder, name)
    return True


PATHS = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("package", sorted({path.parent for path in PATHS}), ids=lambda path: path.name)
def test_names_stand_in_roles_that_resolve(package):
    wrong = []
    for path in (path for path in PATHS if path.parent == package):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if name in NOT_IMPORTED:
            continue
        module = importlib.import_module(name)
        for owner, text in docstrings(path):
            plain = [span for span in _SPAN.findall(text) if not span.startswith((":", "``"))]
            wrong += [f"{name}: {span} needs a role or double backticks" for span in plain]
            for match in _ROLE.finditer(text):
                role, target = match["role"], match["target"].lstrip("~")
                if role in _NAMES and not exists(target, module, owner):
                    wrong.append(f"{name}: {match[0]} names nothing")
    assert not wrong, "\n".join(dict.fromkeys(wrong))


#: Public names of statistics and estimators that define no quantity of their own → why.
WITHOUT_A_FORMULA = {
    "TokenProfile": "holds whichever quantity a function of tokens estimates",
    "get": "finds an estimator by its label",
    "names": "lists names",
    "table": "lists estimators",
    "register": "registers an estimator",
    "token_weightings": "the weightings that a measurement has to hold",
    "otb_turns": "otb on packed completions; otb has the formula",
}


@pytest.mark.parametrize("package", ["gradstats.stats", "gradstats.estimators"])
def test_public_quantities_are_defined_by_a_formula(package):
    module = importlib.import_module(package)
    names = [name for name in module.__all__ if callable(getattr(module, name))]
    without = {name for name in names if not re.search(r":math:`|math::", str(getattr(module, name).__doc__))}
    assert sorted(without - set(WITHOUT_A_FORMULA)) == []
    assert not (set(names) - without) & set(WITHOUT_A_FORMULA)  # an exception that is none
