"""A value head beside Monte-Carlo values: bias and explained variance along the steps."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
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
    _, both = plt.subplots(2, 1, figsize=(width, 1.4 * height), sharex=True)
    axes = [ax for ax in np.ravel(both) if isinstance(ax, Axes)]
    drawn = frame.loc[frame["states"] != "all"].reset_index(drop=True)
    after = drawn["states"].isin(list(_AFTER))
    at = np.arange(len(drawn)) + 0.5 * after.to_numpy(dtype=float)
    for ax, (name, label) in zip(axes, _PANELS, strict=True):
        value, low, high = (drawn[f"{name}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
        known = np.isfinite(value)
        if not known.any():
            draw_nothing(ax, "not resolved")
        sides = np.where(np.isfinite([low, high]), np.abs([value - low, high - value]), 0.0)
        for some, marker, fill in ((known & ~after, "o", "0.15"), (known & after, "D", "white")):
            ax.errorbar(
                at[some], value[some], yerr=sides[:, some], fmt=marker, color="0.15", markerfacecolor=fill, zorder=3
            )
        ax.axhline(0.0, color="0.5", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
        ax.set_ylabel(label)
    names = [
        _AFTER.get(str(states), str(states).removeprefix("step ").replace(" and later", "+"))
        for states in drawn["states"]
    ]
    axes[-1].set_xticks(at, names)
    for tick, turned in zip(axes[-1].get_xticklabels(), after, strict=True):
        if turned:
            tick.set(rotation=30, ha="right", rotation_mode="anchor")
    axes[-1].set_xlabel("step that begins at the state" + (", or after a wrong step" if after.any() else ""))
    return axes
