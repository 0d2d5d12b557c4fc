"""Read files that hold one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number and content of each line that is not blank.

    Args:
        path: the file, in UTF-8.

    Raises:
        OSError: when the file cannot be read.
        ValueError: for a line that is not UTF-8, not JSON or not a JSON object; it is named.
    """
    # Split at line feeds only: JSON strings may contain the other characters at which str.splitlines splits.
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of {path} is not UTF-8 ({error}): copy the file again") from error
        except json.JSONDecodeError as error:
            cut = ": the file is truncated; drop the line" if number == len(lines) else ""
            raise ValueError(f"line {number} of {path} is not JSON ({error}){cut}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} of {path} is not a JSON object: {str(row)[:60]!r}")
        yield number, row
