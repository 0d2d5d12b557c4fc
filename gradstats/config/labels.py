"""Names with parameters in brackets, as the estimators and rewards of an experiment file are written."""

from __future__ import annotations

import ast
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
