"""An answer: a table of numbers, all that it was asked and computed with, the sentence that answers, and notes."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from gradstats.system.files import atomic_path, changed_sentence, csv_text, file_digest, read_json, write_json
from gradstats.system.lazy_imports import pd
from gradstats.system.outputs import OutputType, claim, csv_with, differing_entry, is_marked, other_numbers

# Entries of the JSON file that are not of `about`.
_QUESTION, _SENTENCE, _NOTES, _FURTHER = "question", "sentence", "notes", "further"
_COLUMNS, _CELLS, _NOT_FINITE, _CSV = "columns", "cells", "not_finite", "csv"
_OWN = {_QUESTION, _SENTENCE, _NOTES, _FURTHER, _COLUMNS, _CELLS, _NOT_FINITE, _CSV}
#: Entry of ``about``: significant digits of the numbers of a long table, in memory and in its CSV.
DIGITS = "digits"
#: Entry of ``about``: the options that it was asked with, by name, where they are not those of the question.
ASKED = "asked"
#: Entry of ``about``: digests of the completions with their rewards, and of the state values, that it was made from.
COMPUTED_WITH = "computed_with"


@dataclass(frozen=True, eq=False)
class Answer:
    """What a question returns; what is printed, drawn and exported is read from it and from nothing else.

    Attributes:
        question: name of the analysis, or of the table where it stands beside another answer.
        frame: the numbers, estimates with ``_low`` and ``_high`` beside them; its ``.attrs`` are ``about``.
        about: all that was asked and computed with: level, reference, target, group size, tokens, metric, sizes.
            Plain values: texts, numbers, lists and dictionaries of these, None.
        sentence: that answers; "" where the table does.
        notes: what a reader has to know, one sentence each.
        further: tables beside it, by name.

    Raises:
        TypeError: for a value or a column that files cannot hold.
        ValueError: for an entry of ``about`` whose name files use for something else.
    """

    question: str
    frame: pd.DataFrame
    about: Mapping[str, Any] = field(default_factory=dict)
    sentence: str = ""
    notes: tuple[str, ...] = ()
    further: Mapping[str, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        about = cast(dict[str, Any], plain(self.about))
        if taken := _OWN & set(about):
            raise ValueError(f"about has an entry {sorted(taken)[0]!r}, which is a part of every answer: rename it")
        for name, column in self.frame.items():
            if _kind(column) is None:
                raise TypeError(f"column {name!r} has the type {column.dtype}, which no answer can hold")
        frame = self.frame.reset_index(drop=True)
        if DIGITS in about:
            frame = frame.assign(
                **{
                    str(name): [float(f"{value:.{about[DIGITS]}g}") for value in frame[name]]
                    for name in frame
                    if frame[name].dtype.kind == "f"
                }
            )
        frame.attrs = {**about}
        for name, value in (("frame", frame), ("about", about), ("notes", tuple(map(str, self.notes)))):
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        """Return whether two answers save the same bytes."""
        if not isinstance(other, Answer):
            return NotImplemented
        same = self.csv() == other.csv() and self._state({}) == other._state({})
        return same and dict(self.further) == dict(other.further)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def to_frame(self) -> pd.DataFrame:
        """Return the numbers."""
        return self.frame

    def save(
        self, stem: str | os.PathLike[str], *, further_in: Path | None = None, overwrite: bool = True
    ) -> list[Path]:
        """Write ``stem.csv``, for people and other programs, and ``stem.json``, all the rest; and the tables beside it.

        Args:
            stem: path without a suffix.
            further_in: folder of the tables beside it, under their names; by default that of ``stem``.
            overwrite: replace an earlier answer of other numbers.

        Returns:
            The paths, the CSV first.

        Raises:
            FileExistsError: where a file lies that gradstats did not write, or an answer that may not be replaced.
        """
        stem = Path(stem)
        self.claim(stem, further_in=further_in, overwrite=overwrite)
        beside = {name: (stem.parent if further_in is None else further_in) / name for name in self.further}
        if self._difference(stem) is not None:  # a killed process leaves no mixture of two answers
            for path in reversed(answer_paths(stem)):
                path.unlink(missing_ok=True)
        written = [path for name, at in beside.items() for path in self.further[name].save(at)]
        relative = {name: os.path.relpath(at, stem.parent) for name, at in beside.items()}
        table, state = answer_paths(stem)
        with atomic_path(table) as partial:
            partial.write_text(self.csv(), encoding="utf-8", newline="")
        write_json(state, self._state(relative))
        return [table, state, *written]

    def claim(self, stem: Path, *, further_in: Path | None = None, overwrite: bool = True) -> None:
        """Refuse to save it where :meth:`save` does, before anything is written."""
        claim_answer(stem, list(map(str, self.frame)), overwrite=overwrite, difference=lambda: self._difference(stem))
        for name, one in self.further.items():
            one.claim((stem.parent if further_in is None else further_in) / name, overwrite=overwrite)

    def _difference(self, stem: Path) -> str | None:
        """Return how the answer that lies there differs, "" for rounding alone; None where nothing does."""
        table, state = answer_paths(stem)
        if not (table.exists() and state.exists()):
            return None
        try:
            there = read_json(state)
        except ValueError:
            return "damage"
        if there == self._state(there.get(_FURTHER) or {}) and table.read_text(encoding="utf-8") == self.csv():
            return None
        return (
            _asked_otherwise(there.get(ASKED) or {}, self.about.get(ASKED) or {})
            or differing_entry({name: there.get(name) for name in self.about}, self.about)
            or other_numbers(table, self.csv())
            or ""
        )

    def csv(self) -> str:
        """Return the numbers as they are saved."""
        digits = self.about.get(DIGITS)
        return csv_text(self.frame, float_format=None if digits is None else f"%.{digits}g")

    def _state(self, further: Mapping[str, str]) -> dict[str, Any]:
        kinds = {str(name): cast(str, _kind(column)) for name, column in self.frame.items()}
        cells = {name: plain(list(self.frame[name])) for name, kind in kinds.items() if kind == "cells"}
        not_finite: list[list[object]] = []
        about = {name: _finite(value, [name], not_finite) for name, value in self.about.items()}
        return about | {
            _QUESTION: self.question,
            _SENTENCE: self.sentence,
            _NOTES: list(self.notes),
            _FURTHER: dict(further),
            _COLUMNS: {
                name: f"cells:{self.frame[name].dtype}" if kind == "cells" else kind for name, kind in kinds.items()
            },
            _CELLS: _finite(cells, [_CELLS], not_finite),
            _NOT_FINITE: not_finite,
            _CSV: hashlib.sha256(self.csv().encode()).hexdigest(),
        }

    @classmethod
    def read(cls, stem: str | os.PathLike[str]) -> Answer:
        """Return what :meth:`save` wrote, equal to the bit.

        Raises:
            FileNotFoundError: when a file is missing.
            ValueError: when a file is damaged or has changed.
        """
        table, state = answer_paths(stem)
        for path in (state, table):
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: repeat the command that wrote {Path(stem).name}")
        entries = read_json(state)
        if not is_answer(entries):
            raise ValueError(f"{state} is not a part of an answer: repeat the command that wrote it")
        if file_digest(table) != entries[_CSV]:
            raise ValueError(changed_sentence(table))
        for path, text in entries[_NOT_FINITE]:
            *inner, last = path
            place: Any = entries
            for key in inner:
                place = place[key]
            place[last] = float(text)
        texts = pd.read_csv(table, dtype=str, keep_default_na=False, na_filter=False, lineterminator="\n")
        columns = {
            name: entries[_CELLS][name]
            if kind.startswith("cells:")
            else _of_texts(cast("pd.Series", texts[name]), kind)
            for name, kind in entries[_COLUMNS].items()
        }
        frame = pd.DataFrame(
            {
                name: pd.Series(values, dtype=entries[_COLUMNS][name].removeprefix("cells:"))
                for name, values in columns.items()
            },
            columns=list(columns),
            index=range(len(texts)),
        )
        folder = Path(stem).parent
        return cls(
            question=entries[_QUESTION],
            frame=frame,
            about={name: value for name, value in entries.items() if name not in _OWN},
            sentence=entries[_SENTENCE],
            notes=tuple(entries[_NOTES]),
            further={name: cls.read(folder / at) for name, at in entries[_FURTHER].items()},
        )


def answer_paths(stem: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return where the numbers of an answer lie, and where all the rest."""
    stem = Path(stem)
    return stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.json")


def is_answer(entries: Mapping[str, Any]) -> bool:
    """Return whether a JSON file is a part of an answer, from what it holds."""
    return set(entries) >= _OWN


def _asked_otherwise(then: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """Return the first setting that differs, which says more than what follows from it; None where none does."""
    name = next((name for name in {**then, **now} if then.get(name) != now.get(name)), None)
    if name is None:
        return None
    was, wanted = (str(asked[name]) if name in asked else "the default" for asked in (then, now))
    return f"{name} = {was}, not {wanted}"


def claim_answer(stem: Path, columns: Iterable[str], **replacing: Any) -> None:
    """Refuse to write an answer where something lies that is not an earlier one, as :func:`claim` does."""
    table, state = answer_paths(stem)
    ours = OutputType("an answer", lambda path: is_marked(state))
    claim(table, ours if is_marked(state) else csv_with(list(columns), ours.what), **replacing)
    claim(state, ours)


def _kind(column: pd.Series) -> str | None:
    """Return the type of a column, or ``cells`` where its cells stand in the JSON file, as CSV would mix some up."""
    kind = column.dtype.kind
    if kind == "f":
        return str(column.dtype)
    if kind in "iub":
        return str(column.dtype)
    if kind != "O":
        return None
    texts = column.map(lambda cell: isinstance(cell, str) and cell != "" and not cell.startswith("'"))
    return str(column.dtype) if str(column.dtype) != "object" and bool(texts.all()) else "cells"


def _of_texts(texts: pd.Series, kind: str) -> list[Any]:
    if kind.startswith("float"):
        return [float(text) if text else math.nan for text in texts]
    if kind == "bool":
        return [text == "True" for text in texts]
    if kind.startswith(("int", "uint")):
        return [int(text) for text in texts]
    # A quote stands before what a spreadsheet would run as a formula.
    return [text[1:] if text.startswith("'") else text for text in texts]


def plain(value: Any) -> Any:
    """Return a value as files hold it: numbers of NumPy as Python's, sequences as lists, mappings by text.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if value is pd.NA:
        return None
    from gradstats.config.options import of_type

    raise TypeError(f"{value!r} is {of_type(value)}, which no answer can hold")


def _finite(value: Any, path: list[object], found: list[list[object]]) -> Any:
    """Return a value with None for numbers that JSON does not have, which are listed by their places."""
    if isinstance(value, dict):
        return {name: _finite(entry, [*path, name], found) for name, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry, [*path, at], found) for at, entry in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        found.append([path, repr(value)])
        return None
    return value
