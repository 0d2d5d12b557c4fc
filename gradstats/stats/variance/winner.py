"""Which estimator has the lowest variance at matched signal, and whether that is beyond doubt."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.variance.quantities import JUDGED


@runtime_checkable
class Comparison(Protocol):
    """An object that has the frame of a variance comparison, at any level."""

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame with one row per estimator."""
        ...


def lowest_beyond_doubt(frame: pd.DataFrame) -> str | None:
    """Label of the only estimator in the best set of a comparison, where every row with a gradient is judged."""
    values = frame[["trace_cov", JUDGED.name]].to_numpy(dtype=float)
    # An estimator without a gradient, or whose inputs were not measured, has a row and no part in the comparison.
    judged = bool((np.isfinite(values[:, 1]) | np.isnan(values[:, 0])).all())
    if len(frame) < 2 or not judged or frame["estimator"].duplicated().any():
        return None
    best = rows_in_best_set(frame)
    return str(frame["estimator"].iloc[best[0]]) if len(best) == 1 else None


def rows_in_best_set(frame: pd.DataFrame) -> list[int]:
    """Return the positions of the rows whose ``in_best_set`` is true; what is missing there was not judged."""
    return np.flatnonzero(frame["in_best_set"].eq(True)).tolist()


def lowest(comparison: Comparison | pd.DataFrame) -> str | None:
    """Label of the estimator with the lowest matched ratio; None where no estimator's is known."""
    frame = frame_of(comparison, None)
    values = frame[JUDGED.name].to_numpy(dtype=float) if JUDGED.name in frame else np.empty(0)
    if not np.isfinite(values).any():
        return None
    return str(frame["estimator"].iloc[int(np.nanargmin(values))])


def clear_winner(frame: pd.DataFrame, paired: pd.DataFrame | None = None) -> int | None:
    """Return the position of the row that is lowest beyond doubt, as far as frames show it.

    Args:
        frame: of a comparison.
        paired: of the same comparison with the lowest estimator as reference. Without it the question is settled only
            where the lowest estimator is the reference, or one of two rows of which the other is.

    Raises:
        ValueError: when ``paired`` has another reference, or other rows.
    """
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
        others = paired[f"{JUDGED.name}_low"].drop(paired.index[at])
        return at if bool((others > 1.0).all()) else None
    if frame.attrs.get("reference") == best:
        return clear_winner(frame, frame)
    return at if len(frame) == 2 and _other_is_reference(frame, at) else None


def best_rows(frame: pd.DataFrame, paired: pd.DataFrame | None = None) -> list[int]:
    """Positions of the best set, as a frame gives it; without that column, of the row that is lowest beyond doubt.

    Args:
        frame: of a comparison.
        paired: as for :func:`clear_winner`, which then decides.
    """
    if paired is None and "in_best_set" in frame:
        return rows_in_best_set(frame)
    if paired is not None or "lowest_beyond_doubt" not in frame.attrs:
        winner = clear_winner(frame, paired)
        return [] if winner is None else [winner]
    best = frame.attrs["lowest_beyond_doubt"]
    return [at for at, name in enumerate(frame["estimator"]) if str(name) == best]


def frame_of(comparison: Comparison | pd.DataFrame, confidence_level: float | None) -> pd.DataFrame:
    """Return the frame of a comparison, or the frame itself."""
    if isinstance(comparison, pd.DataFrame):
        return comparison
    return comparison.to_frame() if confidence_level is None else comparison.to_frame(confidence_level)


def _other_is_reference(frame: pd.DataFrame, at: int) -> bool:
    """Two rows, one of which is the reference: the interval of the other is the paired one."""
    other = frame["estimator"].iloc[1 - at]
    return other == frame.attrs.get("reference") and bool(frame[f"{JUDGED.name}_high"].iloc[at] < 1.0)
