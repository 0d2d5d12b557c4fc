"""Figures against length: gradient norms with the fitted power law, and bins of length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradstats import data
from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_nothing,
    draw_series,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    points_look,
    require_columns,
    with_ends,
)
from gradstats.plots.names import Appearance, estimator_appearance, names_in, variants
from gradstats.plots.style import muted, palette, stroke
from gradstats.plots.variance import plain_ticks
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.variance.quantities import in_metric
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

_CURVE_POINTS = 200
_CUT_OFF = "cut off at the cap"
# Several fits on the same axes are told apart without colour.
_MARKERS, _LINES = "o^sDv", ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
# Where published points stand, in shares of the axes: at the lower right, since norms increase with length.
_INSET = (0.6, 0.1, 0.39, 0.3)
# Share of the axes between the inset and what is drawn beside it.
_GAP = 0.03


def plot_length_scaling(
    fit: LengthScalingFit,
    *,
    ax: Axes | None = None,
    published: str | pd.DataFrame | None = None,
    label: str | None = None,
    color: ColorType | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
) -> Axes:
    r"""Draw ‖S‖² against completion length, both on log axes, with the fit and its interval band.

    The legend gives α with its interval, both taken from the fit. Draw several fits on one axis by passing
    ``ax``.

    Args:
        fit: what :func:`gradstats.fit_length_scaling` returned.
        ax: where to draw; None makes a figure.
        published: points to show in grey in an inset, since norms of another model are of another size, with the
            line fitted to them and its α in the legend: the name of a data set that ships (``"gloeckle2026"``) or a
            frame with columns ``length`` and ``sq_norm`` (its ``.attrs["label"]`` goes into the legend, too).
        label: put before α in the legend.
        color: of points, line and band; None takes the first of the palette, or the next on a used axis.
        confidence_level: of the band and of the interval in the legend.

    Returns:
        The axes.

    Raises:
        ValueError: when ``published`` lacks its columns.
        KeyError: when no data set has that name.

    Example:
        >>> import gradstats as gs
        >>> points = gs.data.load("gloeckle2026")
        >>> ax = gs.plot_length_scaling(gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm))
        >>> ax.get_xscale(), ax.get_legend_handles_labels()[1]
        ('log', ['$\\alpha$ = 0.79 [0.47, 1.10]'])
    """
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    if published is not None:
        _draw_published(ax, data.load(published) if isinstance(published, str) else published, confidence_level)
    place, colors = sum(line.get_gid() == "fit" for line in ax.lines), palette()
    color = colors[place % len(colors)] if color is None else color
    marker, dashes = _MARKERS[place % len(_MARKERS)], _LINES[place % len(_LINES)]

    _draw_points(ax, fit, color, marker)
    curve = fit.predict(np.geomspace(fit.lengths.min(), fit.lengths.max(), _CURVE_POINTS), confidence_level)
    low, high = fit.confidence_interval(confidence_level)
    text = rf"$\alpha$ = {fit.alpha:.2f} [{low:.2f}, {high:.2f}]"
    ax.plot(
        curve["length"],
        curve["sq_norm"],
        color=color,
        label=text if label is None else f"{label}: {text}",
        linestyle=dashes,
        gid="fit",
        zorder=4,
    )
    ax.fill_between(
        curve["length"].to_numpy(),
        curve["sq_norm_low"].to_numpy(),
        curve["sq_norm_high"].to_numpy(),
        color=color,
        alpha=0.2,
        linewidth=0,
        zorder=3,
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(r"completion length $T$ (tokens)")
    scaled = "" if fit.metric == EUCLIDEAN else r"P\circ"
    ax.set_ylabel(rf"$\Vert {scaled}\nabla_\theta \log\pi(y\,|\,x)\Vert^2$")
    plain_ticks(ax, logarithmic=True)
    leave_room(ax, fit, len(ax.get_legend_handles_labels()[1]))
    ax.legend(loc="upper left")
    return ax


def _draw_points(ax: Axes, fit: LengthScalingFit, color: ColorType, marker: str) -> None:
    """Draw the points, fainter where there are many; those of completions cut off at the cap are open."""
    look, whole, cut = (
        points_look(fit.n) | {"marker": marker, "zorder": 2, "gid": "points"},
        ~fit.truncated,
        fit.truncated,
    )
    ax.scatter(fit.lengths[whole], fit.sq_norms[whole], color=color, **look)
    if fit.n_truncated:
        label = None if _CUT_OFF in ax.get_legend_handles_labels()[1] else _CUT_OFF
        look |= {"facecolors": "none", "edgecolors": [color], "linewidths": stroke(0.5)}
        look["alpha"] = max(look["alpha"], 0.4)
        ax.scatter(fit.lengths[cut], fit.sq_norms[cut], label=label, **look)


def leave_room(ax: Axes, fit: LengthScalingFit, n_entries: int) -> None:
    """Widen the axis so that a legend of so many entries stands above the points, and an inset below them."""
    low, high = ax.dataLim.intervaly
    highest, lowest = np.log(max(high, float(fit.sq_norms.max()))), np.log(min(low, float(fit.sq_norms.min())))
    span = (highest - lowest) or 1.0
    bottom, legend = lowest - 0.05 * span, min(0.05 + 0.07 * n_entries, 0.5)
    if ax.child_axes:
        points = [one.get_offsets() for one in ax.collections if one.get_gid() == "points"]
        lengths, sq_norms = np.concatenate([np.asarray(one, dtype=float).reshape(-1, 2) for one in points]).T
        start, end = np.log(ax.get_xlim())
        over = np.log(lengths) > start + (_INSET[0] - _GAP) * (end - start)
        inset = _INSET[1] + _INSET[3] + _GAP
        above = np.log(sq_norms[over].min()) if over.any() else highest
        bottom = min(bottom, above - (highest - above) * inset / (1.0 - legend - inset))
    ax.set_ylim(np.exp(bottom), np.exp(bottom + (highest - bottom) / (1.0 - legend)))


def _draw_published(ax: Axes, points: pd.DataFrame, confidence_level: float) -> None:
    missing = {"length", "sq_norm"} - set(points.columns)
    if missing:
        raise ValueError(f"published lacks the column(s) {', '.join(sorted(missing))}: it needs length and sq_norm")
    name = str(points.attrs.get("label", "published"))
    inset = ax.inset_axes(_INSET)
    grey = muted()
    look = {"s": 5, "marker": "D", "facecolors": "none", "edgecolors": [grey], "linewidths": stroke(0.5)}
    inset.scatter(points["length"], points["sq_norm"], **look)
    inset.set_xscale("log")
    inset.set_yscale("log")
    try:
        fit = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
    except ValueError:  # too few points for a line
        fit = None
    if fit is not None:
        low, high = fit.confidence_interval(confidence_level)
        name += rf": $\alpha$ = {fit.alpha:.2f} [{low:.2f}, {high:.2f}]"
        curve = fit.predict(np.array([fit.lengths.min(), fit.lengths.max()]), confidence_level)
        inset.plot(curve["length"], curve["sq_norm"], color=grey, linewidth=stroke(0.9))
    plain_ticks(inset, logarithmic=True, most=2)
    inset.set_yticks([], minor=False)
    inset.set_yticks([], minor=True)
    inset.tick_params(labelsize=0.75 * mpl.rcParams["font.size"], pad=1.5)
    inset.patch.set_alpha(0.0)
    key = {"marker": "D", "markersize": 2.5, "markerfacecolor": "none", "linewidth": stroke(0.9)}
    ax.plot([], [], color=grey, gid="published", label=name, **key)


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
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["length_low", "length_high", *with_ends(value)], "give one row per bin")
    by_estimator = frame.groupby("estimator", sort=False) if "estimator" in frame else [("", frame)]
    lines = [(str(name), rows) for name, rows in by_estimator]
    names, keys = names_in(frame), interval_keys(frame, [value])
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + legend_height(list(names.values()), keys)), layout="constrained")
    ax.set_xscale("log")
    ax.set_yscale("log")
    if not np.isfinite(estimates_of(frame, value)).any():
        draw_nothing(ax, "no bin is resolved" if len(frame) else "no bins")
    for place, ((name, rows), kind) in enumerate(zip(lines, variants([name for name, _ in lines]), strict=True)):
        look = estimator_appearance(name) if name else Appearance(palette()[0], "o")
        middle = np.sqrt(rows["length_low"].to_numpy(dtype=float) * rows["length_high"].to_numpy(dtype=float))
        # Side by side within a bin, however many they are.
        at = middle * 2.0 ** (min(0.08, 0.5 / len(lines)) * (place - (len(lines) - 1) / 2.0))
        draw_series(ax, at, estimates_of(rows, value), look, kind, names.get(name))
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(plt.NullFormatter())
    edges = sorted({float(edge) for column in ("length_low", "length_high") for edge in frame[column].dropna()})
    if edges:
        margin = 1.0 if len(edges) > 1 else 1.3  # a single length is a point, not an axis
        ax.set_xlim(edges[0] / margin, edges[-1] * margin)
        ax.set_xticks(_apart(edges))
        ax.xaxis.set_minor_locator(plt.NullLocator())
    plain_ticks(ax, logarithmic=True, vertical=True)
    ax.set_xlabel("completion length (tokens), by bins")
    ax.set_ylabel(in_metric(value.replace("_", " "), frame.attrs))
    legend_below(ax, keys)
    return ax


def _apart(edges: list[float]) -> list[float]:
    """Return the first edge, and each that lies a ninth of a log axis beyond the last one taken."""
    least = (edges[-1] / edges[0]) ** (1.0 / 9.0)
    taken = edges[:1]
    for beyond in edges[1:]:
        if beyond > taken[-1] * least:
            taken.append(beyond)
    return taken
