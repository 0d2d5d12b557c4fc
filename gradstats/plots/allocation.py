"""Noise at an equal number of tokens, shares of the gradient by bins, and the quality of a value head by step."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_intervals,
    draw_nothing,
    draw_series,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    require_columns,
    with_ends,
)
from gradstats.plots.names import estimator_appearance, names_in, variants, wrapped_to_axis
from gradstats.plots.style import edge, ink, muted, paper, stroke
from gradstats.plots.variance import draw_landmark, plain_ticks
from gradstats.stats.critic_quality import FAILED, RECOVERED
from gradstats.stats.variance.quantities import in_metric
from gradstats.stats.variance.shares import SHARES


def plot_allocation(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the noise at an equal number of tokens against completions per prompt, one line per estimator.

    Noise is at the scale of the target, so that estimators of every unit share the axis. Estimators of equal noise,
    such as multiples of one another, share a line. Sizes that were extrapolated are open markers on a dotted line.

    Args:
        table: :func:`gradstats.allocate` or its frame; columns ``estimator``, ``group_size``, ``n_prompts``,
            ``extrapolated``, and ``relative_noise`` with its ``_low`` and ``_high``.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    columns = ["estimator", "group_size", "n_prompts", "extrapolated", *with_ends("relative_noise")]
    require_columns(frame, columns, "draw what allocate() gives")
    lines = _distinct(frame)
    shown = names_in(frame)
    labels = ["; ".join(shown[name] for name in names) for names in lines]
    keys = interval_keys(frame, ["relative_noise"])
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + 0.25 + legend_height(labels, keys)))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    kinds = variants([names[0] for names in lines])
    for place, (names, label, kind) in enumerate(zip(lines, labels, kinds, strict=True)):
        rows = frame.loc[[str(one) == names[0] for one in frame["estimator"]]]
        sizes, guessed = rows["group_size"].to_numpy(dtype=float), rows["extrapolated"].to_numpy(dtype=bool)
        centre, low, high = estimates_of(rows, "relative_noise").T
        color, marker = estimator_appearance(names[0])
        # Side by side, so that intervals do not overlap.
        at = sizes * 2.0 ** (0.3 * (place - (len(lines) - 1) / 2.0) / max(len(lines) / 2.0, 1.0))
        ax.plot(at, centre, color=color, linestyle=":", linewidth=stroke(1.0), zorder=2)
        seen = ~guessed
        drawn = {"color": color, "marker": marker, "markerfacecoloralt": ax.get_facecolor(), **kind._asdict()}
        ax.plot(at[seen], centre[seen], linewidth=stroke(1.0), label=label, zorder=3, **drawn, **edge())
        ax.plot(at[guessed], centre[guessed], color=color, marker=marker, linestyle="none", markerfacecolor="none")
        draw_intervals(ax, at, centre, low, high, color)
    if frame.empty:
        draw_nothing(ax, "no estimators")
    else:
        draw_landmark(ax, 1.0, horizontal=True)
    prompts = dict(zip(frame["group_size"], frame["n_prompts"], strict=True))
    if prompts:
        ax.set_xlim(min(prompts) / 1.4, max(prompts) * 1.4)
    ax.set_xticks(list(prompts), labels=[f"{size:g}\n({n_prompts_label(n)})" for size, n in prompts.items()])
    ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax, logarithmic=True, vertical=True)
    ax.set_xlabel("completions per prompt (prompts)")
    ax.set_ylabel(in_metric("relative noise\nat equal tokens", frame.attrs))
    legend_below(ax, keys)
    return ax


def n_prompts_label(n: float) -> str:
    """Return how many prompts the tokens pay for, thousands in full."""
    return f"{n:,.0f}" if n >= 1000 else f"{n:.3g}"


def _distinct(frame: pd.DataFrame) -> list[list[str]]:
    """Return the estimators in order, those of equal noise at the same sizes together."""
    columns = ["group_size", *with_ends("relative_noise")]
    found: list[tuple[list[str], np.ndarray]] = []
    for name, rows in frame.groupby("estimator", sort=False):
        numbers = rows[columns].to_numpy(dtype=float)
        for names, others in found:
            if others.shape == numbers.shape and np.allclose(others, numbers, rtol=1e-9, atol=0.0, equal_nan=True):
                names.append(str(name))
                break
        else:
            found.append(([str(name)], numbers))
    return [names for names, _ in found]


_AXIS_LABELS = {"success": "success rate of the prompt", "length": "completion length (tokens)"}


def plot_shares(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = "share_of_gradient") -> Axes:
    """Draw what each bin makes up of the expected gradient or of the variance, which have no unit.

    Args:
        table: :func:`gradstats.variance_by_success`, or frames of :func:`gradstats.variance_by_length` stacked; columns
            ``estimator``, the ends of each bin (``success_low`` and ``success_high``, or ``length_…``), and ``value``
            with its ``_low`` and ``_high``.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.
        value: ``"share_of_gradient"`` or ``"share_of_variance"``. An estimator whose expected gradient is not resolved
            has no share of it, which the legend says.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown value, or a frame without its columns.
    """
    frame = as_frame(table)
    if value not in SHARES:
        raise ValueError(f"value={value!r} cannot be drawn: choose from {', '.join(SHARES)}")
    quantity = "success" if "success_low" in frame else "length"
    edges = [f"{quantity}_low", f"{quantity}_high"]
    require_columns(frame, ["estimator", *edges, *with_ends(value)], "draw what variance_by_success() gives")
    lines = [(str(name), estimates_of(rows, value)) for name, rows in frame.groupby("estimator", sort=False)]
    names = names_in(frame)
    labels = [names[name] + ("" if np.isfinite(numbers[:, 0]).any() else " (not resolved)") for name, numbers in lines]
    keys = interval_keys(frame, [value])
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + 0.15 + legend_height(labels, keys)))
    bins = frame[edges].drop_duplicates().to_numpy(dtype=float)
    kinds = variants([name for name, _ in lines])
    for place, ((name, numbers), label, kind) in enumerate(zip(lines, labels, kinds, strict=True)):
        at = np.arange(len(numbers)) + min(0.12, 0.6 / len(lines)) * (place - (len(lines) - 1) / 2.0)
        draw_series(ax, at, numbers, estimator_appearance(name), kind, label)
    if not np.isfinite(frame[value].to_numpy(dtype=float)).any():
        draw_nothing(ax, "no share is resolved" if len(frame) else "no bins")
        ax.set_yticks([])
    ax.axhline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.set_xticks(range(len(bins)), labels=[bin_label(low, high, "–\n") for low, high in bins])
    ax.set_xlim(-0.5, max(len(bins), 1) - 0.5)
    ax.set_xlabel(_AXIS_LABELS[quantity])
    ax.set_ylabel(in_metric(SHARES[value], frame.attrs))
    legend_below(ax, keys)
    return ax


def bin_label(low: float, high: float, dash: str = "–") -> str:
    """Return the ends of a bin, or the only value in it."""
    return f"{low:.3g}" if low == high else f"{low:.3g}{dash}{high:.3g}"


_PANELS = {"bias": "bias of the head", "explained_variance": "explained variance"}
_AFTER = {RECOVERED: "recovered", FAILED: "not recovered"}


def plot_critic(table: WithFrame | pd.DataFrame) -> list[Axes]:
    """Draw the bias and the explained variance of a value head by step, and its bias after a wrong step.

    Args:
        table: a :class:`gradstats.CriticQuality`, or its frame.

    Returns:
        The axes, bias first.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    columns = ["states", *(column for name in _PANELS for column in with_ends(name))]
    require_columns(frame, columns, "draw what critic_quality() gives")
    width, height = plt.rcParams["figure.figsize"]
    keys = interval_keys(frame, list(_PANELS))
    _, both = plt.subplots(2, 1, figsize=(width, 1.55 * height + (0.2 if keys else 0.0)), sharex=True)
    axes = [ax for ax in np.ravel(both) if isinstance(ax, Axes)]
    drawn = frame.loc[frame["states"] != "all"].reset_index(drop=True)
    after = drawn["states"].isin(list(_AFTER))
    at = np.arange(len(drawn)) + 0.5 * after.to_numpy(dtype=float)
    for ax, (name, label) in zip(axes, _PANELS.items(), strict=True):
        value, low, high = estimates_of(drawn, name).T
        known = np.isfinite(value)
        if not known.any():
            draw_nothing(ax, "not resolved")
        draw_intervals(ax, at, value, low, high, ink())
        for some, marker, fill in ((known & ~after, "o", ink()), (known & after, "D", paper())):
            ax.plot(at[some], value[some], marker=marker, linestyle="none", color=ink(), markerfacecolor=fill, zorder=3)
        draw_landmark(ax, 0.0, horizontal=True)
        ax.set_ylabel(label)
    names = [
        _AFTER.get(str(states), str(states).removeprefix("step ").replace(" and later", "+"))
        for states in drawn["states"]
    ]
    axes[-1].set_xticks(at, names)
    for tick, turned in zip(axes[-1].get_xticklabels(), after, strict=True):
        if turned:
            tick.set(rotation=30, ha="right", rotation_mode="anchor")
    label = "step that begins at the state" + (", or after a wrong step" if after.any() else "")
    axes[-1].set_xlabel(wrapped_to_axis(label, 0.85))
    legend_below(axes[0], keys)
    return axes
