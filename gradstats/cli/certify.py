"""The command ``certify``: what a trainer's own advantage and loss functions estimate, exactly."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from gradstats.cli import terminal
from gradstats.cli.options import All, AsJson, Positional, Progress

if TYPE_CHECKING:
    from gradstats.integrations.certify.exact import Row
    from gradstats.integrations.certify.invariances import Subject

#: The trainers that are known by name.
_TRAINERS = ("trl", "verl")
#: Columns and lines of a screen, and values that are named as moved.
_WIDTH, _LINES = 80, 25
#: Numbers that differ by less, relative to the larger, have not moved.
_TOLERANCE = 1e-5
_NUMBERS = ("scale", "bias", "cosine", "variance", "own_length", "other_length")
_HEADINGS = ("setting", "sampler", "scale", "cosine", "variance", "equals", "fails")


def certify(
    name: Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]],
    everything: All = False,
    as_json: AsJson = False,
    markdown: bool = False,
    expect: Path | None = None,
    progress: Progress = True,
) -> None:
    """Say what a trainer's own advantage and loss functions estimate, exactly, the worst first.

    They run on every batch that two prompts of four completions can give in groups of three, drawn from the policy and
    from an older one. scale: c = <E g, ∇J>/|∇J|^2; cosine: of E g and ∇J; variance: tr Cov(g)/c^2 over RLOO's.

    Args:
        name: trl, verl, or module:function of your own, an advantage or a loss function.
        markdown: print a Markdown table, for a pull request.
        expect: what --json printed before; the exit code is 1 where a value moved.
    """
    before = None if expect is None else _read(expect)
    with redirect_stdout(sys.stderr):  # what trainers print
        title, subjects = _subjects(name)
        rows = _rows(subjects, progress)
    found = {"trainer": title, "rows": [_entries(row) for row in rows]}
    if as_json:
        terminal.print_json(found)
    elif markdown:
        print("\n".join(_markdown(title, rows if everything else _distinct(rows))))
    elif everything:
        terminal.show([title, "", *(line for row in rows for line in _all_of(row))])
    else:
        terminal.show(_screen(title, rows))
    if before is not None and (moved := _moved(before, found["rows"])):
        for line in moved[:_LINES]:
            terminal.note(line)
        terminal.fail(
            f"what moved from {expect}, in all: {len(moved)}. Look at it, then write the file again with --json"
        )
        sys.exit(1)


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that ``--json`` wrote."""
    import json

    if not path.is_file():
        raise FileNotFoundError(f"expect={path} does not exist: write it with `gradstats certify NAME --json > {path}`")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [{**row, "key": (row["setting"], row["sampler"])} for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what `gradstats certify NAME --json` prints: write it again") from error


def _subjects(name: str) -> tuple[str, Sequence[Subject]]:
    """Return the title of what is certified, and its settings.

    Raises:
        ImportError: for a trainer that is not installed.
        ValueError: for a name that is neither a trainer nor a function.
    """
    from gradstats.integrations.installed import is_known, known_versions
    from gradstats.system.environment import installed

    if name not in _TRAINERS:
        if ":" not in name:
            raise ValueError(
                f"{name!r} cannot be certified: give {' or '.join(_TRAINERS)}, or a function of your own as "
                "module:function"
            )
        from gradstats.integrations.certify.own import own_subjects

        return name, own_subjects(name)
    version = installed(name)
    if version is None:
        raise ImportError(f"{name} is not installed: pip install 'gradstats[{name}]'")
    if not is_known(name, version):
        terminal.note(f"{name} {version} is not among {known_versions(name)}, which this was written for")
    if name == "trl":
        from gradstats.integrations.certify.trl import trl_subjects as listed
    else:
        from gradstats.integrations.certify.verl import verl_subjects as listed
    return f"{name} {version}", listed()


def _rows(subjects: Sequence[Subject], progress: bool) -> list[Row]:
    from gradstats.integrations.certify.exact import certify as certified
    from gradstats.integrations.certify.exact import worst_first
    from gradstats.system.progress import progress_bar

    rows = []
    with progress_bar("certify", len(subjects), shown=progress) as bar:
        for row in certified(subjects):
            rows.append(row)
            bar.advance()
    return worst_first(rows)


def _entries(row: Row) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(row), "equals": row.equals, "failing": row.failing}


def _number(value: float, digits: int = 3) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.2g}"


def _cells(row: Row) -> list[str]:
    return [_number(row.scale), _number(row.cosine), _number(row.variance, 2)]


def _says(row: Row) -> str:
    return row.error or f"= {row.equals}".replace("= ≈", "≈")


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Return the first of all rows with the same numbers, label and failures."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        found.setdefault((*_cells(row), row.sampler, _says(row), *row.failing), row)
    return list(found.values())


def _all_of(row: Row) -> list[str]:
    numbers: dict[str, str] = dict(zip(_HEADINGS[2:5], _cells(row), strict=True))
    if not math.isnan(row.own_length):
        numbers["length twice: own weights ×"] = f"{row.own_length:.2g}, others × {row.other_length:.2g}"
    fails = [f"{name} {_deviation(row, name)}" for name in row.failing]
    lines = [f"{row.setting} ({row.sampler})", f"  {', '.join(f'{key} {value}' for key, value in numbers.items())}"]
    lines += [f"  {_says(row)}", *([f"  fails: {', '.join(fails)}"] if fails else []), ""]
    return lines


def _deviation(row: Row, name: str) -> str:
    value = (row.deviations or {})[name]
    return {math.inf: "refused"}.get(value, "NaN" if math.isnan(value) else f"{value:.2g}")


def _screen(title: str, rows: Sequence[Row]) -> list[str]:
    """Return the worst rows that differ, and the invariances that fail, in a screen's lines."""
    n_sound = sum(row.is_unbiased for row in rows)
    head = (
        f"{title}: {len(rows)} settings, exact on 2 prompts × 4 completions in groups of 3. E ĝ has the direction of "
        f"∇J in {n_sound}, and not in {len(rows) - n_sound}."
    )
    fails: dict[str, list[Row]] = {}
    for row in rows:
        for name in row.failing:
            fails.setdefault(name, []).append(row)
    below = [_failure(name, failing) for name, failing in sorted(fails.items(), key=lambda one: -len(one[1]))]
    lines = [*textwrap.wrap(head, _WIDTH), "", f"  {'setting':<45}{'sampler':<10}{'scale':>7}{'cosine':>7}{'var.':>7}"]
    distinct = _distinct(rows)
    room = (_LINES - len(lines) - len(below) - 4) // 2
    for row in distinct[:room]:
        scale, cosine, variance = _cells(row)
        lines.append(f"  {_ends(row.setting, 44):<45}{row.sampler:<10}{scale:>7}{cosine:>7}{variance:>7}")
        lines.append(_cut(f"    {_says(row)}", _WIDTH))
    more = [f"  … {len(distinct) - room} more that differ: --all"] if len(distinct) > room else []
    return [
        *lines,
        *more,
        "",
        *(["What does not hold, in how many settings, and how far in the worst of them:"] if below else []),
        *below,
    ]


def _failure(name: str, rows: Sequence[Row]) -> str:
    """Return a line on an invariance that fails: in how many settings, and how far in the worst of them."""
    deviations = [(row.deviations or {})[name] for row in rows]
    worst = rows[int(np.argmax(np.nan_to_num(deviations, nan=np.inf)))]
    return _cut(f"  {name:<22}{len(rows):>4} × {_deviation(worst, name):<9} {worst.setting} ({worst.sampler})", _WIDTH)


def _ends(text: str, width: int) -> str:
    """Return a setting of which, where it is too long, the middle is left out."""
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-width // 2 :]}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _markdown(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [f"**{title}**", "", f"| {' | '.join(_HEADINGS)} |", f"|{'---|' * len(_HEADINGS)}"]
    for row in rows:
        cells = [row.setting, row.sampler, *_cells(row), _says(row).removeprefix("= "), ", ".join(row.failing)]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines


def _moved(before: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each number that differs, and each setting that has come or gone."""
    known = {row["key"]: row for row in before}
    found = {(row["setting"], row["sampler"]): row for row in rows}
    lines = [f"{setting} ({sampler}) has gone" for setting, sampler in known if (setting, sampler) not in found]
    for key, row in found.items():
        name = f"{key[0]} ({key[1]})"
        if key not in known:
            lines.append(f"{name} is new")
            continue
        for which, old, new in _pairs(known[key], row):
            if not _same(old, new):
                lines.append(f"{name}: {which} was {_written(old)}, is {_written(new)}")
    return lines


def _pairs(before: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in (*_NUMBERS, "error"):
        yield name, before.get(name), row[name]
    deviations = before.get("deviations") or {}
    for name, value in (row["deviations"] or {}).items():
        yield name, deviations.get(name), value


def _written(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _same(old: Any, new: Any) -> bool:
    """Return whether a value is what a file says; NaN is null there, and infinity a text."""
    if isinstance(new, str) or isinstance(old, str) or old is None:
        return str(old) == str(new) or (old is None and isinstance(new, float) and math.isnan(new))
    return math.isclose(old, new, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
