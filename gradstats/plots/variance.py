"""The variance-against-baseline figure, in forest form, alone or with bias and cosine beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradstats.plots.appearance import estimator_appearance
from gradstats.plots.forest import (
    LONGEST_LINE,
    draw_landmark,
    draw_row,
    forest_height,
    forest_limits,
    plain_ticks,
    set_rows,
    wrap_label,
)
from gradstats.plots.frames import as_frame, draw_nothing, require_columns
from gradstats.plots.units import refuse_mixed_units

AXIS_LABELS = {
    "ratio": "variance relative to {reference}",
    "matched_ratio": "variance relative to {reference},\nat matched signal",
    "trace_cov": "tr Cov of a group's gradient",
    "noise_to_signal": "noise to signal (groups)",
    "signal_sq": "squared norm of the expected gradient",
    "cosine": "cosine to the unbiased gradient",
    "bias_share": "share of bias in the mean squared error",
    "kept_share": "share of groups with a gradient",
}
# What fits under a panel a third as wide.
PANEL_LABELS = AXIS_LABELS | {
    "ratio": "ratio to\n{reference}",
    "matched_ratio": "matched\nratio to\n{reference}",
    "trace_cov": "tr Cov",
    "noise_to_signal": "noise\nto signal",
    "signal_sq": "signal",
    "cosine": "cosine",
    "bias_share": "share\nof bias",
    "kept_share": "groups\nkept",
}
LOGARITHMIC = ("ratio", "matched_ratio", "trace_cov", "noise_to_signal")
LANDMARKS = {"ratio": 1.0, "matched_ratio": 1.0, "signal_sq": 0.0}
# Beside several panels there is room for shorter lines only.
NARROW_LINE = 22
PANELS = ("matched_ratio", "cosine", "bias_share")


def plot_variance(
    table: Any,
    *,
    ax: Axes | None = None,
    value: str = "ratio",
    reference: str | None = None,
    sort: bool = False,
) -> Axes:
    """Draws one row per estimator with its interval.

    A row whose value could not be resolved is drawn as the side of its interval that is known (an arrow), or
    says so in words; it is never left out.

    Args:
        table: a `gradstats.stats.VarianceComparison` or its frame. A column ``run`` tells rows of several runs apart,
            by a letter in order of appearance.
        ax: where to draw; None makes a figure as wide as rcParams say and as high as the rows need.
        value: the column to draw, with its ``_low`` and ``_high``: on log axes ``"ratio"``,
            ``"matched_ratio"``, ``"trace_cov"`` and ``"noise_to_signal"``; on plain ones ``"signal_sq"``,
            ``"cosine"``, ``"bias_share"`` and ``"kept_share"``.
        reference: name of the reference estimator for the axis label; None takes it from a
            ``VarianceComparison`` or the frame's ``.attrs["reference"]``.
        sort: lowest value on top (unresolved rows last) instead of the table's order.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown ``value``, a frame without its columns, or estimators in different units.
    """
    frame = as_frame(table)
    if value not in AXIS_LABELS:
        raise ValueError(f"value={value!r} cannot be drawn: choose from {', '.join(AXIS_LABELS)}")
    require_columns(frame, ["estimator", value, f"{value}_low", f"{value}_high"], "draw what compare() gives")
    refuse_mixed_units(frame["estimator"], value)
    if sort:
        frame = sorted_rows(frame, value)
    labels = row_labels(frame)
    if ax is None:
        _, ax = plt.subplots(figsize=(plt.rcParams["figure.figsize"][0], forest_height(labels)))
    _draw(ax, frame, value)
    set_rows(ax, labels)
    if frame.empty:
        draw_nothing(ax, "no estimators")
    ax.set_xlabel(AXIS_LABELS[value].format(reference=_reference(frame, reference)))
    return ax


def plot_variance_panels(
    table: Any,
    *,
    axes: Sequence[Axes] | None = None,
    values: Sequence[str] = PANELS,
    reference: str | None = None,
    sort: bool = True,
) -> list[Axes]:
    """Draws several quantities side by side, one row per estimator, so that no single one decides.

    Beside the variance stand the cosine to the unbiased gradient and the share of bias: an estimator that is quiet
    because it is shrunk or turned shows it there.

    Args:
        table: a `gradstats.stats.VarianceComparison` or its frame.
        axes: one for each value; None makes a figure.
        values: the columns to draw; see `plot_variance`.
        reference: as in `plot_variance`.
        sort: by the first value, lowest on top.

    Returns:
        The axes, left to right.

    Raises:
        ValueError: as `plot_variance`, or when ``axes`` and ``values`` differ in number.
    """
    frame = as_frame(table)
    require_columns(frame, ["estimator"], "draw what compare() gives")
    name = _reference(frame, reference)
    if sort and values and values[0] in frame:
        frame = sorted_rows(frame, values[0])
    labels = row_labels(frame, NARROW_LINE)
    if axes is None:
        size = (plt.rcParams["figure.figsize"][0], forest_height(labels) + 0.25)
        _, made = plt.subplots(1, len(values), figsize=size, squeeze=False, width_ratios=_widths(len(values)))
        axes = list(made[0])
    if len(axes) != len(values):
        raise ValueError(f"axes holds {len(axes)} axes for {len(values)} values: give one for each")
    for ax, value in zip(axes, values, strict=True):
        plot_variance(frame, ax=ax, value=value, reference=name)
        ax.set_xlabel(PANEL_LABELS[value].format(reference=name))
        # The first panel is the widest.
        plain_ticks(ax, value in LOGARITHMIC, most=4 if ax is axes[0] else 2)
    set_rows(axes[0], labels)
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)
    return list(axes)


def sorted_rows(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """The rows by value, lowest first; of unresolved rows, those with a lower bound come before those without."""
    order = np.lexsort([frame[f"{value}_low"].fillna(np.inf), frame[value].fillna(np.inf)])
    ordered = frame.iloc[order]
    ordered.attrs = frame.attrs
    return ordered


def row_labels(frame: pd.DataFrame, longest: int = LONGEST_LINE) -> list[str]:
    """What each row is called: its estimator, with its group size and its run where those differ."""
    labels = [str(label) for label in frame["estimator"]]
    if "group_size" in frame and len(set(frame["group_size"].dropna())) > 1:
        labels = [f"{label}, N={size:g}" for label, size in zip(labels, frame["group_size"], strict=True)]
    if "run" in frame and len(set(frame["run"])) > 1:
        letters = {run: chr(ord("a") + at) for at, run in enumerate(dict.fromkeys(frame["run"]))}
        told = [
            f"{wrap_label(label, longest)}  {letters[run]}" for label, run in zip(labels, frame["run"], strict=True)
        ]
        # An estimator's name stands on the first of its rows.
        return [text if at == 0 or labels[at] != labels[at - 1] else text[-1] for at, text in enumerate(told)]
    return [wrap_label(label, longest) for label in labels]


def _draw(ax: Axes, frame: pd.DataFrame, value: str) -> None:
    logarithmic = value in LOGARITHMIC
    estimates = frame[[value, f"{value}_low", f"{value}_high"]].to_numpy(dtype=float)
    landmark = LANDMARKS.get(value)
    if logarithmic:
        ax.set_xscale("log")
    if landmark is not None and len(frame):
        draw_landmark(ax, landmark)
    ax.set_xlim(*forest_limits(estimates.ravel(), logarithmic, landmark))
    for row, (label, estimate) in enumerate(zip(frame["estimator"], estimates, strict=True)):
        color, marker = estimator_appearance(str(label))
        draw_row(ax, float(row), (estimate[0], estimate[1], estimate[2]), color, marker)
    plain_ticks(ax, logarithmic)


def _reference(frame: pd.DataFrame, reference: str | None) -> str:
    return str(frame.attrs.get("reference", "the reference")) if reference is None else reference


def _widths(n: int) -> list[float]:
    return [1.6, *[1.0] * (n - 1)]
