"""Curves along a parameter: the name of their files, their table and their figure."""

from __future__ import annotations

import math
import re

import pandas as pd

from gradstats import plots
from gradstats.report.saved_frames import CURVE
from gradstats.report.tables import Table
from gradstats.report.variance_columns import variance_columns

#: Quantities of the printed table.
SHOWN = ("ratio", "matched_ratio", "cosine", "matched_bias_share")


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
        rows=tuple(f"{value:.4g}" for value in frame["value"]),
        columns=columns,
        source=frame,
        label="tab:curve",
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
