"""Names with parameters in brackets, as the estimators and rewards of an experiment file are written."""

from __future__ import annotations

import ast
from typing import Any, cast


def read_label(label: str) -> tuple[str, dict[str, Any]]:
    """``"kimi(tau=0.5)"`` → ``("kimi", {"tau": 0.5})``.

    Raises:
        ValueError: for a label that cannot be read.
    """
    name, bracket, inside = label.partition("(")
    if not bracket:
        return label, {}
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        parameters = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"cannot read {label!r}: write it as name(parameter=value, …)") from None
    return name.strip(), cast("dict[str, Any]", parameters)


def _literal(node: ast.expr) -> Any:
    """A number, True, False or None, a quoted string, or a bare word, which is read as a string."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
