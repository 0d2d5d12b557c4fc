"""What changes over the steps of a log?"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float

from gradstats.analyses.declaration import Analysis, AnalysisFigure, level_of
from gradstats.analyses.log_lengths import mean_of
from gradstats.analyses.numbers import format_number
from gradstats.analyses.results import Result, Row, column, estimate
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.plots.marks import WithFrame, as_frame, draw_intervals, estimates_of, require_columns
from gradstats.plots.style import ink
from gradstats.rollouts.log import Log, read_log
from gradstats.stats.jackknife import Estimate
from gradstats.stats.silent_groups import equal_rewards
from gradstats.stats.variance.quantities import NOT_NEGATIVE, SHARE
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The first and the last steps that are compared: this share of all.
_SHARE = 0.25
# A change by less than this share of the earlier value is not said.
_NOTICED = 0.02
#: Column → what a sentence calls it, and whether it is a share.
_SAID = {
    "reward": ("reward", False),
    "silent": ("silent groups", True),
    "length": ("length", False),
    "truncated": ("cut off", True),
    "entropy": ("entropy", False),
    "gap": ("gap of trainer and sampler", False),
}


@dataclass(frozen=True)
class StepRow(Row):
    """The completions of one step, or of several."""

    step: int = column("training step", short=True)
    n: int = column("completions")
    reward: Estimate = estimate("mean reward", "reward", short=True)
    silent: Estimate = estimate("share of groups with equal rewards", "silent groups", short=True, limits=SHARE)
    silent_tokens: Estimate | None = estimate("share of tokens in them", "tokens in them", limits=SHARE)
    length: Estimate | None = estimate("mean length", "length", short=True, limits=NOT_NEGATIVE)
    truncated: Estimate | None = estimate("share cut off at the limit", "cut off", short=True, limits=SHARE)
    entropy: Estimate | None = estimate("mean entropy of a token", "entropy", short=True, limits=NOT_NEGATIVE)
    sum_pi_squared: Estimate | None = estimate("mean Σπ² of a token", "Σπ²", limits=SHARE)
    gap: Estimate | None = estimate(
        "mean |log π_trainer − log π_sampler| of a token", "gap of a token", short=True, limits=NOT_NEGATIVE
    )


@dataclass(frozen=True, repr=False)
class Drift(Result):
    """A log step by step; see :func:`drift`.

    Attributes:
        rows: one per step, ascending.
        first: the first steps, together.
        last: the last steps, together.
        notes: what a reader has to know.
    """

    question: ClassVar[str] = "drift"
    row: ClassVar = StepRow

    rows: tuple[StepRow, ...]
    first: StepRow
    last: StepRow
    notes: tuple[str, ...] = ()

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State what differs between the first and the last steps, beyond chance."""
        changes = []
        for name, (said, is_share) in _SAID.items():
            before, after = getattr(self.first, name), getattr(self.last, name)
            if before is None or after is None:
                continue
            stderr = float(np.hypot(before.stderr, after.stderr))
            change = Estimate(after.value - before.value, stderr, "raw", min(before.degrees, after.degrees))
            low, high = change.confidence_interval(confidence_level)
            if (low > 0 or high < 0) and abs(change.value) > _NOTICED * abs(before.value):
                texts = [f"{one:.0%}" if is_share else format_number(one) for one in (before.value, after.value)]
                changes.append(f"{said} {texts[0]} → {texts[1]}")
        over = f"steps {self.rows[0].step:,} to {self.rows[-1].step:,}"
        if not changes:
            return f"No change is resolved over {over}."
        return f"Over {over}, first to last quarter: {', '.join(changes)}."


def without_steps(log: Log) -> str:
    """Return why there is no series; "" where there is."""
    if log.count("step") > 1:
        return ""
    return "the log holds one step: give the files of several, or a column step"


def drift(log: Log) -> Drift:
    r"""Describe a log step by step: rewards, silent groups, lengths, truncation, entropy, Σπ² and the gap of sampler.

    The sentence compares the first quarter of the steps with the last one, as if they were independent. Intervals are
    by delete-one-prompt jackknife within a step or a quarter.

    Args:
        log: of :func:`gradstats.read_log`, with several steps.

    Returns:
        A :class:`Drift`.

    Raises:
        ValueError: for a log of one step.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> columns = {"step": [1] * 4 + [2] * 4, "prompt": [0, 0, 1, 1] * 2, "group": [0, 0, 1, 1, 2, 2, 3, 3]}
        >>> log = gs.rollouts.Log(pd.DataFrame(columns | {"reward": [1, 1, 0, 1, 0, 1, 1, 0]}), "made up")
        >>> [row.silent.value for row in gs.analyses.drift(log).rows]
        [0.5, 0.0]
    """
    if why := without_steps(log):
        raise ValueError(why)
    order = np.argsort(log.labels("step"), kind="stable")
    frame = log.frame.iloc[order].reset_index(drop=True)
    steps, begins = np.unique(frame["step"].to_numpy(), return_index=True)
    ends = [*begins[1:].tolist(), len(frame)]
    parts = _parts(frame)
    prompts = frame["prompt"].to_numpy()
    rows = [
        _row(int(step), parts, prompts, slice(begin, end)) for step, begin, end in zip(steps, begins, ends, strict=True)
    ]
    n = max(1, round(_SHARE * len(steps)))
    first = _row(int(steps[0]), parts, prompts, slice(0, ends[n - 1]))
    last = _row(int(steps[-1]), parts, prompts, slice(int(begins[-n]), len(frame)))
    return Drift(tuple(rows), first, last, log.notes)


_Parts = dict[str, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]]


def _parts(frame: pd.DataFrame) -> _Parts:
    """Return of each column the values of completions and their weights."""
    numbers = {str(name): frame[name].to_numpy(dtype=np.float64) for name in frame}
    groups, ones = frame["group"].to_numpy(), np.ones(len(frame))
    equal = equal_rewards(numbers["reward"], groups, ones)
    sizes = np.bincount(groups)
    silent_groups = np.zeros(len(sizes))
    silent_groups[equal.group[equal.size == equal.of]] = 1.0
    silent = silent_groups[groups]
    found = {"reward": (numbers["reward"], ones), "silent": (silent, 1.0 / sizes[groups])}
    if "length" in numbers:
        known = np.isfinite(numbers["length"])
        lengths = np.nan_to_num(numbers["length"])
        found |= {"silent_tokens": (silent, lengths), "length": (lengths, known.astype(float))}
    if "truncated" in numbers:
        found["truncated"] = (numbers["truncated"], ones)
    for name in ("entropy", "sum_pi_squared"):
        if name in numbers:
            found[name] = (np.nan_to_num(numbers[name]), np.isfinite(numbers[name]).astype(float))
    if "abs_gap" in numbers:
        tokens = numbers["n_ratios"]
        found["gap"] = (numbers["abs_gap"] / np.maximum(tokens, 1.0), tokens)
    return found


def _row(step: int, parts: _Parts, prompts: np.ndarray, some: slice) -> StepRow:
    here = np.unique(prompts[some], return_inverse=True)[1]
    known = {name: mean_of(values[some], weights[some], here) for name, (values, weights) in parts.items()}
    columns = [one.name for one in fields(StepRow) if one.name not in ("step", "n")]
    return StepRow(step, len(here), **{name: known.get(name) for name in columns})  # pyright: ignore[reportArgumentType]


def plot_drift(table: WithFrame | pd.DataFrame) -> list[Axes]:
    """Draw rewards, silent groups, lengths and what else the log has against the step, a panel each.

    Args:
        table: a :class:`Drift`, or its frame.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["step", "reward", "silent"], "draw what drift() gives")
    drawn = [name for name in _SAID if bool(frame[name].notna().to_numpy().any())]
    width, height = mpl.rcParams["figure.figsize"]
    _, both = plt.subplots(len(drawn), 1, figsize=(width, (0.25 + 0.45 * len(drawn)) * height), sharex=True)
    axes = [ax for ax in np.ravel(both) if isinstance(ax, plt.Axes)]
    at = frame["step"].to_numpy(dtype=float)
    for ax, name in zip(axes, drawn, strict=True):
        value, low, high = estimates_of(frame, name).T
        if _SAID[name][1]:  # a share
            low, high = np.fmax(low, 0.0), np.fmin(high, 1.0)
        draw_intervals(ax, at, value, low, high, ink())
        ax.plot(at, value, marker="o", markersize=2.5, linewidth=0.8, color=ink(), zorder=3)
        ax.set_ylabel(_SAID[name][0].replace(" of trainer and sampler", ""))
    axes[-1].set_xlabel("training step")
    return axes


ANALYSIS = Analysis(
    name="drift",
    ask=drift,
    source=read_log,
    unavailable_because=without_steps,  # pyright: ignore[reportArgumentType]
    options=(),
    columns=StepRow.columns(),
    row_name=lambda row: f"{row['step']:g}",
    row_heading="step",
    caption=lambda frame: f"The log step by step, with {level_of(frame)}intervals over prompts.",
    figures=(AnalysisFigure("drift", "The log step by step.", plot_drift),),
)
