"""Which estimator has the lowest matched ratio, and whether that is beyond doubt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

# A shrunken estimator has a low ratio and is no better for it: only the matched column may name a winner.
JUDGED = "matched_ratio"


def lowest(comparison: Any) -> str | None:
    """Label of the estimator with the lowest matched ratio; None where none is known."""
    frame = _frame(comparison, None)
    values = frame[JUDGED].to_numpy(dtype=float) if JUDGED in frame else np.empty(0)
    if not np.isfinite(values).any():
        return None
    return str(frame["estimator"].iloc[int(np.nanargmin(values))])


def clear_winner(frame: pd.DataFrame, paired: pd.DataFrame | None = None) -> int | None:
    """Position of the row that is lowest beyond doubt; see `variance_table`."""
    best = lowest(frame)
    if best is None or len(frame) < 2 or frame["estimator"].duplicated().any():
        return None
    at = [str(name) for name in frame["estimator"]].index(best)
    if paired is not None:
        if paired.attrs.get("reference") != best:
            raise ValueError(
                f"paired has the reference {paired.attrs.get('reference')!r}, and {best!r} is the lowest: compare "
                f"again with reference={best!r}"
            )
        if list(paired["estimator"]) != list(frame["estimator"]):
            raise ValueError("paired holds other estimators than the table: compare the same ones")
        others = paired[f"{JUDGED}_low"].drop(paired.index[at])
        return at if bool((others > 1.0).all()) else None
    if frame.attrs.get("reference") == best:
        return clear_winner(frame, frame)
    return at if len(frame) == 2 and _other_is_reference(frame, at) else None


def _frame(comparison: Any, confidence_level: float | None) -> pd.DataFrame:
    if isinstance(comparison, pd.DataFrame):
        return comparison
    return comparison.to_frame() if confidence_level is None else comparison.to_frame(confidence_level)


def _other_is_reference(frame: pd.DataFrame, at: int) -> bool:
    """Two rows, one of which is the reference: the interval of the other is the paired one."""
    other = frame["estimator"].iloc[1 - at]
    return other == frame.attrs.get("reference") and bool(frame[f"{JUDGED}_high"].iloc[at] < 1.0)
