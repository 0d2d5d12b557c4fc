"""Names with parameters in brackets, as the estimators and rewards of an experiment file are written."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any


def read_label(label: str) -> tuple[str, dict[str, Any]]:
    """Read a name with parameters in brackets.

    Example:
        >>> read_label("kimi(tau=0.5)")
        ('kimi', {'tau': 0.5})

    Raises:
        ValueError: for a label that cannot be read.
    """
    name, bracket, inside = label.partition("(")
    if not bracket:
        return label, {}
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        parameters = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg}
        if len(parameters) < len(call.keywords):  # a repeated parameter, or **mapping
            raise ValueError
    except (SyntaxError, TypeError, ValueError):
        raise ValueError(f"cannot read {label!r}: write it as name(parameter=value, …)") from None
    return name.strip(), parameters


def read_display_names(words: Iterable[str]) -> dict[str, str]:
    """Read names that are given as ``label=name``; the label ends at the first ``=`` outside its brackets.

    Example:
        >>> read_display_names(["length_weighted(alpha=0.8)=ours, at $x = 1$"])
        {'length_weighted(alpha=0.8)': 'ours, at $x = 1$'}

    Raises:
        ValueError: for a word without a label, an ``=`` or a name.
    """
    found = {}
    for word in words:
        depth, at = 0, -1
        for place, character in enumerate(word):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "=" and depth == 0:
                at = place
                break
        label, name = word[: max(at, 0)].strip(), word[at + 1 :].strip()
        if at < 0 or not label or not name:
            raise ValueError(f"cannot read {word!r}: write it as label=name, as in 'rloo=leave-one-out'")
        found[label] = name
    return found


def _literal(node: ast.expr) -> Any:
    """Return a number, True, False or None, a quoted string, or a bare word or a call, which are read as strings."""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Call) else ast.literal_eval(node)


def written(value: object) -> str:
    """Write a parameter's value for a label: numbers to six digits, texts without quotes where that is clear."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        try:
            same = read_label(f"f(x={value})")[1]["x"] == value
        except ValueError:
            same = False
        return value if same else repr(value)
    return str(value)
