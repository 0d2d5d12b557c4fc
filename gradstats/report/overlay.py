"""Several runs on the same axes, drawn from their saved numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from gradstats import plots
from gradstats.config.experiment import FiguresSection
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.length_scaling import leave_room
from gradstats.plots.names import CHARACTER, in_mathematics, longest_title, widening, wrapped
from gradstats.plots.sample_size import write_sample_size
from gradstats.plots.theme import palette
from gradstats.report.figures import (
    chosen_rows,
    refuse_unknown_estimators,
    sample_size_of_run,
    styled,
    warn_of_unused_labels,
)
from gradstats.report.saved_results import SavedResults, differing_settings, run_labels
from gradstats.stats import LengthScalingFit

LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: More estimators than these are drawn in a panel for each run, up to so many runs.
MOST_ROWS, MOST_PANELS = 12, 3
# Settings that a name need not state, since the figure states prompts × completions.
_IN_SAMPLE_SIZE = ("sampling.group_size", "variance.group_size")


def draw_overlay(
    runs: list[SavedResults], folder: Path, figure_style: FiguresSection, labels: list[str] | None = None
) -> list[Path]:
    """Draw several runs on the same axes, labelled, and warn where their settings differ.

    Args:
        runs: the runs.
        folder: where the figures are written.
        figure_style: venue, width and formats.
        labels: a name for each run; by default its own, with the settings in which it differs.

    Returns:
        The files written.

    Raises:
        ValueError: when no figure's numbers are in every run, or their ratios have different references, or they
            were measured in different metrics.
    """
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        raise ValueError(
            f"the runs were measured in different metrics ({', '.join(metrics)}), whose norms have different "
            "units: draw those of one metric together"
        )
    refuse_unknown_estimators(runs, figure_style)
    warn_of_unused_labels(runs, figure_style)
    labels, n = _with_sample_sizes(runs, labels or _run_names(runs, figure_style))
    for setting, values in differing_settings(runs).items():
        values_by_run = ", ".join(f"{run.path.name}: {value}" for run, value in zip(runs, values, strict=True))
        warnings.warn(
            f"the runs differ in {setting} ({values_by_run}); they are drawn together and labelled, but do not measure "
            "the same thing",
            UserWarning,
            stacklevel=2,
        )
    paths: list[Path] = []
    fits = [run.fit for run in runs]
    if all(fit is not None for fit in fits):
        with styled(figure_style) as current_figure:
            ax, colors = None, palette()
            for at, fit in enumerate(fits):
                published = runs[0].published if at == 0 else None
                assert fit is not None
                ax = plots.plot_length_scaling(
                    fit, ax=ax, label=labels[at], color=colors[at % len(colors)], published=published
                )
            _legend_of_fits(ax, fits[-1])
            write_sample_size(current_figure(), n)
            points = pd.concat([run.points.assign(run=name) for run, name in zip(runs, labels, strict=True)])  # pyright: ignore[reportOptionalMemberAccess]
            paths += plots.save_figure(current_figure(), folder / "length_scaling", figure_style.formats, source=points)
    tables = [run.variance for run in runs]
    if all(table is not None for table in tables):
        frame = _stacked(runs, labels, figure_style)
        with styled(figure_style) as current_figure:
            if len(set(frame["estimator"])) > MOST_ROWS and len(runs) <= MOST_PANELS:
                axes = plots.plot_variance_of_runs(frame)
                figure = current_figure()
                if max(map(len, labels)) > 2 * longest_title(len(runs)):
                    for ax, letter in zip(axes, LETTERS, strict=False):
                        ax.set_title(letter, fontsize="medium")
                    _explain_letters(figure, labels)
            else:
                plots.plot_variance(frame)
                figure = current_figure()
                _explain_letters(figure, labels)
            write_sample_size(figure, n)
            paths += plots.save_figure(figure, folder / "variance", figure_style.formats, source=frame)
    if not paths:
        raise ValueError(
            f"no figure's numbers are in all of {', '.join(str(run.path) for run in runs)}: `gradstats run` makes them"
        )
    return paths


def _legend_of_fits(ax: Axes | None, fit: LengthScalingFit | None) -> None:
    """Put the names of runs with their α below the axes, where long ones have the width of the figure."""
    assert ax is not None
    assert fit is not None
    inside = ax.get_legend()
    if inside is not None:
        inside.remove()
    leave_room(ax, fit, 0)
    font_size = plt.rcParams["legend.fontsize"]
    width, height = plt.rcParams["figure.figsize"]
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.set_size_inches(width, height + legend_height(ax.get_legend_handles_labels()[1], width, font_size))
    legend_below(ax, font_size)


def _explain_letters(figure: Figure, labels: list[str]) -> None:
    """Write below a figure which run each letter stands for, over the full width."""
    font_size = plt.rcParams["legend.fontsize"]
    width, height = figure.get_size_inches()
    longest = int(0.95 * width / CHARACTER * 8.0 / font_size / widening())
    lines = [line for at, label in enumerate(labels) for line in wrapped(f"{LETTERS[at]}: {label}", longest)]
    figure.set_size_inches(width, height + (0.135 * len(lines) + 0.06) * font_size / 7.0)
    text = in_mathematics("\n".join(lines))
    if figure.legends:  # both stand below the axes
        (legend,) = figure.legends
        legend.set_title(text, prop=FontProperties(size=font_size))
        legend.set_alignment("left")
    else:
        figure.supxlabel(text, x=0.02, ha="left", fontsize=font_size)


def _with_sample_sizes(runs: list[SavedResults], labels: list[str]) -> tuple[list[str], str]:
    """Return the names of runs, with prompts × completions of each where these differ; and those of all of them."""
    sizes = [sample_size_of_run(run) for run in runs]
    if len(set(sizes)) == 1:
        return labels, sizes[0]
    return [f"{label}, {size}" if size else label for label, size in zip(labels, sizes, strict=True)], ""


def _run_names(runs: list[SavedResults], figure_style: FiguresSection) -> list[str]:
    """Return what the user calls each run, by its name or that of its folder; otherwise its label.

    A name that several runs share stands for none of them.
    """
    chosen = figure_style.labels
    names, folders = [run.name for run in runs], [run.path.resolve().name for run in runs]
    of_folder = {folder: chosen.get(folder) for folder in folders if folders.count(folder) == 1}
    of_name = {name: chosen.get(name) for name in names if names.count(name) == 1}
    return [
        of_folder.get(run.path.resolve().name) or of_name.get(run.name) or label
        for run, label in zip(runs, run_labels(runs, without=_IN_SAMPLE_SIZE), strict=True)
    ]


def _stacked(runs: list[SavedResults], labels: list[str], figure_style: FiguresSection) -> pd.DataFrame:
    """Return the variance tables one under the other, estimator by estimator."""
    references = [
        str((run.variance if run.variance is not None else pd.DataFrame()).attrs.get("reference")) for run in runs
    ]
    if len(set(references)) > 1:
        raise ValueError(
            f"the runs' ratios are to different references ({', '.join(references)}), which are different units: "
            "compare each run again with the same `variance: {reference: …}`"
        )
    frame = pd.concat(
        [run.variance.assign(run=label) for run, label in zip(runs, labels, strict=True)],  # pyright: ignore[reportOptionalMemberAccess]
        ignore_index=True,
    )
    order = list(dict.fromkeys(frame["estimator"]))
    frame = frame.sort_values("estimator", key=lambda names: names.map(order.index), kind="stable", ignore_index=True)
    frame.attrs = {"reference": references[0], "metric": runs[0].metric}
    chosen = chosen_rows(frame, figure_style)
    return frame if chosen is None else chosen  # the estimators to draw are known to have rows
