"""The table of a value head beside Monte-Carlo values."""

from __future__ import annotations

import pandas as pd

from gradstats.report.ratio_tables import columns_of
from gradstats.report.tables import Table

CRITIC_HEADINGS = {
    "value": "mean value of the head",
    "monte_carlo": "mean Monte-Carlo value",
    "bias": "bias",
    "explained_variance": "explained variance",
}


def critic_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``CriticQuality.to_frame()``."""
    about = frame.attrs
    caption = (
        f"Values of the head against Monte-Carlo values where steps begin, with {about['confidence_level']:.0%} "
        f"intervals over prompts. A step is wrong where the Monte-Carlo value falls to at most {about['low']:g}."
    )
    rows = [f"{row['states']} (n = {row['n']:,})" for row in frame.to_dict("records")]
    return Table(caption, "states", tuple(rows), columns_of(frame, CRITIC_HEADINGS), frame, label="tab:critic")
