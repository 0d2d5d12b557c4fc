"""Rows of a frame as plain dictionaries, as summaries and JSON files hold them."""

from __future__ import annotations

import pandas as pd


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return one dictionary per row, column → value."""
    return [{str(column): value for column, value in row.items()} for row in frame.to_dict("records")]
