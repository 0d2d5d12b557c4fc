"""The result of a question: what its rows are, its frame with intervals, what is printed, drawn and saved of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from gradstats.analyses import registry
from gradstats.analyses.declaration import Column
from gradstats.analyses.printed import ReprMixin
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import UNKNOWN, interval_columns, require_level
from gradstats.stats.variance.quantities import NO_LIMITS, Limits
from gradstats.system.lazy_imports import pd
from gradstats.system.outputs import write_table


class LevelNote(str):
    """A note on intervals, which depends on their level; as a text it is the note at 95 %, "" for nothing.

    Two are equal only where they are one: notes that agree at 95 % may differ at another level.
    """

    at: Callable[[float], str]  # the note at a level; "" where nothing is to be said
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    @classmethod
    def of(cls, at: Callable[[float], str]) -> LevelNote:
        """Return the note."""
        note = cls(at(CONFIDENCE_LEVEL))
        note.at = at
        return note

    def after(self, beginning: str) -> LevelNote:
        """Return the note after a beginning."""
        return self.of(partial(_after, beginning, self.at))


def _after(beginning: str, at: Callable[[float], str], confidence_level: float) -> str:
    said = at(confidence_level)
    return beginning + said if said else ""


def at_level(notes: Iterable[str], confidence_level: float) -> tuple[str, ...]:
    """Return the notes that are to be made at a level."""
    said = (note.at(confidence_level) if isinstance(note, LevelNote) else note for note in notes)
    return tuple(filter(None, said))


_KEY = "column"
# Whether the value of a field is a pair, which are the columns NAME_low and NAME_high.
_SPAN = "span"


def column(meaning: str, heading: str = "", *, short: bool = False, file: str = "") -> Any:
    """Declare a field of a row that is a column of its own, such as a label or a count, or a function of the level.

    Args:
        meaning: what it is, in the index of columns.
        heading: of the column in tables; without it files alone have the column.
        short: whether the result's repr and the first screen of the command show it.
        file: that computes it, where it is not that of the analysis.
    """
    return field(metadata={_KEY: {"meaning": meaning, "heading": heading, "short": short, "file": file}})


def estimate(
    meaning: str,
    heading: str = "",
    *,
    short: bool = False,
    limits: Limits = NO_LIMITS,
    file: str = "",
    sentence: str = "",
) -> Any:
    """Declare a field of a row that has an interval, and so the columns ``NAME``, ``NAME_low`` and ``NAME_high``.

    Its value has a method ``with_interval(confidence_level)``, or is None where nothing is known.

    Args:
        meaning: what it is, in the index of columns.
        heading: of the column in tables; without it files alone have the column.
        short: whether the result's repr and the first screen of the command show it.
        limits: the least and the greatest value that are possible: an estimate beyond them is shown as a bound.
        file: that computes it, where it is not that of the analysis.
        sentence: that captions of tables with it contain.
    """
    about = {"meaning": meaning, "heading": heading, "estimated": True, "short": short, "limits": limits, "file": file}
    about |= {"sentence": lambda frame: sentence}
    return field(metadata={_KEY: about})


def span(meaning: str, *, short: bool = False, file: str = "") -> Any:
    """Declare a field of a row that is a range, ``(low, high)``, and so the columns ``NAME_low`` and ``NAME_high``.

    Args:
        meaning: what it is, in the index of columns.
        short: whether the result's repr shows it.
        file: that computes it, where it is not that of the analysis.
    """
    about = {"meaning": meaning, "estimated": True, "short": short, "file": file}
    return field(metadata={_KEY: about, _SPAN: True})


class Row:
    """A row of a result: a frozen dataclass of fields of :func:`column`, :func:`estimate` and :func:`span`."""

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        """Return the declared columns, in order."""
        return tuple(
            Column(one.name, **one.metadata[_KEY])
            for one in fields(cls)  # pyright: ignore[reportArgumentType]
            if _KEY in one.metadata
        )

    @classmethod
    def names(cls) -> list[str]:
        """Return the columns of a frame, those of intervals included."""
        ends = {True: ("", "_low", "_high"), False: ("",)}
        spans = {one.name for one in fields(cls) if _SPAN in one.metadata}  # pyright: ignore[reportArgumentType]
        return [
            f"{one.name}{end}" for one in cls.columns() for end in ends[one.estimated] if end or one.name not in spans
        ]

    def record(self, confidence_level: float) -> dict[str, Any]:
        """Return column → value."""
        found: dict[str, Any] = {}
        for one in self.columns():
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                found |= dict(zip((f"{one.name}_low", f"{one.name}_high"), value, strict=True))
            elif one.estimated:
                found |= interval_columns(
                    {one.name: UNKNOWN if value is None else value.with_interval(confidence_level)}
                )
            else:
                found[one.name] = value(confidence_level) if callable(value) else value
        return found


class Result(ReprMixin):
    """The answer to a question: ``to_frame``, and where there is one ``sentence``; printed, saved and drawn alike."""

    #: What its rows are; a result without it has a ``to_frame`` of its own.
    row: ClassVar[type[Row] | None] = None
    #: Its fields that the ``.attrs`` of its frame state, besides the notes and the level of the intervals.
    stated: ClassVar[tuple[str, ...]] = ()
    #: The question that it answers.
    question: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Print the columns that the rows declare as short."""
        if cls.row is not None and not cls.printed_columns:
            cls.printed_columns = tuple(one.name for one in cls.row.columns() if one.short)
            cls.printed_limits = {one.name: one.limits for one in cls.row.columns()}

    def about(self) -> dict[str, object]:
        """Return what the frame's ``.attrs`` state besides the level of its intervals and the notes."""
        return {name: getattr(self, name) for name in self.stated}

    def notes_at(self, confidence_level: float) -> tuple[str, ...]:
        """Return the notes of an answer at a level."""
        return tuple(getattr(self, "notes", ()))

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row of declared columns for each of ``rows``.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        require_level(confidence_level)
        assert self.row is not None
        records = [one.record(confidence_level) for one in self.rows]  # pyright: ignore[reportAttributeAccessIssue]
        frame = pd.DataFrame(records, columns=self.row.names())  # which has its columns without any row as well
        frame.attrs |= {"confidence_level": confidence_level, **self.about()}
        frame.attrs["notes"] = list(self.notes_at(confidence_level))
        return frame

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL, quantity: str = "") -> Any:
        """Return the ends of the interval of one quantity in every row, ``(low, high)``; of the first by default.

        Raises:
            ValueError: for a quantity that is not estimated, or a level outside (0, 1).
        """
        frame = self.to_frame(confidence_level)
        estimated = [name for name in frame if {f"{name}_low", f"{name}_high"} <= set(frame)]
        name = quantity or estimated[0]
        if name not in estimated:
            raise ValueError(f"quantity={quantity!r} is not estimated: choose from {', '.join(map(str, estimated))}")
        return frame[f"{name}_low"].to_numpy(), frame[f"{name}_high"].to_numpy()

    def plot(self, **options: Any) -> Any:
        """Draw the first figure of the analysis; returns its axes.

        Raises:
            ValueError: for a question that has no figure.
        """
        figures = registry.get(self.question).figures
        if not figures:
            raise ValueError(
                f"the question {self.question!r} has no figure: read its numbers with to_frame(), or declare an "
                "AnalysisFigure in its `figures`"
            )
        return figures[0].draw(self.to_frame(), **options)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the frame as CSV."""
        write_table(Path(path), self.to_frame(), overwrite=overwrite)


class RemarkedResult(Result):
    """A result whose notes depend on the level of the answer."""

    #: What may be said of it: of a :class:`LevelNote` only what it says at the level.
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know at 95 %, one sentence each."""
        return self.notes_at(CONFIDENCE_LEVEL)

    def notes_at(self, confidence_level: float) -> tuple[str, ...]:
        """Return what a reader has to know of an answer at a level."""
        return at_level(self.remarks, confidence_level)


class ScalarResult(Row, Result):
    """A result of one row, whose fields are its columns; its sentence is what is printed."""

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row: the declared columns.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = pd.DataFrame([self.record(require_level(confidence_level))], columns=self.names())
        frame.attrs |= {"confidence_level": confidence_level, **self.about()}
        frame.attrs["notes"] = list(self.notes_at(confidence_level))
        return frame
