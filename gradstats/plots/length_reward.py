"""Figures against length: reward within prompts, noise to signal by bins of length."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from gradstats.plots.appearance import estimator_appearance, variants
from gradstats.plots.forest import plain_ticks
from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
from gradstats.plots.intervals import draw_intervals, interval_keys
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.names import names_in, wrapped_to_axis
from gradstats.plots.theme import edge, muted, palette, stroke
from gradstats.stats.length_reward import LengthRewardCorrelation
from gradstats.stats.variance.quantities import in_metric


def plot_length_reward(
    table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, correlation: LengthRewardCorrelation | None = None
) -> Axes:
    """Draw reward against length within prompts: each completion relative to the means of its own prompt.

    Between prompts the two are correlated because hard problems need long answers and are often failed; only the
    correlation within prompts shifts a length-weighted baseline.

    Args:
        table: one row per completion, columns ``prompt_id``, ``length`` and ``reward``.
        ax: where to draw; None makes a figure.
        correlation: a :class:`gradstats.stats.LengthRewardCorrelation` to write above the axes.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    require_columns(frame, ["prompt_id", "length", "reward"], "give one row per completion")
    if ax is None:
        _, ax = plt.subplots()
    ax.set_xlabel(wrapped_to_axis("length less its prompt's mean (tokens)", 0.8))
    ax.set_ylabel("reward less its prompt's mean")
    if frame.empty:
        draw_nothing(ax, "no completions")
        return ax
    by_prompt = frame.groupby("prompt_id")
    x = (frame["length"] - by_prompt["length"].transform("mean")).to_numpy(dtype=float)
    y = (frame["reward"] - by_prompt["reward"].transform("mean")).to_numpy(dtype=float)
    few = len(frame) <= 100
    color = palette()[0]
    ax.axhline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.axvline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.scatter(
        x,
        y,
        s=(9 if few else 4) * (plt.rcParams["font.size"] / 8.0) ** 2,
        color=color,
        alpha=0.7 if few else max(0.08, 0.7 * (100 / len(frame)) ** 0.5),
        linewidths=0,
        rasterized=len(frame) > 2000,
        zorder=2,
    )
    if correlation is not None and np.isfinite(correlation.correlation):
        low, high = correlation.confidence_interval()
        ax.set_title(
            f"correlation {correlation.correlation:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−"),
            loc="left",
            fontsize="small",
        )
    return ax


def plot_length_bins(
    table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = "noise_to_signal"
) -> Axes:
    """Draw a quantity by bins of completion length, with intervals; one line per estimator, which the legend names.

    Args:
        table: a frame with ``length_low`` and ``length_high`` of each bin, ``value`` with its ``_low`` and ``_high``,
            and ``estimator`` where there are several.
        ax: where to draw; None makes a figure.
        value: the column to draw, on a log axis.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    ends = (value, f"{value}_low", f"{value}_high")
    require_columns(frame, ["length_low", "length_high", *ends], "give one row per bin")
    lines = (
        [("", frame)]
        if "estimator" not in frame
        else [(str(name), rows) for name, rows in frame.groupby("estimator", sort=False)]
    )
    names = names_in(frame)
    keys = interval_keys(frame[list(ends)].to_numpy(dtype=float))
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        entries = [*names.values(), *(str(key.get_label()) for key in keys)]
        extra = legend_height(entries, width, font_size) if entries else 0.0
        _, ax = plt.subplots(figsize=(width, height + extra))
    ax.set_xscale("log")
    ax.set_yscale("log")
    known = frame[list(ends)].to_numpy(dtype=float)
    if not np.isfinite(known).any():
        draw_nothing(ax, "no bin is resolved" if len(frame) else "no bins")
    unresolved = 0
    for place, ((name, rows), kind) in enumerate(zip(lines, variants([name for name, _ in lines]), strict=True)):
        color, marker = estimator_appearance(name) if name else (palette()[0], "o")
        drawn = {"color": color, "marker": marker, "markerfacecoloralt": ax.get_facecolor(), **kind._asdict()}
        middle = np.sqrt(rows["length_low"].to_numpy(dtype=float) * rows["length_high"].to_numpy(dtype=float))
        # Side by side within a bin, however many they are.
        at = middle * 2.0 ** (min(0.08, 0.5 / len(lines)) * (place - (len(lines) - 1) / 2.0))
        centre, low, high = (rows[column].to_numpy(dtype=float) for column in ends)
        ax.plot(at, centre, linewidth=stroke(1.0), label=names.get(name), zorder=3, **drawn, **edge())
        draw_intervals(ax, at, centre, low, high, color)
        # Known from below alone: an upward triangle at the bound.
        bounded = np.isnan(centre) & np.isfinite(low)
        ax.plot(at[bounded], low[bounded], marker="^", color=color, linestyle="none", zorder=3, markerfacecolor="none")
        unresolved += int(bounded.sum())
    if unresolved:
        ax.set_title(r"$\bigtriangleup$ at least", loc="left", fontsize="small")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    edges = sorted({float(edge) for column in ("length_low", "length_high") for edge in frame[column].dropna()})
    if edges:
        margin = 1.0 if len(edges) > 1 else 1.3  # a single length is a point, not an axis
        ax.set_xlim(edges[0] / margin, edges[-1] * margin)
        ax.set_xticks(_apart(edges))
        ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax, logarithmic=True, vertical=True)
    ax.set_xlabel("completion length (tokens), by bins")
    ax.set_ylabel(in_metric(value.replace("_", " "), frame.attrs))
    legend_below(ax, font_size, keys)
    return ax


def _apart(edges: list[float]) -> list[float]:
    """Return the first edge, and each that lies a ninth of a log axis beyond the last one taken."""
    least = (edges[-1] / edges[0]) ** (1.0 / 9.0)
    taken = edges[:1]
    for beyond in edges[1:]:
        if beyond > taken[-1] * least:
            taken.append(beyond)
    return taken
