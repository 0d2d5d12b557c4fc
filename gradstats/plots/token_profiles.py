"""Token profiles: how concentrated energy is, and how scores correlate with distance."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
from gradstats.plots.intervals import draw_intervals, interval_keys
from gradstats.plots.legend import legend_below
from gradstats.plots.theme import muted, palette, stroke
from gradstats.stats.variance.quantities import in_metric


def plot_concentration(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the share of a completion's token energy that its heaviest tokens hold, with intervals.

    Args:
        table: a :class:`gradstats.stats.TokenProfile` of :func:`gradstats.stats.concentration`, or its frame.
        ax: where to draw; None makes a figure.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    require_columns(frame, ["tokens_first", "share", "share_low", "share_high"], "draw what concentration() gives")
    ax = _profile(frame, "tokens", "share", ax)
    ax.set_ylim(0.0, 1.02)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    ax.set_xlabel("heaviest tokens of a completion")
    ax.set_ylabel(in_metric("share of its token energy", frame.attrs))
    return ax


def plot_token_correlation(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the correlation of token scores against the distance between tokens, with the on-policy value 0.

    Args:
        table: a :class:`gradstats.stats.TokenProfile` of :func:`gradstats.stats.token_correlation`, or its frame.
        ax: where to draw; None makes a figure.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    columns = ["distance_first", "distance_last", "correlation", "correlation_low", "correlation_high"]
    require_columns(frame, columns, "draw what token_correlation() gives")
    ax = _profile(frame, "distance", "correlation", ax)
    ax.axhline(0.0, color=muted(), linewidth=stroke(0.8), linestyle=(0, (4, 2)), zorder=1)
    ax.set_xlabel("distance (tokens)")
    ax.set_ylabel(in_metric("correlation of token scores", frame.attrs))
    return ax


def _profile(frame: pd.DataFrame, axis: str, quantity: str, ax: Axes | None) -> Axes:
    ends = [quantity, f"{quantity}_low", f"{quantity}_high"]
    keys, font_size = interval_keys(frame[ends].to_numpy(dtype=float)), plt.rcParams["font.size"] * 7.0 / 8.0
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + (0.2 if keys else 0.0)))
    known = frame.loc[np.isfinite(frame[quantity].to_numpy(dtype=float))]
    if known.empty:
        draw_nothing(ax, "no completions")
        return ax
    first, last = (known[f"{axis}_{end}"].to_numpy(dtype=float) for end in ("first", "last"))
    at = np.sqrt(first * last)
    value, low, high = known[ends].to_numpy(dtype=float).T
    color = palette()[0]
    ax.plot(at, value, color=color, linewidth=stroke(0.9), zorder=2)
    size = plt.rcParams["lines.markersize"] * 0.8
    ax.plot(at, value, color=color, marker="o", linestyle="none", markersize=size, zorder=3)
    draw_intervals(ax, at, value, low, high, color)
    ax.set_xscale("log", base=2)
    ax.set_xticks(at)
    labels = [f"{a:g}" if a == b else f"{a:g}–{b:g}" for a, b in zip(first, last, strict=True)]
    # Every other name where bins are many, so that none touches its neighbour.
    step = 1 if len(labels) <= 6 else 2
    ax.set_xticklabels([label if place % step == 0 else "" for place, label in enumerate(labels)])
    ax.xaxis.set_minor_locator(NullLocator())
    legend_below(ax, font_size, keys)
    return ax
