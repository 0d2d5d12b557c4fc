"""Do longer completions earn more, and which are cut off?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.analyses.declaration import Analysis, AnalysisFigure, FurtherTable, level_of
from gradstats.analyses.length_reward import LengthRewardCorrelation, length_reward_correlation
from gradstats.analyses.numbers import format_estimate
from gradstats.analyses.results import Result, Row, column, estimate, span
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.plots.marks import WithFrame, as_frame, draw_intervals, estimates_of, require_columns, with_ends
from gradstats.plots.style import ink
from gradstats.plots.variance import draw_landmark
from gradstats.rollouts.log import Log, read_log
from gradstats.stats.jackknife import Estimate, ratio_of_sums
from gradstats.stats.silent_groups import ROUNDING
from gradstats.stats.variance.quantities import NOT_NEGATIVE, SHARE
from gradstats.stats.variance.shares import bin_of
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Rewards of at most so many values have a row each, others bins of as many completions.
_MOST_VALUES, _BINS = 5, 3


@dataclass(frozen=True)
class LengthBin(Row):
    """The completions of similar length."""

    length: tuple[float, float] = span("range of lengths", short=True)
    n: int = column("completions")
    reward: Estimate = estimate("mean reward", "mean reward", short=True)
    within: Estimate = estimate(
        "mean reward less that of the completion's group", "reward less the group's mean", short=True
    )
    truncated: Estimate | None = estimate("share cut off at the limit", "cut off", short=True, limits=SHARE)
    tokens: Estimate = estimate("share of all tokens", "tokens", short=True, limits=SHARE)


@dataclass(frozen=True)
class RewardBin(Row):
    """The completions of similar reward."""

    rewards: tuple[float, float] = span("range of rewards")
    n: int = column("completions")
    mean_length: Estimate = estimate("mean length", "mean length", limits=NOT_NEGATIVE)
    truncated: Estimate | None = estimate("share cut off at the limit", "cut off", limits=SHARE)


@dataclass(frozen=True, repr=False)
class LogLengths(Result):
    """Rewards by length and lengths by reward; see :func:`log_lengths`.

    Attributes:
        rows: bins of as many completions each, shortest first.
        by_reward: rewards, or bins of them, the least first.
        correlation: of length and reward within groups.
        truncated: share of all completions that were cut off; None where the log does not say.
        unit: of lengths.
        notes: what a reader has to know.
    """

    question: ClassVar[str] = "log_lengths"
    row: ClassVar = LengthBin
    stated: ClassVar = ("unit",)

    rows: tuple[LengthBin, ...]
    by_reward: tuple[RewardBin, ...]
    correlation: LengthRewardCorrelation
    truncated: Estimate | None
    unit: str
    notes: tuple[str, ...] = ()

    def reward_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row per reward, or bin of rewards."""
        frame = pd.DataFrame([one.record(confidence_level) for one in self.by_reward], columns=RewardBin.names())
        frame.attrs |= {"confidence_level": confidence_level, "unit": self.unit}
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the correlation of length and reward within groups, and which completions are cut off."""
        value = self.correlation.correlation
        if not np.isfinite(value):
            said = "Whether longer completions earn more cannot be said: too few groups vary in length and reward"
        else:
            low, high = self.correlation.confidence_interval(confidence_level)
            number = format_estimate(value, low, high, limits=(-1.0, 1.0))
            trend = "more" if low > 0 else "less" if high < 0 else ""
            said = (
                f"Longer completions of a group earn {trend}" if trend else "No trend of reward with length is resolved"
            )
            said += f" (correlation within groups {number})"
        if self.truncated is None:
            return f"{said}; the log does not say which were cut off."
        cut = self.truncated.value > 0
        said += f". {_share(self.truncated)} are cut off" if cut else ". None is cut off"
        if cut and len(self.by_reward) > 1:
            ends = (self.by_reward[0], self.by_reward[-1])
            texts = [f"{_share(one.truncated)} with reward {reward_range(one.rewards)}" for one in ends]
            said += f": {texts[0]}, {texts[1]}"
        return f"{said}."


def reward_range(ends: tuple[float, float]) -> str:
    """Write the range of rewards of a bin.

    >>> reward_range((0.0, 0.0)), reward_range((-0.5, 1.0))
    ('0', '−0.5 to 1')
    """
    return " to ".join(dict.fromkeys(f"{one:g}".replace("-", "−") for one in ends))


def _share(one: Estimate | None) -> str:
    return "–" if one is None else f"{one.with_interval(CONFIDENCE_LEVEL)[0]:.1%}"


def without_lengths(log: Log) -> str:
    """Return why lengths cannot be asked about; "" where they can."""
    if "length" in log.frame and np.isfinite(log.column("length")).any():
        return ""
    return "the log has no lengths: name the column of tokens, of their number or of the text with length"


def log_lengths(log: Log, *, n_bins: int = 5) -> LogLengths:
    r"""Describe rewards by length and lengths by reward, and which completions were cut off.

    Between prompts length and reward are correlated because hard problems need long answers; what moves the length of a
    policy is the correlation among completions of a group, :math:`\sum δT δR/\sqrt{\sum δT² \sum δR²}`. Intervals are
    by delete-one-prompt jackknife, that of the correlation by delete-one-group.

    Args:
        log: of :func:`gradstats.read_log`.
        n_bins: bins of length, with about as many completions each.

    Returns:
        A :class:`LogLengths`.

    Raises:
        ValueError: for a log without lengths, or fewer than one bin.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> columns = {"step": [1] * 4 + [2] * 4, "prompt": [0, 0, 1, 1] * 2, "group": [0, 0, 1, 1, 2, 2, 3, 3]}
        >>> columns |= {"reward": [1, 0, 0, 1, 1, 0, 1, 0], "length": [3, 9, 7, 4, 3, 8, 4, 6]}
        >>> log = gs.rollouts.Log(pd.DataFrame(columns), "made up")
        >>> [round(row.within.value, 2) for row in gs.analyses.log_lengths(log, n_bins=2).rows]
        [0.5, -0.5]
    """
    if why := without_lengths(log):
        raise ValueError(why)
    if n_bins < 1:
        raise ValueError(f"n_bins={n_bins} must be at least 1")
    known = np.isfinite(log.column("length"))
    lengths, rewards = log.column("length")[known], log.column("reward")[known]
    prompts, groups = log.labels("prompt")[known], log.labels("group")[known]
    cut = log.column("truncated")[known] if "truncated" in log.frame else None
    sizes = np.bincount(groups)
    within = rewards - (np.bincount(groups, rewards) / np.maximum(sizes, 1))[groups]

    def mean(values: Float[np.ndarray, " n"], some: Bool[np.ndarray, " n"]) -> Estimate:
        return mean_of(values, some.astype(float), prompts)

    rows = []
    bins = bin_of(lengths, n_bins)
    for one in np.unique(bins):
        some = bins == one
        here = lengths[some]
        truncated = None if cut is None else mean(cut, some)
        share = mean_of(some.astype(float), lengths, prompts)
        span_of = (float(here.min()), float(here.max()))
        rows.append(LengthBin(span_of, int(some.sum()), mean(rewards, some), mean(within, some), truncated, share))
    by_reward = []
    tolerance = ROUNDING * float(np.abs(rewards).max(initial=0.0))
    values = np.unique(np.round(rewards / tolerance)) if tolerance else np.zeros(1)
    many = len(values) > _MOST_VALUES
    bins = bin_of(rewards, _BINS) if many else np.round(rewards / tolerance) if tolerance else np.zeros(len(rewards))
    for one in np.unique(bins):
        some = bins == one
        truncated = None if cut is None else mean(cut, some)
        span_of = (float(rewards[some].min()), float(rewards[some].max()))
        by_reward.append(RewardBin(span_of, int(some.sum()), mean(lengths, some), truncated))
    with warnings.catch_warnings():  # of too few groups that vary, of which the sentence speaks
        warnings.simplefilter("ignore")
        correlation = length_reward_correlation(lengths=lengths, rewards=rewards, groups=groups)
    everything = None if cut is None else mean(cut, np.ones(len(cut), dtype=bool))
    return LogLengths(tuple(rows), tuple(by_reward), correlation, everything, log.unit, log.notes)


def mean_of(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"]
) -> Estimate:
    """Return the weighted mean of completions, jackknifed by prompt; prompts without weight do not count."""
    wholes = np.bincount(prompts, weights)
    has = wholes > 0
    return ratio_of_sums(np.bincount(prompts, values * weights)[has], wholes[has])


def plot_log_lengths(table: WithFrame | pd.DataFrame) -> Axes:
    """Draw the reward less the mean of the group by bins of length.

    Args:
        table: a :class:`LogLengths`, or its frame.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["length_low", "length_high", *with_ends("within")], "draw what log_lengths() gives")
    _, ax = plt.subplots()
    at = frame[["length_low", "length_high"]].to_numpy(dtype=float).mean(axis=1)
    value, low, high = estimates_of(frame, "within").T
    draw_landmark(ax, 0.0, horizontal=True)
    draw_intervals(ax, at, value, low, high, ink())
    ax.plot(at, value, marker="o", color=ink(), zorder=3)
    ax.set_xlabel(f"completion length ({frame.attrs.get('unit', 'tokens')}), by bins")
    ax.set_ylabel("reward less the group's mean")
    return ax


ANALYSIS = Analysis(
    name="log_lengths",
    ask=log_lengths,
    source=read_log,
    unavailable_because=without_lengths,  # pyright: ignore[reportArgumentType]
    options=("n_bins",),
    columns=LengthBin.columns(),
    row_name=lambda row: f"{row['length_low']:,.0f}–{row['length_high']:,.0f}",
    row_heading=lambda frame: str(frame.attrs.get("unit", "tokens")),
    caption=lambda frame: f"Rewards by length of completion, with {level_of(frame)}intervals over prompts.",
    further=(
        FurtherTable(
            "lengths_by_reward",
            LogLengths.reward_frame,
            RewardBin.columns(),
            row_name=lambda row: reward_range((row["rewards_low"], row["rewards_high"])),
            row_heading="reward",
            caption=lambda frame: f"Lengths by reward, with {level_of(frame)}intervals over prompts.",
        ),
    ),
    figures=(
        AnalysisFigure(
            "log_lengths", "Reward of completions less the mean of their group, by bins of length.", plot_log_lengths
        ),
    ),
)
