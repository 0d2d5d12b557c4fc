"""What an analysis declares once: question, columns, table, figures, options, and what every run asks by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from gradstats import estimators
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.estimator import Weighting
from gradstats.stats.jackknife import UNKNOWN, require_level
from gradstats.stats.numbers import NO_LIMITS, Limits
from gradstats.stats.printed import Printed
from gradstats.stats.variance.quantities import filled_in, limits_of, with_ends
from gradstats.system.outputs import write_table

if TYPE_CHECKING:
    from gradstats.config.sections import VarianceSection
    from gradstats.measurement.measurement import Measurement

_KEY = "column"


@dataclass(frozen=True)
class Column:
    """One column of a table, as files and Python name it."""

    name: str
    meaning: str
    heading: str = ""  # in tables; "" for a column of files only
    estimated: bool = False  # whether its ends _low and _high stand beside it
    short: bool = False  # whether the result's repr and the first screen of the command show it
    limits: Limits = (
        NO_LIMITS  # the least and the greatest value that are possible; an unbiased estimate may lie beyond
    )
    file: str = ""  # that computes it, from the folder of the package; that of the analysis by default


def column(meaning: str, heading: str = "", *, short: bool = False, file: str = "") -> Any:
    """Declare a field of a row that is a column of its own, such as a label or a count.

    Args:
        meaning: what it is, in the index of columns.
        heading: of the column in tables; without it files alone have the column.
        short: whether the result's repr and the first screen of the command show it.
        file: that computes it, where it is not that of the analysis.
    """
    return field(metadata={_KEY: {"meaning": meaning, "heading": heading, "short": short, "file": file}})


def estimate(
    meaning: str, heading: str = "", *, short: bool = False, limits: Limits = NO_LIMITS, file: str = ""
) -> Any:
    """Declare a field of a row that has an interval, and so the columns ``NAME``, ``NAME_low`` and ``NAME_high``.

    Its value has a method ``with_interval(confidence_level)``, or is None where nothing is known.

    Args:
        meaning: what it is, in the index of columns.
        heading: of the column in tables; without it files alone have the column.
        short: whether the result's repr and the first screen of the command show it.
        limits: the least and the greatest value that are possible: an estimate beyond them is shown as a bound.
        file: that computes it, where it is not that of the analysis.
    """
    about = {"meaning": meaning, "heading": heading, "estimated": True, "short": short, "limits": limits, "file": file}
    return field(metadata={_KEY: about})


class Row:
    """A row of a result: a frozen dataclass whose fields are declared by :func:`column` and :func:`estimate`."""

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
        return [f"{one.name}{end}" for one in cls.columns() for end in ends[one.estimated]]

    def record(self, confidence_level: float) -> dict[str, Any]:
        """Return column → value."""
        found: dict[str, Any] = {}
        for one in self.columns():
            value = getattr(self, one.name)
            if one.estimated:
                found |= with_ends({one.name: UNKNOWN if value is None else value.with_interval(confidence_level)})
            else:
                found[one.name] = value
        return found


class Result(Printed):
    """The answer to a question: ``to_frame``, and where there is one ``sentence``; printed, saved and drawn alike."""

    #: What its rows are; a result without it has a ``to_frame`` of its own.
    row: ClassVar[type[Row] | None] = None
    #: Set by the declaration that names this class as its result.
    analysis: ClassVar[Analysis]

    def __init_subclass__(cls) -> None:
        """Print the columns that the rows declare as short."""
        if cls.row is not None and not cls.printed_columns:
            cls.printed_columns = tuple(one.name for one in cls.row.columns() if one.short)
            cls.printed_limits = {one.name: one.limits for one in cls.row.columns()}

    def about(self) -> dict[str, object]:
        """Return what the frame's ``.attrs`` state besides the level of its intervals."""
        return {"notes": list(getattr(self, "notes", ()))}

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
        return frame

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL, quantity: str = "") -> Any:
        """Return the ends of the interval of one quantity in every row, ``(low, high)``; of the first by default."""
        frame = self.to_frame(confidence_level)
        name = quantity or next(one.name for one in self.analysis.columns if one.estimated)
        return frame[f"{name}_low"].to_numpy(), frame[f"{name}_high"].to_numpy()

    def plot(self, **options: Any) -> Any:
        """Draw the first figure of the analysis; returns its axes."""
        return self.analysis.figures[0].draw(self.to_frame(), **options)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the frame as CSV."""
        write_table(Path(path), self.to_frame(), overwrite=overwrite)


@dataclass(frozen=True)
class AnalysisFigure:
    """A figure of an analysis."""

    name: str  # of its files
    caption: str | Callable[[pd.DataFrame], str]
    draw: Callable[..., Any]  # of a frame, on a figure of its own
    link: str = ""  # what a link to it is called on the page
    after: str = ""  # the figure that it follows in the report; the last one by default
    rows: Callable[[pd.DataFrame], pd.DataFrame | None] = lambda frame: frame  # that are drawn; None for no figure

    def caption_of(self, frame: pd.DataFrame) -> str:
        """Return the caption of the figure of a frame."""
        return self.caption if isinstance(self.caption, str) else self.caption(frame)


@dataclass(frozen=True)
class Analysis:
    """A question and everything that is shown of its answer; see docs/design.md and CONTRIBUTING.md."""

    #: In ``gradstats ask RUN NAME``; of its files as well, unless ``file_name`` says otherwise.
    name: str
    #: Answers it: takes a measurement first, and returns a result with ``to_frame(confidence_level)``.
    ask: Callable[..., Any]
    #: The arguments of ``ask`` that the command line takes, the positional ones first. Their types and defaults are
    #: those of its signature and their help that of its docstring; what neither has is that of the section `variance`.
    options: Sequence[str]
    columns: tuple[Column, ...]
    #: The name of a row in tables, from its cells; and the heading above these names.
    row_name: Callable[[dict[str, Any]], str]
    row_heading: str | Callable[[pd.DataFrame], str]
    caption: Callable[[pd.DataFrame], str]
    label: str = ""  # of the table in LaTeX; by default tab:NAME
    figures: tuple[AnalysisFigure, ...] = ()
    result: type[Result] | None = None
    #: Column → heading, where a table does not show the columns that have one; ``{reference}`` stands for its label.
    headings: Mapping[str, str] | None = None
    #: The columns of a first screen, where the rows do not declare any as short.
    short: Sequence[str] = ()
    #: What follows a column's name in those of the ends of the intervals that tables show.
    ends: str = ""
    #: The table whose columns it has as well.
    extends: str = ""
    #: Answers it in every run, from a measurement and the settings of the comparison; None where the data are too few.
    in_run: Callable[..., Any] | None = None
    #: What the ``.attrs`` of its frame state, from a frame that was read from CSV and the lengths of the completions.
    recovered: Callable[[pd.DataFrame, Any], dict[str, Any]] | None = None
    #: Whether the command adds table and figure to the run; otherwise it writes a table only where ``--out`` asks.
    kept: bool = False
    #: The name of its files, from the arguments, and the pattern that all of these match.
    file_name: Callable[[Mapping[str, Any]], str] | None = None
    pattern: str = ""
    #: Reads an option from a word of the command line as arguments of ``ask``.
    read: Mapping[str, Callable[[str], dict[str, Any]]] = field(default_factory=dict)
    #: The estimators that arguments name: refused before the work, and asked whether they need state values.
    weightings: Callable[[Mapping[str, Any]], Sequence[Weighting]] | None = None
    needs_values: bool = False

    def __post_init__(self) -> None:
        """Let the result know how it is drawn."""
        if self.result is not None:
            self.result.analysis = self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Ask."""
        return self.ask(*arguments, **options)

    @property
    def question(self) -> str:
        """The first line of the docstring of its file."""
        return (sys.modules[self.ask.__module__].__doc__ or self.name).strip().partition("\n")[0]

    @property
    def file(self) -> str:
        """The file that computes its columns."""
        return f"{self.ask.__module__.partition('.')[2].replace('.', '/')}.py"

    def files_named(self, arguments: Mapping[str, Any]) -> str:
        """Return the name of the files of an answer."""
        return self.name if self.file_name is None else self.file_name(arguments)

    def estimators_in(self, arguments: Mapping[str, Any]) -> Sequence[Weighting]:
        """Return the estimators that arguments name; raises for an unknown label."""
        if self.weightings is not None:
            return self.weightings(arguments)
        labels = [*arguments.get("estimators", ()), *filter(None, [arguments.get("reference")])]
        return [estimators.get(label) for label in labels]

    @property
    def declared_headings(self) -> dict[str, str]:
        """The columns that a table shows: name → heading, in which ``{reference}`` is not yet filled in."""
        return dict(self.headings or {one.name: one.heading for one in self.columns if one.heading})

    def headings_of(self, frame: pd.DataFrame) -> dict[str, str]:
        """Return the columns of a table: name → heading."""
        return {name: filled_in(heading, frame.attrs) for name, heading in self.declared_headings.items()}

    def first_shown(self, frame: pd.DataFrame) -> list[str]:
        """Return the headings of the columns of a first screen: the short ones, or all where none is short."""
        headings = self.headings_of(frame)
        short = self.short or {one.name for one in self.columns if one.short}
        short = short or (() if self.result is None else self.result.printed_columns)
        return [heading for name, heading in headings.items() if name in short] or list(headings.values())

    def limits_of(self, name: str) -> Limits:
        """Return the least and the greatest value that a column can have."""
        declared = next((one.limits for one in self.columns if one.name == name), NO_LIMITS)
        return limits_of(name) if declared == NO_LIMITS else declared

    def names_of_ends(self, name: str) -> list[str]:
        """Return the columns of an estimate and of the ends of its interval in tables."""
        return [name, f"{name}{self.ends}_low", f"{name}{self.ends}_high"]


def level_of(frame: pd.DataFrame) -> str:
    """Return the level of a frame's intervals for a caption, where it states one, and a space."""
    return f"{frame.attrs['confidence_level']:.0%} " if "confidence_level" in frame.attrs else ""


def within_groups(measured: Measurement, section: VarianceSection) -> list[Weighting]:
    """Return the estimators of a run that stay within their group and that the measurement allows."""
    from gradstats.stats.variance.comparison import reasons_against

    chosen = [estimators.get(label) for label in section.estimators]
    reasons = reasons_against(measured, chosen, section.target)
    pairs = zip(chosen, reasons, strict=True)
    return [one for one, reason in pairs if reason is None and not one.across_groups]


def measured_group_sizes(measured: Measurement) -> list[int]:
    """Return the powers of two, from 2, up to the smallest number of completions of a prompt."""
    most = most_completions(measured)
    return [2**power for power in range(1, most.bit_length()) if 2**power <= most]


def most_completions(measured: Measurement) -> int:
    """Return the number of completions that every prompt has at least."""
    return int(np.unique(measured.rollouts.prompt_id, return_counts=True)[1].min())
