"""Single tokens: energies along completions, proxies against energies, and profiles by rank and by distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_intervals,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    legend_text,
    points_look,
    require_columns,
    with_ends,
)
from gradstats.plots.names import CHARACTER, figure_inches, wrapped
from gradstats.plots.style import muted, palette, stroke
from gradstats.plots.variance import draw_landmark, plain_ticks
from gradstats.stats.variance.quantities import in_metric
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Above this number of traces, a legend no longer helps.
_MOST_NAMED = 8
_ENERGY = r"token energy $\Vert s_t\Vert^2$"
# Inches of a panel, and of the axis below the last one.
_PANEL, _AXIS = 0.85, 0.35


def plot_token_energy(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    r"""Draw :math:`‖s_t‖²`, the squared norm of each token's score, along one or several traces, on a log axis.

    Args:
        table: a frame with columns ``position`` (from 0) and ``energy``; ``sequence`` where there are several traces;
            ``energy_low`` and ``energy_high`` where energies were estimated.
        ax: where to draw; None makes a figure.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["position", "energy"], "give one row per token")
    traces = _traces(frame)
    named = 1 < len(traces) <= _MOST_NAMED
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        _, ax = plt.subplots(
            figsize=(width, height + legend_height([name for name, _ in traces] if named else [])), layout="constrained"
        )
    energies = frame["energy"].to_numpy(dtype=float)
    positive = energies[energies > 0]
    if len(positive) == 0:
        draw_nothing(ax, "no tokens")
    else:
        ax.set_yscale("log")
    colors = palette()
    for place, (name, rows) in enumerate(traces if len(positive) else []):
        color = colors[place % len(colors)]
        rows = rows.sort_values("position")
        at, energy = rows["position"].to_numpy(dtype=float), rows["energy"].to_numpy(dtype=float)
        shade = 1.0 if len(traces) <= _MOST_NAMED else max(0.08, _MOST_NAMED / len(traces))
        size = mpl.rcParams["lines.markersize"] * 0.55
        look = {"color": color, "marker": "o", "markersize": size, "markeredgewidth": 0.0}
        ax.plot(at, energy, alpha=shade, linewidth=stroke(0.7), label=name if named else None, **look)
        if {"energy_low", "energy_high"} <= set(rows.columns):
            low, high = (rows[column].to_numpy(dtype=float) for column in ("energy_low", "energy_high"))
            ax.fill_between(at, np.fmax(low, float(positive.min())), high, color=color, alpha=0.2 * shade, linewidth=0)
    ax.set_xlabel("position in the completion (tokens)")
    ax.set_ylabel(in_metric(_ENERGY, frame.attrs))
    if named:
        legend_below(ax)
    return ax


def _traces(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    by_name = frame.groupby("sequence", sort=False) if "sequence" in frame else [("", frame)]
    return [(str(name), rows) for name, rows in by_name]


def plot_token_energy_panels(table: WithFrame | pd.DataFrame) -> list[Axes]:
    r"""Draw :math:`‖s_t‖²` along several traces below each other, a small panel with the same axes for each.

    Energies change by orders of magnitude from one token to the next, so that traces on the same axes hide each other.

    Args:
        table: as for :func:`plot_token_energy`; the first traces where there are more than eight.

    Returns:
        The axes, from the top.

    Raises:
        ValueError: as :func:`plot_token_energy`.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["position", "energy"], "give one row per token")
    traces = _traces(frame)[:_MOST_NAMED]
    width = mpl.rcParams["figure.figsize"][0]
    height = (_PANEL * max(len(traces), 1) + _AXIS) * mpl.rcParams["font.size"] / 8.0
    _, grid = plt.subplots(
        max(len(traces), 1), 1, figsize=(width, height), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    axes = [ax for ax in grid[:, 0] if isinstance(ax, plt.Axes)]
    for ax, (name, rows) in zip(axes, traces or [("", frame)], strict=True):
        rows.attrs = frame.attrs
        plot_token_energy(rows.drop(columns="sequence", errors="ignore"), ax=ax)
        ax.set_title(legend_text(name, width, mpl.rcParams["font.size"]), loc="left", fontsize="small")
        ax.label_outer()
        ax.set_ylabel("")
        plain_ticks(ax, ax.get_yscale() == "log", most=3, vertical=True)
    figure = axes[0].get_figure()
    assert figure is not None
    figure.supylabel(in_metric(_ENERGY, frame.attrs), fontsize=mpl.rcParams["axes.labelsize"])
    return axes


def plot_proxy(
    table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, proxy: str = "proxy", truth: str = "truth"
) -> Axes:
    """Draw a proxy against what it stands for, on log axes, with the line where the two are equal.

    Args:
        table: a frame with one column for each, positive; ``.attrs["proxy"]`` and ``.attrs["truth"]`` name the axes,
            ``.attrs["rank_correlation"]``, where given, is written above the axes.
        ax: where to draw; None makes a figure.
        proxy: column of the proxy.
        truth: column of the truth.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, [proxy, truth], "give one row per token or completion")
    if ax is None:
        width = mpl.rcParams["figure.figsize"][0]
        _, ax = plt.subplots(figsize=(width, width * 0.8), layout="constrained")
    shown = frame[(frame[proxy] > 0) & (frame[truth] > 0)]
    if shown.empty:
        draw_nothing(ax, "no points")
    else:
        ax.scatter(shown[truth], shown[proxy], color=palette()[0], **points_look(len(shown)))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.axline((1.0, 1.0), (2.0, 2.0), color=muted(), linewidth=stroke(0.8), linestyle=(0, (4, 2)), zorder=1)
        left_out = len(frame) - len(shown)
        rank = frame.attrs.get("rank_correlation")
        remarks = [] if rank is None else [f"rank correlation {rank:.2f}"]
        remarks += [f"{left_out} not positive, not shown"] if left_out else []
        lines = wrapped("; ".join(remarks), int(figure_inches() / CHARACTER)) if remarks else []
        ax.set_title("\n".join(lines), loc="left", fontsize="small")
    ax.set_xlabel(in_metric(str(frame.attrs.get("truth", truth)), frame.attrs))
    ax.set_ylabel(str(frame.attrs.get("proxy", proxy)))
    return ax


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
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["tokens_first", *with_ends("share")], "draw what concentration() gives")
    ax = _profile(frame, "tokens", "share", ax)
    ax.set_ylim(0.0, 1.02)
    ax.yaxis.set_major_formatter(plt.FuncFormatter(lambda share, _: f"{share:.0%}"))
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
    columns = ["distance_first", "distance_last", *with_ends("correlation")]
    require_columns(frame, columns, "draw what token_correlation() gives")
    ax = _profile(frame, "distance", "correlation", ax)
    draw_landmark(ax, 0.0, horizontal=True)
    ax.set_xlabel("distance (tokens)")
    ax.set_ylabel(in_metric("correlation of token scores", frame.attrs))
    return ax


def _profile(frame: pd.DataFrame, axis: str, quantity: str, ax: Axes | None) -> Axes:
    import matplotlib.pyplot as plt

    keys = interval_keys(frame, [quantity])
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + (0.2 if keys else 0.0)), layout="constrained")
    known = frame.loc[np.isfinite(frame[quantity].to_numpy(dtype=float))]
    if known.empty:
        draw_nothing(ax, "no completions")
        return ax
    first, last = (known[f"{axis}_{end}"].to_numpy(dtype=float) for end in ("first", "last"))
    at = np.sqrt(first * last)
    value, low, high = estimates_of(known, quantity).T
    color = palette()[0]
    ax.plot(at, value, color=color, linewidth=stroke(0.9), zorder=2)
    size = mpl.rcParams["lines.markersize"] * 0.8
    ax.plot(at, value, color=color, marker="o", linestyle="none", markersize=size, zorder=3)
    draw_intervals(ax, at, value, low, high, color)
    ax.set_xscale("log", base=2)
    ax.set_xticks(at)
    labels = [f"{a:g}" if a == b else f"{a:g}–{b:g}" for a, b in zip(first, last, strict=True)]
    # Every other name where bins are many, so that none touches its neighbour.
    step = 1 if len(labels) <= 6 else 2
    ax.set_xticklabels([label if place % step == 0 else "" for place, label in enumerate(labels)])
    ax.xaxis.set_minor_locator(plt.NullLocator())
    legend_below(ax, keys)
    return ax
