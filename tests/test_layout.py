"""The layout that docs/design.md describes: what a package holds, what imports what, and what never loads torch."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gradstats"
TESTS = Path(__file__).parent

DESIGN = Path(__file__).parents[1] / "docs" / "design.md"


def contract(text: str) -> dict[str, set[str]]:
    """Package → the packages that it may import, from the lines of docs/design.md.

    A line lists packages and after a colon what they may import; a star adds whatever that one may import. The public
    names of ``gradstats`` itself are the package ``""``.
    """
    allowed: dict[str, set[str]] = {}
    for line in text.split("```\nconfig, system", 1)[1].split("```")[0].splitlines():
        packages, imported = (f"config, system{line}" if not allowed else line).split(": ")
        found: set[str] = set()
        for name in () if imported == "nothing" else imported.split(", "):
            found |= {name.removesuffix("*").replace("gradstats", "")} | (
                allowed[name[:-1]] if name[-1] == "*" else set()
            )
        allowed |= {package: set(found) for package in packages.split(", ")}
    return allowed


MAY_IMPORT = contract(DESIGN.read_text(encoding="utf-8"))
#: Short files: what starts a process, or is imported by one that must stay light.
IMPORTED_ALONE = ("__main__", "integrations/verl", "system/lazy_imports")
#: Packages that never load torch or transformers.
LIGHT = (
    "config",
    "rollouts",
    "measurement",
    "estimators",
    "stats",
    "answers",
    "plots",
    "analyses",
    "report",
    "data",
    "tables",
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def package_of(path: Path) -> str:
    if path == PACKAGE / "__main__.py":  # the command, by another name
        return "cli"
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of every import of this package, inside functions and under TYPE_CHECKING as well."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively: write the whole name"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if is_module(name) else str(node.module) for name in submodules]
        else:
            continue
        found += [(node.lineno, name) for name in names if name.split(".")[0] == "gradstats"]
    return found


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_every_package_is_in_the_contract_and_nothing_else_is_in_the_root():
    entries = {path for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    files = {path.name for path in entries if path.is_file()}
    assert files <= {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
    packages = {path.name for path in entries if path.is_dir()}
    assert packages <= set(MAY_IMPORT)
    assert all((PACKAGE / name / "__init__.py").is_file() for name in packages)


def test_the_contract_is_read_as_it_is_meant():
    assert MAY_IMPORT["config"] == set()
    assert MAY_IMPORT["rewards"] == {"prompts", "config", "system"}
    assert MAY_IMPORT["values"] == {*MAY_IMPORT["gradients"], "gradients", "stats"}
    assert not {"torch", "policy", "sampling", "gradients"} & MAY_IMPORT["report"]
    assert "" in MAY_IMPORT["cli"]
    assert {package for package, allowed in MAY_IMPORT.items() if "reference" in allowed} == {"integrations", "cli"}


def test_the_contract_has_no_circles():
    remaining = {package: set(allowed) - {""} for package, allowed in MAY_IMPORT.items()}
    while remaining:
        first = [package for package, allowed in remaining.items() if not allowed & set(remaining)]
        assert first, f"these import one another: {sorted(remaining)}"
        for package in first:
            del remaining[package]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_from_its_left_only(package):
    against = []
    for path in modules():
        for line, name in imports(path):
            imported = name.split(".")[1] if "." in name else ""
            if package_of(path) == package and imported not in {package, *MAY_IMPORT[package]}:
                against.append(f"{name_of(path)}:{line} imports {name}")
    assert not against, "\n".join(against)


def test_no_module_imports_from_the_init_of_its_own_package():
    found = []
    for path in modules():
        package = ".".join(path.relative_to(PACKAGE.parent).parent.parts)
        if path.name != "__init__.py":
            found += [f"{name_of(path)}:{line} imports {name}" for line, name in imports(path) if name == package]
    assert not found, "\n".join(found)


def test_private_names_stay_in_their_module():
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradstats"):
                private = [alias.name for alias in node.names if re.match("_(?!_)", alias.name)]
                found += [f"{name_of(path)}:{node.lineno} imports {name} of {node.module}" for name in private]
    assert not found, "\n".join(found)


def test_an_init_only_hands_names_on():
    found = []
    for path in PACKAGE.rglob("__init__.py"):
        found += [
            f"{name_of(path)}:{node.lineno} holds logic"
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if not (isinstance(node, ast.Import | ast.ImportFrom) or is_docstring(node) or is_public_list(node))
        ]
    assert not found, "\n".join(found)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_public_list(node: ast.stmt) -> bool:
    """``__all__ = …``, or what lazy_loader gives for a stub."""
    if not isinstance(node, ast.Assign):
        return False
    names = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names <= {"__all__", "__getattr__", "__dir__"}


def test_no_modules_import_one_another_in_a_circle():
    """Inside functions and under TYPE_CHECKING as well: what is read together is one file."""
    remaining = {
        dotted(path): {name for _, name in imports(path)} - {dotted(path)}
        for path in modules()
        if path.name != "__init__.py"
    }
    while remaining:
        first = [name for name, imported in remaining.items() if not imported & set(remaining)]
        assert first, f"these import one another, or what does: {sorted(remaining)}"
        for name in first:
            del remaining[name]


def test_files_hold_a_concept():
    """A file that a child process, or every file, imports alone may be short; others are part of a larger one."""
    short = {name_of(path) for path in modules() if path.read_text(encoding="utf-8").count("\n") < 40}
    alone = {f"gradstats/{name}.py" for name in IMPORTED_ALONE}
    assert {name for name in short if not name.endswith("__init__.py")} <= alone


def test_light_packages_never_load_torch():
    """In one process, which imports their modules one by one and stops at the first that loads it."""
    names = [dotted(path).removesuffix(".__init__") for path in modules() if package_of(path) in ("", *LIGHT)]
    code = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "    found = [heavy for heavy in ('torch', 'transformers') if heavy in sys.modules]\n"
        "    if found: sys.exit(f'{name} loads {found}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
