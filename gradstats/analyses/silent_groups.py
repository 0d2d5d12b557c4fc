"""Which groups are silent, and how many completions would a prompt need?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.analyses.declaration import Analysis, AnalysisFigure, FurtherTable
from gradstats.analyses.numbers import percent, percentage
from gradstats.analyses.results import Result, Row, column, estimate
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.plots.marks import WithFrame, as_frame, draw_intervals, estimates_of, require_columns, with_ends
from gradstats.plots.style import ink, muted, paper, stroke
from gradstats.rollouts.log import Log, read_log
from gradstats.stats.jackknife import UNKNOWN, Estimate, Estimated, ratio_of_sums
from gradstats.stats.silent_groups import (
    ROUNDING,
    EqualRewards,
    Resampled,
    beta_concentration,
    beta_silent,
    beta_size,
    equal_rewards,
    least_size,
    resampled_means,
)
from gradstats.stats.variance.quantities import SHARE
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: How the share of a row is known.
DRAWN, COUNTED, BETA = "drawn", "counted", "beta"
# Sizes beyond the drawn one, as its multiples.
_MULTIPLES = (2, 4, 8)
_RESAMPLES = 1000
# A beta distribution that misses the share at half the size by more, beyond chance, is said to.
_MISSED = 0.02


@dataclass(frozen=True)
class SizeOfGroup(Row):
    """The silent groups at one size."""

    group_size: int = column("completions of a group", short=True)
    source: str = column("whether drawn, counted in subsets, or from a beta distribution", short=True)
    silent: Estimated = estimate(
        "share of groups whose rewards are all equal within rounding", "silent groups", short=True, limits=SHARE
    )
    silent_tokens: Estimated | None = estimate(
        "share of tokens in silent groups", "tokens in them", short=True, limits=SHARE
    )
    all_right: Estimated | None = estimate("share all at the greatest reward", "all right", short=True, limits=SHARE)
    all_wrong: Estimated | None = estimate("share all at the least reward", "all wrong", short=True, limits=SHARE)
    n_groups: int = column("groups that have as many completions")
    n_prompts: int = column("prompts of those")


@dataclass(frozen=True)
class Needed(Row):
    """How many completions a prompt would need."""

    most_silent: float = column("share of silent groups that is wanted, at most")
    completions: Estimated | None = estimate("completions with fewer, if rates of success follow a beta distribution")
    at_least: Estimated | None = estimate("completions below which no distribution of rates has so few")
    checked_size: float = column("size at which the beta distribution is compared with what is counted")
    counted: float = column("silent groups counted there")
    predicted: Estimated | None = estimate("silent groups by the beta distribution there")


@dataclass(frozen=True, repr=False)
class SilentGroups(Result):
    r"""Groups whose rewards are all equal, so that they have no gradient; see :func:`silent_groups`.

    Attributes:
        rows: one per group size, ascending.
        needed: completions for a share of silent groups.
        group_size: completions of a group as drawn, the most common number.
        values: number of different rewards in the log; 2 where completions are right or wrong.
        misses: whether the beta distribution misses what is counted at half the size.
        notes: what a reader has to know.
    """

    question: ClassVar[str] = "silent_groups"
    row: ClassVar = SizeOfGroup
    stated: ClassVar = ("group_size", "values")

    rows: tuple[SizeOfGroup, ...]
    needed: Needed
    group_size: int
    values: int
    misses: bool
    notes: tuple[str, ...] = ()

    @property
    def drawn(self) -> SizeOfGroup:
        """The row of the size drawn."""
        return next(row for row in self.rows if row.source == DRAWN)

    def needed_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row: how many completions a prompt would need."""
        frame = pd.DataFrame([self.needed.record(confidence_level)], columns=Needed.names())
        frame.attrs |= {"confidence_level": confidence_level}
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the share of silent groups, of which kinds, and how many completions would leave few."""
        row, binary = self.drawn, self.values == 2
        silent, right, wrong = (
            UNKNOWN if one is None else one.with_interval(confidence_level)
            for one in (row.silent, row.all_right, row.all_wrong)
        )
        said = f"{_share(silent)} of the groups of {self.group_size} are silent"
        tokens = np.nan if row.silent_tokens is None else row.silent_tokens.with_interval(confidence_level)[0]
        if np.isfinite(tokens):
            said += f", with {tokens:.0%} of tokens"
        if silent[0] > 0:
            kinds = ("all right", "all wrong") if binary else ("all at the greatest reward", "all at the least")
            said += f" ({right[0]:.0%} {kinds[0]}, {wrong[0]:.0%} {kinds[1]})"
        return f"{said}. {self._about_needed(confidence_level)}"

    def _about_needed(self, confidence_level: float) -> str:
        wanted = f"{self.needed.most_silent:.0%}"
        least = None if self.needed.at_least is None else self.needed.at_least.with_interval(confidence_level)
        if self.needed.completions is None:
            if least is None or not np.isfinite(least[1]):
                return f"No number of completions is known to leave fewer than {wanted}."
            return f"Fewer than {wanted} would take {least[1]:,.0f} completions a prompt or more."
        value, low, high = self.needed.completions.with_interval(confidence_level)
        if value <= self.group_size:
            return f"Fewer than {wanted} take {_count(value, low, high)} completions a prompt, as counted."
        assumed = "a rough beta distribution" if self.misses else "a beta distribution"
        text = f"Fewer than {wanted} would take {_count(value, low, high)} completions a prompt ({assumed} of success"
        text += " rates"
        if least is not None and np.isfinite(least[1]):
            text += f"; at least {least[1]:,.0f}"
        return f"{text})."


def _share(triple: tuple[float, float, float]) -> str:
    value, low, high = triple
    return percentage(value, max(low, 0.0), min(high, 1.0)) if np.isfinite(low) else f"{value:.0%}"


def _count(value: float, low: float, high: float) -> str:
    """Write a number of completions with its interval.

    >>> _count(96.0, 61.0, 170.0), _count(np.inf, 300.0, np.inf)
    ('96 [61, 170]', 'more than 300')
    >>> _count(96.0, 61.0, np.inf), _count(4.0, np.nan, np.nan)
    ('96 [≥ 61]', '4')
    """
    if np.isnan(low):
        return f"{value:,.0f}"
    if not np.isfinite(value):
        return f"more than {low:,.0f}"
    return f"{value:,.0f} [≥ {low:,.0f}]" if not np.isfinite(high) else f"{value:,.0f} [{low:,.0f}, {high:,.0f}]"


def silent_groups(log: Log, *, most_silent: float = 0.1, rng: int = 0) -> SilentGroups:
    r"""Count the groups without a gradient at the size drawn, at every smaller and, by a model, at larger ones.

    A group is silent where its n rewards are all equal, within 1e-6 of the largest. Of N < n completions of a group, c
    of which have a reward, all N have it in :math:`\binom{c}{N}/\binom{n}{N}` of the subsets: summed over rewards and
    averaged over groups, this is without bias and without a model. Tokens are those of such subsets.

    Beyond the size drawn the share is not determined by the data. Where rewards have two values it follows
    :math:`s(N) = E[p^N + (1-p)^N]` with the rate of success p of a prompt taken as **beta-distributed**, with the mean
    and the share s(n) that were counted; the note says where that distribution misses the share counted at n/2.
    ``at_least`` assumes nothing but independent completions: s is log-convex. Rewards of more values have that bound
    alone. Intervals are over prompts: jackknife for what is counted, percentiles of 1000 resamples for the rest.

    Args:
        log: of :func:`gradstats.read_log`.
        most_silent: the share of silent groups that is wanted, at most.
        rng: seed of the resamples of prompts.

    Returns:
        A :class:`SilentGroups`.

    Raises:
        ValueError: for a log without groups, or a share outside (0, 1).

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> columns = {"step": [1] * 4 + [2] * 4, "prompt": [0, 0, 1, 1] * 2, "group": [0, 0, 1, 1, 2, 2, 3, 3]}
        >>> log = gs.rollouts.Log(pd.DataFrame(columns | {"reward": [1, 1, 0, 1, 1, 1, 1, 1]}), "made up")
        >>> gs.analyses.silent_groups(log).drawn.silent.value
        0.75
    """
    if not 0.0 < most_silent < 1.0:
        raise ValueError(f"most_silent={most_silent} must lie between 0 and 1, for example 0.1")
    size = log.group_size
    if size < 2:
        raise ValueError("most groups of the log have a single completion: give group_size, or the column of prompts")
    counted = _Counted.of(log)
    rows, kept = [], []
    for number, chance in enumerate(counted.equal.chances(size), start=2):
        rows.append(counted.row(number, chance, DRAWN if number == size else COUNTED))
        kept.append(counted.by_prompt(chance * (counted.equal.of >= size)))
    groups, successes = counted.successes(size)
    sums = np.stack([groups, successes, *kept], axis=1)[groups > 0]
    n_resamples = _RESAMPLES if len(sums) > 2 else 0
    draws = resampled_means(sums, n_resamples, np.random.default_rng(rng))
    totals = np.concatenate([sums.mean(axis=0, keepdims=True), draws])
    shares = totals[:, 2:] / totals[:, :1]
    rates = totals[:, 1] / totals[:, 0] if counted.values == 2 else None
    larger, needed, misses = _beyond(rates, shares, size, most_silent)
    notes = [*log.notes]
    if (rounded := counted.rounded(size)) > 0:
        notes.append(
            f"in {rounded:.2%} of the groups rewards differ by rounding alone, which a division by their standard "
            "deviation blows up to a gradient"
        )
    if larger:
        notes.append(
            "beyond the size drawn, silent groups are those of a beta distribution of success rates with the mean and "
            f"the share of silent groups of {size} that were counted"
        )
    if misses:
        notes.append(
            f"at {needed.checked_size:g} completions that distribution has {_value(needed.predicted):.0%} silent "
            f"groups, where {needed.counted:.0%} are counted: what it says of larger groups is rough"
        )
    if counted.values > 2:
        notes.append(
            f"rewards take {counted.values:,} values, of which right is the greatest and wrong the least; a beta "
            "distribution of success rates says nothing of others"
        )
    return SilentGroups((*rows, *larger), needed, size, counted.values, misses, tuple(notes))


@dataclass(frozen=True)
class _Counted:
    """The equal rewards of a log by prompt."""

    equal: EqualRewards
    owner: Int[np.ndarray, " k"]  # prompt of each
    first: Bool[np.ndarray, " k"]  # once a group
    right: Bool[np.ndarray, " k"]
    wrong: Bool[np.ndarray, " k"]
    values: int
    has_lengths: bool

    @classmethod
    def of(cls, log: Log) -> _Counted:
        has_lengths = "length" in log.frame
        lengths = log.column("length") if has_lengths else np.ones(len(log.frame))
        groups, rewards = log.labels("group"), log.column("reward")
        equal = equal_rewards(rewards, groups, np.nan_to_num(lengths))
        prompt_of = np.zeros(int(groups.max()) + 1, dtype=np.int64)
        prompt_of[groups] = log.labels("prompt")
        tolerance = ROUNDING * float(np.abs(rewards).max())
        ordered = np.sort(equal.reward)
        return cls(
            equal=equal,
            owner=prompt_of[equal.group],
            first=np.r_[True, np.diff(equal.group) != 0],
            right=equal.reward >= rewards.max() - tolerance,
            wrong=(equal.reward <= rewards.min() + tolerance) & (rewards.max() - rewards.min() > tolerance),
            values=1 + int(np.sum(np.diff(ordered) > tolerance)),
            has_lengths=has_lengths,
        )

    def by_prompt(self, values: Float[np.ndarray, " k"]) -> Float[np.ndarray, " prompts"]:
        return np.bincount(self.owner, np.nan_to_num(values))

    def row(self, number: int, chance: Float[np.ndarray, " k"], source: str) -> SizeOfGroup:
        """Return what is silent in subsets of a number of completions."""
        enough = self.equal.of >= number
        groups = self.by_prompt((self.first & enough).astype(float))
        has = groups > 0

        def share(parts: Float[np.ndarray, " k"], wholes: Float[np.ndarray, " prompts"]) -> Estimate:
            return ratio_of_sums(self.by_prompt(parts)[has], wholes[has])

        tokens = None
        if self.has_lengths:
            length = self.equal.size / self.equal.of * self.equal.length  # whose sum is the mean of the group
            tokens = share(chance * self.equal.length, self.by_prompt(length * enough))
        parts = (chance, chance * self.right, chance * self.wrong)
        silent, right, wrong = (share(one, groups) for one in parts)
        return SizeOfGroup(number, source, silent, tokens, right, wrong, int(groups.sum()), int(has.sum()))

    def successes(self, size: int) -> tuple[Float[np.ndarray, " prompts"], Float[np.ndarray, " prompts"]]:
        """Return the groups of a size and larger of each prompt, and the sum of their shares of right completions."""
        enough = self.equal.of >= size
        share = self.equal.size / self.equal.of * (self.right & enough)
        return self.by_prompt((self.first & enough).astype(float)), self.by_prompt(share)

    def rounded(self, size: int) -> float:
        """Return the share of groups, of a size and larger, whose rewards differ by rounding alone."""
        enough = self.equal.of >= size
        alone = self.equal.rounded & (self.equal.size == self.equal.of)
        return float(np.sum(alone & enough) / max(np.sum(self.first & enough), 1))


def _value(one: Estimated | None) -> float:
    return np.nan if one is None else one.with_interval(CONFIDENCE_LEVEL)[0]


def _beyond(
    rates: Float[np.ndarray, " r"] | None, shares: Float[np.ndarray, "r sizes"], size: int, most_silent: float
) -> tuple[list[SizeOfGroup], Needed, bool]:
    """Return rows of larger groups, the completions needed, and whether the beta distribution misses what is counted.

    Args:
        rates: mean rate of success, and those of resamples; None where rewards have more than two values.
        shares: shares of silent groups of 2, …, ``size``, and those of resamples.
        size: completions as drawn.
        most_silent: the share that is wanted.
    """
    now, before = shares[:, -1], shares[:, -2] if size > 2 else np.ones(len(shares))
    few = shares < most_silent
    counted = np.where(few.any(axis=1), few.argmax(axis=1) + 2.0, np.inf)
    at_least = np.where(few.any(axis=1), counted, least_size(now, before, size, most_silent))
    bound = Resampled(at_least[0], at_least[1:])
    half = max(2, size // 2)
    if rates is None:
        needed = Resampled(counted[0], counted[1:]) if few[0].any() else None
        return [], Needed(most_silent, needed, bound, np.nan, np.nan, None), False
    concentration = beta_concentration(rates, now, size)
    if half == size:
        half, at_half, predicted = np.nan, np.nan, None
    else:
        at_half, draws = float(shares[0, half - 2]), beta_silent(rates, concentration, float(half))
        predicted = Resampled(draws[0], draws[1:])
    needed = np.where(few.any(axis=1), counted, beta_size(rates, concentration, most_silent))
    found = Needed(most_silent, Resampled(needed[0], needed[1:]), bound, half, at_half, predicted)
    misses = False
    if predicted is not None and not few[0].any() and len(shares) > 1:
        off = Resampled(predicted.value - at_half, predicted.draws - shares[1:, int(half) - 2])
        difference, low, high = off.with_interval(CONFIDENCE_LEVEL)
        misses = bool(abs(difference) > _MISSED and not low <= 0.0 <= high)
    larger = []
    for number in () if few[0].any() else (size * one for one in _MULTIPLES):
        draws = beta_silent(rates, concentration, float(number))
        larger.append(SizeOfGroup(number, BETA, Resampled(draws[0], draws[1:]), None, None, None, 0, 0))
    return larger, found, misses


def plot_silent_groups(table: WithFrame | pd.DataFrame) -> Axes:
    """Draw the share of silent groups against the group size: dots as counted, diamonds by a beta distribution.

    Args:
        table: a :class:`SilentGroups`, or its frame.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["group_size", "source", *with_ends("silent")], "draw what silent_groups() gives")
    _, ax = plt.subplots()
    ax.set_xscale("log", base=2)
    at, by_model = frame["group_size"].to_numpy(dtype=float), (frame["source"] == BETA).to_numpy()
    value, low, high = estimates_of(frame, "silent").T
    draw_intervals(ax, at, value, np.fmax(low, 0.0), np.fmin(high, 1.0), ink())
    for some, marker, fill in ((~by_model, "o", ink()), (by_model, "D", paper())):
        ax.plot(at[some], value[some], marker=marker, linestyle="none", color=ink(), markerfacecolor=fill, zorder=3)
    if "group_size" in frame.attrs:
        ax.axvline(frame.attrs["group_size"], color=muted(), linestyle="--", linewidth=stroke(0.8), zorder=0)
    ax.set_ylim(0.0, 1.0)
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_xlabel("group size (completions per prompt)")
    ax.set_ylabel("share of silent groups")
    return ax


def _caption(frame: pd.DataFrame) -> str:
    level = percent(frame.attrs["confidence_level"])
    return (
        f"Groups whose rewards are all equal, with {level} intervals over prompts; drawn are groups of "
        f"{frame.attrs['group_size']}. Smaller ones are counted in subsets, larger ones follow from a beta "
        "distribution of success rates."
    )


ANALYSIS = Analysis(
    name="silent_groups",
    ask=silent_groups,
    source=read_log,
    options=("most_silent",),
    columns=SizeOfGroup.columns(),
    row_name=lambda row: f"{row['group_size']:g}, {row['source']}",
    row_heading="completions a group",
    caption=_caption,
    further=(
        FurtherTable(
            "completions_needed",
            SilentGroups.needed_frame,
            Needed.columns(),
            caption=lambda frame: "Completions of a prompt for few silent groups.",
        ),
    ),
    figures=(
        AnalysisFigure(
            "silent_groups",
            "Share of silent groups by group size: dots as counted, diamonds by a beta distribution of success rates; "
            "the dashed line is the size drawn.",
            plot_silent_groups,
        ),
    ),
)
