"""Curves along a parameter, and learned baselines: the names of their files, their tables and figures."""

from __future__ import annotations

import math
import re

import pandas as pd

from gradstats import plots
from gradstats.report.saved_frames import CURVE
from gradstats.report.tables import Table
from gradstats.report.variance_columns import variance_columns
from gradstats.stats.variance.quantities import JUDGED

#: Quantities of the printed table.
SHOWN = ("ratio", JUDGED.name, "cosine", "matched_bias_share")


def curve_name(label: str, parameter: str) -> str:
    """Name the files of a curve.

    >>> curve_name("length_weighted(loo=True)", "alpha")
    'curve_length_weighted_loo_true_alpha'
    """
    return CURVE + re.sub(r"[^a-z0-9]+", "_", f"{label} {parameter}".lower()).strip("_")


def curve_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``VarianceCurve.to_frame()``, one row per value."""
    about = frame.attrs
    columns = {
        column.heading: column.triples for column in variance_columns(frame, SHOWN, "panels") if not column.together
    }
    level = about.get("confidence_level", math.nan)
    return Table(
        caption=(
            f"{about.get('curve')} along {about.get('parameter')}, with pointwise {level:.0%} intervals over "
            f"{about.get('n_prompts')} prompts."
        ),
        heading=str(about.get("parameter")),
        rows=tuple(f"{value:.4g}".replace("-", "−") for value in frame["value"]),
        columns=columns,
        source=frame,
        label="tab:curve",
    )


def baselines_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``OptimalBaselines.to_frame()``: what was learned, and both ratios with simultaneous ends."""
    about = frame.attrs
    level = about.get("confidence_level", math.nan)
    columns = {}
    for heading, name in (("over oracle", "ratio"), ("over best learned", "ratio_to_learned")):
        ends = frame[[name, f"{name}_simultaneous_low", f"{name}_simultaneous_high"]].to_numpy(dtype=float)
        columns[heading] = [(value, low, high) for value, low, high in ends.tolist()]
    # A text that is empty is missing in a file.
    rows = zip(frame["estimator"], frame["kind"], frame["parameters"].fillna(""), strict=True)
    return Table(
        caption=(
            f"Variance of leave-one-out baselines over that of {about.get('reference')} and over that of the "
            f"{about.get('best_learned')}; {level:.0%} intervals hold for all rows at once, over "
            f"{about.get('n_prompts')} prompts."
        ),
        heading="baseline",
        rows=tuple(f"{label}: {learned}" if learned else f"{label} ({kind})" for label, kind, learned in rows),
        columns=columns,
        source=frame,
        label="tab:baselines",
    )


def curve_caption(frame: pd.DataFrame) -> str:
    """Return the caption of a curve's figure."""
    about = frame.attrs
    return (
        f"Variance, cosine and bias of {about.get('curve')} along {about.get('parameter')}: pointwise bands (grey) and "
        "simultaneous ones (thin lines); the diamond is the lowest point with its interval."
    )


def draw_curve(frame: pd.DataFrame) -> object:
    """Draw a curve: variance at an equal total of completions for group sizes, otherwise all its panels."""
    if frame.attrs.get("parameter") == "group_size":
        label = str(frame.attrs.get("curve", "estimator"))
        return plots.plot_group_size(frame.assign(estimator=label, group_size=frame["value"]))
    return plots.plot_variance_curve_panels(frame)
