"""A value head beside Monte-Carlo values: bias and explained variance along the steps."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
from gradstats.plots.intervals import draw_intervals, interval_keys
from gradstats.plots.legend import legend_below
from gradstats.plots.names import wrapped_to_axis
from gradstats.plots.theme import ink, muted, paper, stroke
from gradstats.stats.critic_quality import FAILED, RECOVERED

_PANELS = (("bias", "bias of the head"), ("explained_variance", "explained variance"))
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
    columns = ["states", *(f"{name}{end}" for name, _ in _PANELS for end in ("", "_low", "_high"))]
    require_columns(frame, columns, "draw what critic_quality() gives")
    width, height = plt.rcParams["figure.figsize"]
    keys = interval_keys(*(frame[[f"{name}{end}" for end in ("", "_low", "_high")]].to_numpy() for name, _ in _PANELS))
    _, both = plt.subplots(2, 1, figsize=(width, 1.55 * height + (0.2 if keys else 0.0)), sharex=True)
    axes = [ax for ax in np.ravel(both) if isinstance(ax, Axes)]
    drawn = frame.loc[frame["states"] != "all"].reset_index(drop=True)
    after = drawn["states"].isin(list(_AFTER))
    at = np.arange(len(drawn)) + 0.5 * after.to_numpy(dtype=float)
    for ax, (name, label) in zip(axes, _PANELS, strict=True):
        value, low, high = (drawn[f"{name}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
        known = np.isfinite(value)
        if not known.any():
            draw_nothing(ax, "not resolved")
        draw_intervals(ax, at, value, low, high, ink())
        for some, marker, fill in ((known & ~after, "o", ink()), (known & after, "D", paper())):
            ax.plot(at[some], value[some], marker=marker, linestyle="none", color=ink(), markerfacecolor=fill, zorder=3)
        ax.axhline(0.0, color=muted(), linewidth=stroke(0.8), linestyle=(0, (4, 2)), zorder=1)
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
    legend_below(axes[0], plt.rcParams["font.size"] * 7.0 / 8.0, keys)
    return axes
