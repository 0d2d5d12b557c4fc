"""The noise of a gradient against completions per prompt, at an equal number of tokens."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from gradstats.plots.appearance import estimator_appearance, variants
from gradstats.plots.forest import plain_ticks
from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
from gradstats.plots.intervals import draw_intervals, interval_keys
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.names import names_in
from gradstats.plots.theme import edge, muted, stroke
from gradstats.stats.variance.quantities import in_metric


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
    ends = ["relative_noise", "relative_noise_low", "relative_noise_high"]
    require_columns(
        frame, ["estimator", "group_size", "n_prompts", "extrapolated", *ends], "draw what allocate() gives"
    )
    lines = _distinct(frame)
    shown = names_in(frame)
    labels = ["; ".join(shown[name] for name in names) for names in lines]
    keys = interval_keys(frame[ends].to_numpy(dtype=float))
    entries = [*labels, *(str(key.get_label()) for key in keys)]
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + 0.25 + legend_height(entries, width, font_size)))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    kinds = variants([names[0] for names in lines])
    for place, (names, label, kind) in enumerate(zip(lines, labels, kinds, strict=True)):
        rows = frame.loc[[str(one) == names[0] for one in frame["estimator"]]]
        sizes, guessed = rows["group_size"].to_numpy(dtype=float), rows["extrapolated"].to_numpy(dtype=bool)
        centre, low, high = (rows[column].to_numpy(dtype=float) for column in ends)
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
        ax.axhline(1.0, color=muted(), linewidth=stroke(0.8), linestyle=(0, (4, 2)), zorder=1)
    prompts = dict(zip(frame["group_size"], frame["n_prompts"], strict=True))
    if prompts:
        ax.set_xlim(min(prompts) / 1.4, max(prompts) * 1.4)
    ax.set_xticks(list(prompts), labels=[f"{size:g}\n({n_prompts_label(n)})" for size, n in prompts.items()])
    ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax, logarithmic=True, vertical=True)
    ax.set_xlabel("completions per prompt (prompts)")
    ax.set_ylabel(in_metric("relative noise\nat equal tokens", frame.attrs))
    legend_below(ax, font_size, keys)
    return ax


def n_prompts_label(n: float) -> str:
    """Return how many prompts the tokens pay for, thousands in full."""
    return f"{n:,.0f}" if n >= 1000 else f"{n:.3g}"


def _distinct(frame: pd.DataFrame) -> list[list[str]]:
    """Return the estimators in order, those of equal noise at the same sizes together."""
    columns = ["group_size", "relative_noise", "relative_noise_low", "relative_noise_high"]
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
