"""The committed runs that findings.md rests on, and how its sections write numbers, verdicts and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import pandas as pd
from committed_numbers import Triple, committed_path, decimals_of, excludes, table, with_interval
from scipy import stats

UNRESOLVED = "not resolved"
NO_RUN = "No committed run answers this."


class Run(NamedTuple):
    """A committed run: its folder, and what the page calls it."""

    folder: str
    name: str

    @property
    def committed(self) -> bool:
        """State whether the run has been finished and committed."""
        return committed_path(self.folder, "alpha.json").exists()


#: In the order of the tables; the first committed one has its figures on the page.
RUNS = (
    Run("qwen_mawps", "Qwen-0.5B on MAWPS"),
    Run("qwen_gsm8k", "Qwen-0.5B on GSM8K"),
    Run("qwen_1_5b", "Qwen-1.5B on GSM8K"),
    Run("smollm2", "SmolLM2 on sums"),
    Run("embedded_resolved", "embedded-2000"),
    Run("embedded", "embedded-96"),
)
GRPO, RLOO = "grpo", "rloo"


def committed() -> list[Run]:
    """Return the runs that have been committed."""
    return [run for run in RUNS if run.committed]


def hours_of(manifest: Mapping[str, Any]) -> str:
    """Write the hours of sampling and measuring, a lower bound where a step that was interrupted left no record.

    Parts of a run were made at the same time, those of an earlier, smaller run as well.
    """
    steps = ("sampling", "measuring")
    calls = [part["timings"] for part in manifest.get("parts", ())] or [manifest["timings"]]
    seconds = max(sum(timings.get(step, 0.0) for step in steps) for timings in calls)
    known = all(step in timings for timings in calls for step in steps)
    if manifest.get("parts") and len(manifest.get("rounds", ())) > 1:
        of_parts = sum(timings.get(step, 0.0) for timings in calls for step in steps)
        # The parts of the earlier run are not recorded: it took at least this long, as many of equal length.
        seconds += (sum(manifest["timings"].get(step, 0.0) for step in steps) - of_parts) / len(calls)
        known = False
    return f"{'' if known else '≥ '}{seconds / 3600:.2f}" if seconds else "—"


def rows_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; nothing but a sentence where it has no rows."""
    written = ["| " + " | ".join(row) + " |" for row in rows]
    if not written:
        return NO_RUN
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *written])


def answer(*parts: str | None) -> str:
    """Join the parts of a section: tables as they are, prose in lines of a page's width."""
    return "\n\n".join(part if part.startswith(("|", "![")) else lines(part) for part in parts if part)


def lines(prose: str, indent: str = "") -> str:
    """Break prose into lines of a page's width, all but the first indented."""
    return fill(prose, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)


def figure(run: str, name: str, caption: str) -> str:
    """Write a figure of a run, with what it shows; nothing where it is not committed."""
    path = committed_path(run, f"{name}.png")
    return f"![{caption}](../figures/{run}/{name}.png)" if path.exists() else ""


def first_figure(name: str, caption: str) -> str:
    """Show a figure of the first committed run that has it."""
    return next((drawn for run in committed() if (drawn := figure(run.folder, name, f"{caption} ({run.name})"))), "")


def largest_groups(run: Run, label: str, column: str = "matched_ratio") -> Triple | None:
    """Return a quantity of an estimator in the largest groups of a run; None where it is not resolved."""
    row = of_largest_groups(run, label)
    return None if row is None else with_interval(row, column)


def of_largest_groups(run: Run, label: str) -> pd.Series | None:
    """Return the row of an estimator in the largest groups of a run; None where it was not compared."""
    frame = table(run.folder, "variance")
    if frame is None:
        return None
    chosen = frame[(frame["estimator"] == label) & (frame["group_size"] == frame["group_size"].max())]
    return None if chosen.empty else chosen.iloc[0]


def is_below(ratio: Triple | None) -> bool:
    """Return whether a relative noise lies below 1, by the digits with which its interval is written."""
    return ratio is not None and round(ratio[2], decimals_of(ratio)) < 1.0


def apart(one: Triple, other: Triple) -> Triple:
    """Return the difference of two numbers from independent runs: half-widths of the intervals add in quadrature."""
    difference = one[0] - other[0]
    low = difference - math.hypot(one[0] - one[1], other[2] - other[0])
    high = difference + math.hypot(one[2] - one[0], other[0] - other[1])
    return difference, low, high


def simultaneous(count: int) -> float:
    """Return the factor by which 95 % intervals of normal estimates widen to hold for several at once (Bonferroni)."""
    return float(stats.norm.ppf(1.0 - 0.025 / count) / stats.norm.ppf(0.975))


def widened(triple: Triple, factor: float) -> Triple:
    """Return a number with an interval that is wider by a factor on both sides."""
    value, low, high = triple
    return value, value - factor * (value - low), value + factor * (high - value)


def one_of(names: Sequence[str], total: int) -> str:
    """Write in which of a number of runs something holds: all, a few by name, or how many."""
    if len(names) == total > 1:
        return f"all {total} runs"
    return " and ".join(names) if len(names) <= 2 else f"{len(names)} of {total} runs"


def verdict_of(ratios: Sequence[tuple[str, Triple | None]]) -> str:
    """State in which runs a relative noise lies below, above, or on neither side of 1."""
    if not ratios:
        return "are not measured in a committed run"
    clear = [(name, ratio) for name, ratio in ratios if ratio is not None and excludes(ratio, 1.0)]
    below, above = ([name for name, ratio in clear if (ratio[0] < 1.0) == lower] for lower in (True, False))
    said = [
        f"{verb} the noise in {one_of(names, len(ratios))}"
        for verb, names in (("lower", below), ("raise", above))
        if names
    ]
    if rest := [name for name, ratio in ratios if not excludes(ratio, 1.0)]:
        others = f"any of {len(rest)} runs" if len(rest) == len(ratios) else f"the other {len(rest)} runs"
        said.append(f"change nothing that is resolved in {rest[0] if len(rest) == 1 else others}")
    return ", and ".join(said)
