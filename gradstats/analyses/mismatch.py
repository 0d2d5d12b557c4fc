"""How far does the trainer's policy differ from the sampler's, and what would corrections remove?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.analyses.declaration import Analysis, AnalysisFigure, level_of
from gradstats.analyses.log_lengths import mean_of
from gradstats.analyses.numbers import format_estimate, format_number, percentage_at_most
from gradstats.analyses.results import Result, Row, column, estimate, span
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED
from gradstats.plots.marks import WithFrame, as_frame, draw_intervals, estimates_of, require_columns, with_ends
from gradstats.plots.style import ink
from gradstats.rollouts.log import BAND, CAP, Log, read_log
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic
from gradstats.stats.ratios import ratio_spread
from gradstats.stats.variance.quantities import NOT_NEGATIVE, SHARE
from gradstats.stats.variance.shares import bin_of
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The greatest ratio of a completion that TRL keeps: ``vllm_importance_sampling_clip_max`` of its ``sequence_mask``.
LARGEST_KEPT = 3.0


@dataclass(frozen=True)
class MismatchRow(Row):
    """The ratios of completions of similar length, or of all."""

    of: str = column("all completions, or those of these lengths")
    length: tuple[float, float] = span("range of the numbers of tokens")
    n: int = column("completions")
    effective: Estimate = estimate(
        "effective sample size of completions weighted by their ratios, over their number", "effective share",
        short=True, limits=SHARE, file="stats/ratios.py",
    )  # fmt: skip
    gap: Estimate = estimate(
        "mean |log π_trainer − log π_sampler| of a token", "gap of a token", short=True, limits=NOT_NEGATIVE
    )
    spread: Estimate = estimate(
        "root mean square of the log-ratio of completions", "log-ratio of a completion", short=True, limits=NOT_NEGATIVE
    )
    capped: Estimate = estimate(f"tokens that TIS caps (ratio above {CAP:g})", "TIS caps", short=True, limits=SHARE)
    outside: Estimate = estimate(
        f"tokens that IcePop masks (ratio outside {BAND[0]:g} to {BAND[1]:g})", "IcePop masks", short=True, limits=SHARE
    )
    masked: Estimate = estimate(
        f"completions that TRL's sequence_mask masks (ratio above {LARGEST_KEPT:g})", "TRL masks", short=True,
        limits=SHARE,
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Mismatch(Result):
    r"""The ratios of trainer and sampler; see :func:`mismatch`.

    Attributes:
        rows: all completions, then bins of length, shortest first.
        growth: γ of :math:`\sqrt{E(\log ρ)²} ∝ T^γ`, between the shortest and the longest bin.
        negligible: whether trainer and sampler count as one policy.
        notes: what a reader has to know.
    """

    question: ClassVar[str] = "mismatch"
    row: ClassVar = MismatchRow

    rows: tuple[MismatchRow, ...]
    growth: Estimate
    negligible: bool
    notes: tuple[str, ...] = ()

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State what the completions are worth, what corrections remove, and how the ratio grows with length."""
        row = self.rows[0]
        if self.negligible:
            gap = format_number(row.gap.with_interval(confidence_level)[0], 1)
            return (
                f"Trainer and sampler agree (mean difference of a token's log-probability {gap}): nothing to correct."
            )
        value, low, high = (row.n * one for one in row.effective.with_interval(confidence_level))
        worth = f"{value:,.0f} [{low:,.0f}, {min(high, row.n):,.0f}]" if np.isfinite(low) else f"{value:,.0f}"
        shares = [one.with_interval(confidence_level)[0] for one in (row.capped, row.outside, row.masked)]
        tis, icepop, masked = (percentage_at_most(one, 1) for one in shares)
        said = (
            f"Weighted by their ratios, {row.n:,} completions are worth {worth}. TIS caps {tis} of tokens, IcePop "
            f"masks {icepop}, TRL's sequence mask {masked} of completions"
        )
        if np.isfinite(self.growth.value):
            said += f"; the log-ratio grows as T^{format_estimate(*self.growth.with_interval(confidence_level))}"
        return f"{said}."


def without_ratios(log: Log) -> str:
    """Return why the ratios are not known; "" where they are."""
    if "log_ratio" in log.frame and np.isfinite(log.column("log_ratio")).sum() > 1:
        return ""
    return (
        "the log holds no log-probabilities of both sampler and trainer, a list for each completion: log them, as "
        "rollout_log_probs and old_log_probs of verl or sampling_per_token_logps and old_per_token_logps of TRL"
    )


def mismatch(log: Log, *, n_bins: int = 4) -> Mismatch:
    r"""Describe the ratios :math:`ρ = π_\mathrm{trainer}/π_\mathrm{sampler}` of a log, and what corrections reach.

    Of whole completions, :math:`\prod_t ρ_t`, the effective sample size :math:`(\sumρ)²/\sumρ²` and the root mean
    square of the logarithm; of tokens the mean absolute log-ratio and the shares that truncated importance sampling
    (TIS) caps and IcePop masks, at the defaults of the recipes ``tis`` and ``icepop``; of completions those that TRL's
    ``sequence_mask`` masks. The log-ratio grows with the root of the length where tokens differ
    independently, and with the length where they drift.
    Intervals are by delete-one-prompt jackknife.

    Args:
        log: of :func:`gradstats.read_log`.
        n_bins: bins of length, with about as many completions each.

    Returns:
        A :class:`Mismatch`.

    Raises:
        ValueError: without log-probabilities of both, or for fewer than one bin.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> columns = {"step": [1] * 4 + [2] * 4, "prompt": [0, 0, 1, 1] * 2, "group": [0, 0, 1, 1, 2, 2, 3, 3]}
        >>> columns |= {"reward": 1.0, "log_ratio": [0.0, 1.2, 0.1, -0.2, 0.0, 0.3, -0.1, 0.2], "n_ratios": 5}
        >>> columns |= {"abs_gap": 1.0, "n_capped": 0, "n_outside": 0}
        >>> log = gs.rollouts.Log(pd.DataFrame(columns), "made up")
        >>> round(float(8 * gs.analyses.mismatch(log).rows[0].effective.value), 2)  # (Σρ)²/Σρ²
        6.03
    """
    if why := without_ratios(log):
        raise ValueError(why)
    if n_bins < 1:
        raise ValueError(f"n_bins={n_bins} must be at least 1")
    known = np.isfinite(log.column("log_ratio"))
    frame = log.frame.loc[known]
    prompts = np.unique(log.labels("prompt")[known], return_inverse=True)[1]
    logs, tokens = (frame[name].to_numpy(dtype=np.float64) for name in ("log_ratio", "n_ratios"))
    of_tokens = {name: frame[name].to_numpy(dtype=np.float64) / tokens for name in ("abs_gap", "n_capped", "n_outside")}
    bins = bin_of(tokens, n_bins)

    def rows() -> Iterator[MismatchRow]:
        every = np.ones(len(logs), dtype=bool)
        for name, some in (("all", every), *(("these", bins == one) for one in np.unique(bins))):
            weight = some.astype(float)
            size = ratio_spread(
                "product", logs[some], prompts[some], tokens[some].astype(np.int64)
            ).effective_sample_size
            shares = [mean_of(values, weight * tokens, prompts) for values in of_tokens.values()]
            square = mean_of(logs**2, weight, prompts)
            yield MismatchRow(
                of=name,
                length=(float(tokens[some].min()), float(tokens[some].max())),
                n=int(some.sum()),
                effective=replace(size, value=size.value / some.sum()),
                gap=shares[0],
                spread=Estimate(
                    np.sqrt(square.value), square.stderr / (2.0 * np.sqrt(square.value)), "raw", square.degrees
                )
                if square.value > 0
                else square,
                capped=shares[1],
                outside=shares[2],
                masked=mean_of((logs > np.log(LARGEST_KEPT)).astype(float), weight, prompts),
            )

    found = tuple(rows())
    with np.errstate(over="ignore"):
        negligible = bool(np.mean(np.expm1(logs) ** 2) <= NEGLIGIBLE_CHI_SQUARED)
    left_out = int((~known).sum())
    notes = [*log.notes]
    if left_out:
        notes.append(f"{left_out:,} completions have tokens without a log-probability and are left out of the ratios")
    return Mismatch(found, _growth(logs, tokens, prompts, bins), negligible, tuple(notes))


def _growth(
    logs: Float[np.ndarray, " n"],
    tokens: Float[np.ndarray, " n"],
    prompts: Int[np.ndarray, " n"],
    bins: Int[np.ndarray, " n"],
) -> Estimate:
    """Return the exponent of the log-ratio's root mean square in length, from the two outermost bins."""

    def square(some: Bool[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, float]:
        sums, counts = np.bincount(prompts, logs**2 * some), np.bincount(prompts, some)
        return sums, counts, float(tokens[some].mean())

    (short, n_short, from_length), (long, n_long, to_length) = square(bins == bins.min()), square(bins == bins.max())
    if not (to_length > from_length and short.sum() > 0 and long.sum() > 0):
        return NOT_ESTIMATED
    first, last = (mean_statistic(one) / mean_statistic(n) for one, n in ((short, n_short), (long, n_long)))
    return (last / first).logarithm().scaled(0.5 / np.log(to_length / from_length)).estimate()


def plot_mismatch(table: WithFrame | pd.DataFrame) -> Axes:
    """Draw the effective share of completions, weighted by their ratios, by bins of length.

    Args:
        table: a :class:`Mismatch`, or its frame.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["of", "length_low", "length_high", *with_ends("effective")], "draw what mismatch() gives")
    frame = frame.loc[frame["of"] != "all"]
    _, ax = plt.subplots()
    at = frame[["length_low", "length_high"]].to_numpy(dtype=float).mean(axis=1)
    value, low, high = estimates_of(frame, "effective").T
    draw_intervals(ax, at, value, low, np.fmin(high, 1.0), ink())
    ax.plot(at, value, marker="o", color=ink(), zorder=3)
    ax.set_ylim(0.0, 1.05)
    ax.set_xlabel("completion length (tokens), by bins")
    ax.set_ylabel("effective share of completions")
    return ax


ANALYSIS = Analysis(
    name="mismatch",
    ask=mismatch,
    source=read_log,
    unavailable_because=without_ratios,  # pyright: ignore[reportArgumentType]
    options=("n_bins",),
    columns=MismatchRow.columns(),
    row_name=lambda row: "all" if row["of"] == "all" else f"{row['length_low']:,.0f}–{row['length_high']:,.0f} tokens",
    row_heading="completions",
    caption=lambda frame: (
        f"Ratios of the trainer's policy to the sampler's, with {level_of(frame)}intervals over prompts."
    ),
    figures=(
        AnalysisFigure(
            "mismatch",
            "Effective share of completions, weighted by the ratio of trainer to sampler, by bins of length.",
            plot_mismatch,
        ),
    ),
)
