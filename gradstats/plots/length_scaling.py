"""The length-scaling figure: squared norms against length, the fitted line and its band."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.typing import ColorType

from gradstats import data
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.metrics import EUCLIDEAN
from gradstats.plots.forest import plain_ticks
from gradstats.stats.length_scaling.alpha import LengthScalingFit

CURVE_POINTS = 200
CUT_OFF = "cut off at the cap"


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
        published: points to lay underneath in grey: the name of a data set that ships (``"gloeckle2026"``) or
            a frame with columns ``length`` and ``sq_norm`` (its ``.attrs["label"]`` goes into the legend).
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
    if ax is None:
        _, ax = plt.subplots()
    if published is not None:
        _draw_published(ax, data.load(published) if isinstance(published, str) else published)
    if color is None:
        palette = sns.color_palette("colorblind")
        color = palette[sum(line.get_gid() == "fit" for line in ax.lines) % len(palette)]

    _draw_points(ax, fit, color)
    curve = fit.predict(np.geomspace(fit.lengths.min(), fit.lengths.max(), CURVE_POINTS), confidence_level)
    low, high = fit.confidence_interval(confidence_level)
    text = rf"$\alpha$ = {fit.alpha:.2f} [{low:.2f}, {high:.2f}]"
    ax.plot(
        curve["length"],
        curve["sq_norm"],
        color=color,
        label=text if label is None else f"{label}: {text}",
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


def _draw_points(ax: Axes, fit: LengthScalingFit, color: ColorType) -> None:
    """Draw the points, fainter where there are many; those of completions cut off at the cap are open."""
    few = fit.n <= 100
    alpha = 0.7 if few else max(0.08, 0.7 * (100 / fit.n) ** 0.5)
    size = (9 if few else 4) * (plt.rcParams["font.size"] / 8.0) ** 2
    whole = ~fit.truncated
    many = fit.n > 2000
    ax.scatter(
        fit.lengths[whole],
        fit.sq_norms[whole],
        s=size,
        color=color,
        alpha=alpha,
        linewidths=0,
        rasterized=many,
        zorder=2,
    )
    if fit.n_truncated:
        ax.scatter(
            fit.lengths[fit.truncated],
            fit.sq_norms[fit.truncated],
            s=size,
            facecolors="none",
            edgecolors=[color],
            linewidths=0.5,
            alpha=max(alpha, 0.4),
            rasterized=many,
            label=None if CUT_OFF in ax.get_legend_handles_labels()[1] else CUT_OFF,
            zorder=2,
        )


def leave_room(ax: Axes, fit: LengthScalingFit, n_entries: int) -> None:
    """Raise the upper end of the axis so that a legend of so many entries stands above the points."""
    low, high = ax.dataLim.intervaly
    tallest = max(high, float(fit.sq_norms.max()))
    lowest = min(low, float(fit.sq_norms.min()))
    span = np.log(tallest / lowest) or 1.0
    ax.set_ylim(lowest * np.exp(-0.05 * span), tallest * np.exp((0.04 + 0.1 * n_entries) * span))


def _draw_published(ax: Axes, points: pd.DataFrame) -> None:
    missing = {"length", "sq_norm"} - set(points.columns)
    if missing:
        raise ValueError(f"published lacks the column(s) {', '.join(sorted(missing))}: it needs length and sq_norm")
    ax.scatter(
        points["length"],
        points["sq_norm"],
        s=9,
        marker="D",
        facecolors="none",
        edgecolors="0.55",
        linewidths=0.6,
        label=points.attrs.get("label", "published"),
        zorder=1,
    )
