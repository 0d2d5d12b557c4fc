"""The table of noise, signal and bias by completion length."""

from __future__ import annotations

import pandas as pd

from gradstats.report.ratio_tables import columns_of
from gradstats.report.tables import Table

LENGTH_HEADINGS = {
    "scale": "scale kept",
    "matched_bias_share": "matched bias",
    "share_of_gradient": "share of gradient",
    "cosine": "cosine",
    "noise_to_signal": "noise to signal",
    "ratio": "share of variance",
}


def length_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``LengthBins.to_frame()``, or of several below each other."""
    level = frame.attrs["confidence_level"]
    caption = (
        f"Gradients of completions by length, with {level:.0%} intervals over prompts, judged against what completions "
        "of the same lengths contribute to the target; the scale kept is 1 where the estimator keeps their gradient, 0 "
        "where it drops it."
    )
    rows = tuple(
        f"{row['estimator']}, {row['length_low']:g}–{row['length_high']:g} tokens (n = {row['n_completions']:,})"
        for row in frame.to_dict("records")
    )
    return Table(caption, "estimator", rows, columns_of(frame, LENGTH_HEADINGS), frame, label="tab:lengths")
