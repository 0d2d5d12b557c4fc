"""Rows of a table of problems, and a file of them."""

from __future__ import annotations

import json

ROWS = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(20)]


def write_json_lines(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path
