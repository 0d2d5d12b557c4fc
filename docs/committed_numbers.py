"""Numbers of the committed runs in ``figures/``, and how the written pages state them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gradstats import data
from gradstats.stats import fit_length_scaling

FIGURES = Path(__file__).parents[1] / "figures"
NOT_RUN = "not run"
#: The length weights at the published exponent.
WEIGHTED = "length_weighted(alpha=0.8, loo=True)"
#: The same in the published form, with the own sample in the baseline.
OWN_SAMPLE = "length_weighted(alpha=0.8)"
#: RLOO's advantages, each completion divided by its length.
BY_LENGTH = "recipe:custom(advantage=rloo, aggregation=sequence_mean)"

# Relative width of an interval that is a rounding error.
_ROUNDING = 1e-9
#: A number with the ends of its interval.
Triple = tuple[float, float, float]


def committed_path(run: str, name: str) -> Path:
    """Return the path of a file of a committed run, whose answers but two lie in ``tables``."""
    answer = FIGURES / run / "tables" / name
    return answer if answer.is_file() else FIGURES / run / name


def table(run: str, name: str) -> pd.DataFrame | None:
    """Return a committed table; None where the run or the table has not been committed."""
    path = committed_path(run, f"{name}.csv")
    return pd.read_csv(path) if path.exists() else None


def numbers(run: str, name: str) -> dict[str, Any] | None:
    """Return a committed JSON file; None where the run or the file has not been committed."""
    path = committed_path(run, f"{name}.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def with_interval(row: Mapping[str, Any] | pd.Series, column: str) -> Triple | None:
    """Return a value of a row with the ends of its interval; None where it is missing or not resolved."""
    value = row.get(column)
    return None if value is None or pd.isna(value) else (value, row[f"{column}_low"], row[f"{column}_high"])


def for_all_rows(row: Mapping[str, Any] | pd.Series, column: str) -> Triple | None:
    """Return a value of a row with the interval that holds for all rows of its table at once; None where unknown."""
    value = row.get(column)
    ends = [row.get(f"{column}_simultaneous_{end}") for end in ("low", "high")]
    return None if any(one is None or pd.isna(one) for one in (value, *ends)) else (value, *ends)


def cell(run: str, name: str, label: str, column: str, group_size: int | None = None) -> Triple | None:
    """Return an estimator's value with the ends of its interval; None where it is not committed or not resolved."""
    frame = table(run, name)
    if frame is None or column not in frame:
        return None
    rows = frame[frame["estimator"] == label]
    if group_size is not None:
        rows = rows[rows["group_size"] == group_size]
    return None if rows.empty else with_interval(rows.iloc[0], column)


def published_exponent() -> Triple:
    """Return α of the published points of R1-Distill-Qwen-1.5B, refitted."""
    points = data.load("gloeckle2026")
    fit = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
    return fit.alpha, *fit.confidence_interval()


def shown(triple: Triple | None, missing: str = NOT_RUN) -> str:
    """Write a value with its interval, to two significant digits of the interval's half-width."""
    if triple is None or pd.isna(triple[0]):
        return missing
    value, low, high = triple
    if high - low <= _ROUNDING * abs(value):
        return f"{value:.3g}"
    decimals = decimals_of(triple)
    number, first, last = (
        f"{round(end, decimals) + 0.0:.{decimals}f}".replace("-", "−") for end in triple
    )  # + 0.0: no minus before zero
    return f"{number} [{first}, {last}]" if math.isfinite(high) else f"{number} [≥ {first}]"


def decimals_of(triple: Triple) -> int:
    """Return the decimals with which a value and its interval are written."""
    value, low, high = triple
    half = (high - low) / 2.0 if math.isfinite(high) else value - low
    return max(0, 1 - math.floor(math.log10(half))) if half > 0.0 else 12


def lower_bound(low: float) -> str:
    """Write a lower bound, rounded down to two significant digits."""
    if not low > 0.0:
        return "≥ 0"
    step = _second_digit(low)
    return f"≥ {math.floor(low / step) * step:g}"


def upper_bound(high: float) -> str:
    """Write an upper bound, rounded up to two significant digits."""
    if not high > 0.0:
        return "≤ 0"
    step = _second_digit(high)
    return f"≤ {math.ceil(high / step) * step:.2g}"


def _second_digit(number: float) -> float:
    return 10.0 ** (math.floor(math.log10(number)) - 1)


def excludes(triple: Triple | None, value: float) -> bool:
    """Return whether an interval is known and does not hold a value."""
    return triple is not None and (triple[1] > value or triple[2] < value)


def side(triple: Triple | None) -> int:
    """Return on which side of 1 an interval lies; 0 where it holds 1, or is not known."""
    return 0 if triple is None else int(triple[1] > 1.0) - int(triple[2] < 1.0)
