"""Figures of one or several runs, drawn from their saved numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gradstats.config.experiment import FiguresSection
from gradstats.report.saved_results import SavedResults, differing_settings, run_labels
from gradstats.report.saved_tokens import SavedTokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw_run(run: SavedResults, folder: Path, look: FiguresSection) -> list[Path]:
    """Draw every figure that a run has the numbers for, each with its table beside it; returns the paths.

    Raises:
        FileNotFoundError: when it has numbers for none; says what makes them.
    """
    from gradstats import plots

    paths: list[Path] = []
    for name, figure, source in run_figures(run, look):
        paths += plots.save_figure(figure, folder / name, look.formats, source=source)
    if not paths:
        raise FileNotFoundError(
            f"{run.path} holds no numbers that can be drawn: `gradstats run EXPERIMENT --out {run.path}` makes them"
        )
    return paths


def run_figures(run: SavedResults, look: FiguresSection) -> Iterator[tuple[str, Figure, pd.DataFrame]]:
    """Name, figure and table of each figure of a run; a figure is closed when the next is asked for."""
    import seaborn as sns

    from gradstats import plots
    from gradstats.plots.blocks import has_kinds

    if run.fit is not None and run.points is not None:
        with _styled(look) as made:
            plots.plot_length_scaling(run.fit, published=run.settings.get("length_scaling.published"))
            yield "length_scaling", made(), run.points
    if run.variance is not None:
        with _styled(look) as made:
            plots.plot_variance(run.variance, sort=True)
            yield "variance", made(), run.variance
        if np.isfinite(run.variance["matched_ratio"].to_numpy(dtype=float)).any():
            with _styled(look) as made:
                plots.plot_variance_panels(run.variance)
                yield "variance_bias", made(), run.variance
    yield from _breakdown_figures(run, look)
    if run.by_block is not None:
        with _styled(look) as made:
            plots.plot_alpha_by_block(run.by_block)
            yield "alpha_by_block", made(), run.by_block
        if has_kinds(run.by_block):
            for value in ("share_of_sq_norm", "alpha"):
                with _styled(look) as made:
                    plots.plot_block_heatmap(run.by_block, value=value)
                    yield f"blocks_{value}", made(), run.by_block
    if run.points is not None and "reward" in run.points and len(set(run.points["reward"])) > 1:
        with _styled(look) as made:
            plots.plot_length_reward(run.points, correlation=_correlation(run.points))
            yield "length_reward", made(), run.points
    if run.energy_fit is not None and run.fit is not None and run.points is not None:
        palette = sns.color_palette("colorblind")
        with _styled(look) as made:
            ax = plots.plot_length_scaling(run.fit, label=r"$\Vert S\Vert^2$", color=palette[0])
            plots.plot_length_scaling(run.energy_fit, ax=ax, label=r"$\sum_t\Vert s_t\Vert^2$", color=palette[1])
            ax.set_ylabel(r"$\Vert S\Vert^2$ and token energy")
            yield "alpha_energy", made(), run.points
    if run.tokens is not None:
        yield from _token_figures(run.tokens, look)


def _token_figures(tokens: SavedTokens, look: FiguresSection) -> Iterator[tuple[str, Figure, pd.DataFrame]]:
    from gradstats import plots

    with _styled(look) as made:
        plots.plot_token_energy(tokens.traces)
        yield "token_energy", made(), tokens.traces
    if "concentration" in tokens.profiles:
        with _styled(look) as made:
            plots.plot_concentration(tokens.profiles["concentration"])
            yield "concentration", made(), tokens.profiles["concentration"]
    if "correlation" in tokens.profiles:
        with _styled(look) as made:
            plots.plot_token_correlation(tokens.profiles["correlation"])
            yield "token_correlation", made(), tokens.profiles["correlation"]
    with _styled(look) as made:
        shown = tokens.sample.copy()
        # Scaled so that totals agree: a proxy's unit means nothing.
        shown["logit"] *= shown["energy"].sum() / shown["logit"].sum()
        ranks = dict(zip(tokens.proxies["proxy"], tokens.proxies["rank_correlation"], strict=True))
        shown.attrs |= {
            "proxy": "logit proxy, scaled",
            "truth": "token energy",
            "rank_correlation": float(ranks["logit"]),
        }
        plots.plot_proxy(shown, proxy="logit", truth="energy")
        yield "proxy", made(), shown


def _breakdown_figures(run: SavedResults, look: FiguresSection) -> Iterator[tuple[str, Figure, pd.DataFrame]]:
    """Variance by group size, within and between prompts, and by completion length."""
    from gradstats import plots

    sizes = run.breakdowns.get("group_sizes")
    known = sizes is not None and "within_prompt" in sizes
    parts = sizes.query("within_prompt.notna()") if sizes is not None and known else pd.DataFrame()
    if sizes is not None and len(set(sizes["group_size"])) > 1:
        # Equal group sizes are a statement about the within-prompt part, which takes two groups of a prompt.
        within = len(parts) > 0 and len(set(parts["group_size"])) > 1
        shown = parts if within else sizes
        with _styled(look) as made:
            plots.plot_group_size(
                shown,
                value="within_prompt" if within else "trace_cov",
                equivalence=_told_apart(run.breakdowns.get("equivalent_group_size")) if within else None,
            )
            yield "group_sizes", made(), shown
    if len(parts):
        largest = parts.query("group_size == group_size.max()")
        with _styled(look) as made:
            plots.plot_prompt_parts(largest)
            yield "prompt_parts", made(), largest
    bins = run.breakdowns.get("length_bins")
    if bins is not None and np.isfinite(bins["noise_to_signal_low"].to_numpy(dtype=float)).any():
        with _styled(look) as made:
            plots.plot_length_bins(bins)
            yield "length_bins", made(), bins


def _told_apart(equivalence: pd.DataFrame | None) -> pd.DataFrame | None:
    """The rows that say something: RLOO and what equals it in expectation are worth their own group size."""
    if equivalence is None:
        return None
    return equivalence.query("abs(equivalent_group_size - group_size) > 1e-6")


def draw_overlay(runs: list[SavedResults], folder: Path, look: FiguresSection) -> list[Path]:
    """Draw several runs on the same axes, labelled, and warn where they are not alike.

    Raises:
        ValueError: when no figure's numbers are in every run, or their ratios have different references.
    """
    import seaborn as sns

    from gradstats import plots

    labels = run_labels(runs)
    for setting, values in differing_settings(runs).items():
        told = ", ".join(f"{run.path.name}: {value}" for run, value in zip(runs, values, strict=True))
        warnings.warn(
            f"the runs differ in {setting} ({told}); they are drawn together and labelled, and do not measure the same "
            "thing",
            UserWarning,
            stacklevel=2,
        )
    paths: list[Path] = []
    fits = [run.fit for run in runs]
    if all(fit is not None for fit in fits):
        palette = sns.color_palette("colorblind")
        with _styled(look) as made:
            ax = None
            for at, fit in enumerate(fits):
                published = runs[0].settings.get("length_scaling.published") if at == 0 else None
                assert fit is not None
                ax = plots.plot_length_scaling(
                    fit, ax=ax, label=labels[at], color=palette[at % len(palette)], published=published
                )
            points = pd.concat([run.points.assign(run=name) for run, name in zip(runs, labels, strict=True)])  # pyright: ignore[reportOptionalMemberAccess]
            paths += plots.save_figure(made(), folder / "length_scaling", look.formats, source=points)
    tables = [run.variance for run in runs]
    if all(table is not None for table in tables):
        frame = _stacked(runs, labels)
        with _styled(look) as made:
            ax = plots.plot_variance(frame)
            ax.set_xlabel("\n".join([ax.get_xlabel(), *(f"{LETTERS[at]}: {label}" for at, label in enumerate(labels))]))
            figure = made()
            size = figure.get_size_inches()
            figure.set_size_inches(size[0], size[1] + 0.14 * len(labels))
            paths += plots.save_figure(figure, folder / "variance", look.formats, source=frame)
    if not paths:
        raise ValueError(
            f"no figure's numbers are in all of {', '.join(str(run.path) for run in runs)}: `gradstats run` makes them"
        )
    return paths


def _stacked(runs: list[SavedResults], labels: list[str]) -> pd.DataFrame:
    """The variance tables one under the other, estimator by estimator."""
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
    frame.attrs = {"reference": references[0]}
    return frame


def _correlation(points: pd.DataFrame) -> Any:
    from gradstats.stats import length_reward_correlation

    with warnings.catch_warnings():  # too few informative prompts: the figure then tells no number
        warnings.simplefilter("ignore")
        return length_reward_correlation(lengths=points["length"], rewards=points["reward"], groups=points["prompt_id"])


@contextmanager
def _styled(look: FiguresSection) -> Iterator[Any]:
    """The venue's style; yields what gives the figure that was drawn, which is closed at the end."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from gradstats.plots import style

    with mpl.rc_context(style(look.venue, look.column, theme=look.theme)):  # pyright: ignore[reportArgumentType]
        before = set(plt.get_fignums())
        try:
            yield plt.gcf
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)
