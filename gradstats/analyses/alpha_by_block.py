"""How does α differ between blocks of parameters?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gradstats.analyses.alpha import FIT_COLUMNS, length_scaling_by_block
from gradstats.analyses.declaration import Analysis, AnalysisFigure, Column, chosen
from gradstats.analyses.numbers import format_estimate, percent
from gradstats.analyses.results import Result
from gradstats.config.options import CONFIDENCE_LEVEL, FitMethod, how_to_set
from gradstats.measurement.measurement import split_layer
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    require_columns,
    with_ends,
)
from gradstats.plots.style import ink, palette
from gradstats.plots.variance import (
    draw_landmark,
    draw_row,
    forest_limits,
    plain_ticks,
    rows_of_own_height,
    set_rows,
    wrap_label,
)
from gradstats.stats.protocols import MeasuredBlocks
from gradstats.stats.variance.quantities import in_metric
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement

VALUES = {"share_of_sq_norm": r"share of $\Vert S\Vert^2$", "alpha": r"$\alpha$"}
_SHORT = re.compile(r"\.weight$|^model\.")
_MODULE = re.compile(r"^(?:self_attn|attn|mlp)\.")
# The name of a kind is cut in the middle beyond this.
_LONGEST = 26


@dataclass(frozen=True, repr=False)
class AlphaByBlock(Result):
    """α of each block of parameters, and of the whole gradient; see :func:`gradstats.analyses.alpha_by_block`.

    Attributes:
        measured: the measurement.
        method: of the fits.
    """

    question: ClassVar[str] = "alpha_by_block"

    printed_columns = ("block", "alpha", "share_of_sq_norm")

    measured: MeasuredBlocks = field(repr=False)
    method: FitMethod

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return what :func:`gradstats.analyses.length_scaling_by_block` does: a row for each block, the whole last."""
        return length_scaling_by_block(self.measured, method=self.method, confidence_level=confidence_level)

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the smallest and the largest α, and which block holds the most of the squared norm."""
        frame = self.to_frame(confidence_level)
        blocks = frame.loc[frame["block"] != "total"]
        known = blocks.loc[blocks["alpha"].notna()].sort_values("alpha")
        if known.empty:
            return "No block has a fit of α."
        ends = [
            f"{format_estimate(row['alpha'], row['alpha_low'], row['alpha_high'])} ({row['block']})"
            for _, row in known.iloc[[0, -1]].iterrows()
        ]
        largest = blocks.loc[blocks["share_of_sq_norm"].idxmax()]
        holds = f"{largest['block']} holds {largest['share_of_sq_norm']:.0%} of ‖S‖²"
        by_method = "" if self.method == "ols" else f" by {self.method}"
        return f"α{by_method} lies between {ends[0]} and {ends[1]}; {holds}."


def _without_blocks(measured: MeasuredBlocks) -> str:
    one = measured.sq_norms_by_block.shape[1] < 2
    by_parameter = how_to_set("measurement.blocks", "parameter")
    return f"the measurement has one block of parameters: measure with {by_parameter}" if one else ""


def alpha_by_block(measured: MeasuredBlocks, *, method: FitMethod = "ols") -> AlphaByBlock:
    """Fit α of each block of parameters, and of the whole gradient.

    Args:
        measured: a measurement of two blocks or more.
        method: of the fits, as in :func:`gradstats.alpha_report`.

    Raises:
        ValueError: for a measurement of one block.
    """
    if why := _without_blocks(measured):
        raise ValueError(why)
    return AlphaByBlock(measured, method)


def plot_alpha_by_block(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the length exponent of each block of the gradient, with its interval; the whole gradient comes last.

    Dashed lines mark ½ (uncorrelated token scores) and 1 (fully correlated ones).

    Args:
        table: the frame of :func:`gradstats.analyses.length_scaling_by_block`.
        ax: where to draw; None makes a figure as high as the rows need.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["block", *with_ends("alpha")], "draw what length_scaling_by_block() gives")
    labels = [wrap_label(_SHORT.sub("", str(name))) for name in frame["block"]]
    places, height = rows_of_own_height(labels)
    estimates, keys = estimates_of(frame, "alpha"), interval_keys(frame, ["alpha"], forest=True)
    if ax is None:
        _, ax = plt.subplots(
            figsize=(mpl.rcParams["figure.figsize"][0], height + legend_height([], keys)), layout="constrained"
        )
    ax.set_xlim(*forest_limits(np.append(estimates.ravel(), 1.0), False, 0.5))
    for at in (0.5, 1.0) if len(frame) else ():
        draw_landmark(ax, at)
    color = palette()[0]
    for row, (name, estimate) in enumerate(zip(frame["block"], estimates, strict=True)):
        look = (ink(), "D") if name == "total" else (color, "o")
        draw_row(ax, float(places[row]), (estimate[0], estimate[1], estimate[2]), *look)
    set_rows(ax, labels, places)
    plain_ticks(ax, logarithmic=False)
    ax.set_xlabel(in_metric(r"length exponent $\alpha$", frame.attrs))
    if frame.empty:
        draw_nothing(ax, "no blocks")
    legend_below(ax, keys)
    return ax


def plot_block_heatmap(
    table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = "share_of_sq_norm"
) -> Axes:
    """Draw a map of layers by kinds of parameter.

    Args:
        table: the frame of :func:`gradstats.analyses.length_scaling_by_block`, best with one block per parameter.
        ax: where to draw.
        value: ``"share_of_sq_norm"`` or ``"alpha"``.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns, or an unknown value.
    """
    import matplotlib.pyplot as plt
    import seaborn as sns

    frame = as_frame(table)
    if value not in VALUES:
        raise ValueError(f"value={value!r} cannot be drawn: choose from {', '.join(VALUES)}")
    require_columns(frame, ["block", value], "draw what length_scaling_by_block() gives")
    attrs, frame = frame.attrs, frame.loc[[name != "total" for name in frame["block"]]]
    width, height = mpl.rcParams["figure.figsize"]
    grid = _layers_by_kinds(frame, value)
    if ax is None:
        scale = mpl.rcParams["font.size"] / 8.0
        _, ax = plt.subplots(figsize=(width, max(0.6 * height, (0.17 * len(grid) + 0.7) * scale)), layout="constrained")
    if grid.empty:
        draw_nothing(ax, "no blocks")
        ax.set_axis_off()
        return ax
    figure = ax.get_figure()
    assert figure is not None
    column_inches = 0.6 * figure.bbox.width / figure.dpi / max(grid.shape[1], 1)
    sns.heatmap(
        grid,
        ax=ax,
        cmap=sns.color_palette("crest", as_cmap=True),
        annot=bool(column_inches > 0.36 * mpl.rcParams["font.size"] / 8.0),
        fmt=".2g",
        annot_kws={"fontsize": mpl.rcParams["font.size"] * 0.75},
        linewidths=0.4,
        linecolor=ax.get_facecolor(),
        cbar_kws={"label": in_metric(VALUES[value], attrs), "aspect": 15},
    )
    # Blocks whose gradient vanishes somewhere have no exponent: grey, not white, which reads as a small value.
    ax.set_facecolor(mpl.rcParams["grid.color"])
    ax.tick_params(length=0, labelrotation=0)
    every = max(1, round(0.18 / column_inches)) if any(name.isdigit() for name in grid.columns) else 1
    ax.set_xticks(
        np.arange(grid.shape[1])[::every] + 0.5, labels=[str(name) for name in grid.columns[::every]], rotation=0
    )
    ax.set_yticks(np.arange(len(grid)) + 0.5, labels=list(grid.index), rotation=0)
    ax.set_xlabel("layer")
    ax.set_ylabel("")
    return ax


def has_kinds(table: WithFrame | pd.DataFrame) -> bool:
    """Return whether layers are split into kinds of parameter, so that there is a map to draw."""
    layers = (split_layer(str(name)) for name in as_frame(table)["block"])
    return any(layer is not None and layer[1] for layer in layers)


def _layers_by_kinds(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Arrange kinds down and layers across; parameters outside any layer are in the column "–"."""
    cells: dict[tuple[str, str], float] = {}
    for name, number in zip(frame["block"], frame[value], strict=True):
        in_layer = split_layer(str(name))
        layer, kind = ("–", str(name)) if in_layer is None else (str(in_layer[0]), in_layer[1] or "whole layer")
        cells[_shortened(_MODULE.sub("", _SHORT.sub("", kind))), layer] = float(number)
    layers = sorted({layer for _, layer in cells if layer != "–"}, key=int)
    columns = [*(["–"] if any(layer == "–" for _, layer in cells) else []), *layers]
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    return pd.DataFrame(
        [[cells.get((kind, layer), np.nan) for layer in columns] for kind in kinds],
        index=pd.Index(kinds, dtype=str),
        columns=pd.Index(columns, dtype=str),
    )


def _shortened(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    half = _LONGEST // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def _with_kinds(frame: pd.DataFrame) -> pd.DataFrame | None:
    return frame if has_kinds(frame) else None


def _map_of(value: str) -> Any:
    return lambda frame: plot_block_heatmap(frame, value=value)


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    several = measured.sq_norms_by_block.shape[1] > 1
    return {"confidence_level": experiment.length_scaling.confidence_level} if several else None


def _caption(frame: pd.DataFrame) -> str:
    return (
        f"Length exponent α of each block of parameters ({frame['method'].iloc[0]}), "
        f"{percent(frame['confidence_level'].iloc[0])} intervals, and its share of the squared norm. "
        f"n = {frame['n'].iloc[0]} completions of {frame['n_prompts'].iloc[0]} prompts."
    )


ANALYSIS = Analysis(
    name="alpha_by_block",
    ask=alpha_by_block,
    unavailable_because=_without_blocks,
    options=("method",),
    columns=(
        Column("block", "block of parameters", file="analyses/alpha.py"),
        *chosen(FIT_COLUMNS, {"alpha": "α"}),
        Column("share_of_sq_norm", "its share of Σ‖S‖²", "share of squared norm", file="analyses/alpha.py"),
    ),
    row_name=lambda row: str(row["block"]),
    row_heading="block",
    caption=_caption,
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "alpha_by_block",
            "Length exponent of each block of parameters.",
            plot_alpha_by_block,
        ),
        AnalysisFigure(
            "blocks_share_of_sq_norm",
            "Share of the squared gradient norm by layer and kind of parameter.",
            _map_of("share_of_sq_norm"),
            rows=_with_kinds,
        ),
        AnalysisFigure(
            "blocks_alpha",
            "Length exponent by layer and kind of parameter.",
            _map_of("alpha"),
            rows=_with_kinds,
        ),
    ),
)
