"""Numbers of the committed runs in ``figures/`` by name, how the written pages state them, and what they exclude."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy import stats

from gradstats import data
from gradstats.stats import alpha_difference, fit_length_scaling
from gradstats.stats.variance.quantities import digits_for

FIGURES = Path(__file__).parents[1] / "figures"
UNRESOLVED = "not resolved"
#: Verdict where no committed answer bears on a claim.
UNDECIDED = "not decided here"
#: Runs, in the order of tables, and what the pages call them.
NAMES = {
    "qwen_mawps": "Qwen-0.5B on MAWPS",
    "qwen_mawps_by_block": "Qwen-0.5B on MAWPS, 16 bits",
    "qwen_gsm8k": "Qwen-0.5B on GSM8K",
    "qwen_svamp": "Qwen-0.5B on SVAMP",
    "qwen_1_5b": "Qwen-1.5B on GSM8K",
    "qwen_1_5b_mawps": "Qwen-1.5B on MAWPS",
    "smollm2": "SmolLM2 on sums",
    "embedded_resolved": "embedded-2000",
    "embedded": "embedded-96",
    "embedded_layers": "embedded-96, layers",
    "embedded_resolved_layers": "embedded-2000, layers",
    "embedded_zoo": "embedded-240",
    "embedded_zoo_layers": "embedded-240, layers",
    "embedded_zoo_stale": "embedded-240, stale",
    "zoo": "embedded-240",
    "qwen_mawps_tokens": "Qwen-0.5B on MAWPS",
    "qwen_mawps_tokens_layers": "Qwen-0.5B on MAWPS, layers, 16 bits",
    "qwen_mawps_otb_layers": "Qwen-0.5B on MAWPS, layers, 8 probes",
    "embedded_tokens": "embedded",
    "embedded_tokens_layers": "embedded, layers",
}

# Relative width of an interval that is a rounding error.
_ROUNDING = 1e-9


class Number(NamedTuple):
    """A number with the ends of its interval; the number is NaN where it is not resolved."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write the number with its interval, to two significant digits of the interval's half-width."""
        if math.isnan(self.value):
            return UNRESOLVED
        if self.high - self.low <= _ROUNDING * abs(self.value):
            return f"{self.value:.3g}"
        number, low, high = (self._fixed(end) for end in self)
        if math.isfinite(self.high):
            return f"{number} [{low}, {high}]"
        return f"{number} [{self.at_least if self.low > 0 else f'≥ {low}'}]"

    @property
    def alone(self) -> str:
        """The number without its interval, and its lower bound where it is not resolved."""
        return self.bounded.partition(" [")[0]

    @property
    def bounded(self) -> str:
        """The number with its interval; where it is not resolved, its lower bound."""
        return self.at_least if math.isnan(self.value) and self.low > 0 else str(self)

    @property
    def at_least(self) -> str:
        """The lower end of the interval, rounded down to two significant digits."""
        return f"≥ {_outwards(self.low, math.floor):g}"

    @property
    def at_most(self) -> str:
        """The upper end of the interval, rounded up to two significant digits."""
        return f"≤ {_outwards(self.high, math.ceil):.2g}"

    def below(self, bound: float) -> bool:
        """Return whether the interval lies below a bound, by the digits with which it is written."""
        return round(self.high, self._decimals) < bound

    def above(self, bound: float) -> bool:
        """Return whether the interval lies above a bound, by the digits with which it is written."""
        return round(self.low, self._decimals) > bound

    def excludes(self, bound: float) -> bool:
        """Return whether the interval lies on one side of a bound."""
        return self.below(bound) or self.above(bound)

    def times(self, factor: float) -> Number:
        """Return the number times a positive factor."""
        return Number(*(factor * end for end in self))

    @property
    def excess(self) -> Number:
        """By how many percent a ratio exceeds 1."""
        return Number(*(100.0 * (end - 1.0) for end in self))

    @property
    def saved(self) -> Number:
        """By how many percent a ratio falls short of 1."""
        return Number(*(100.0 * (1.0 - end) for end in (self.value, self.high, self.low)))

    def inverse(self) -> Number:
        """Return the inverse of a positive number."""
        return Number(1.0 / self.value, 1.0 / self.high, 1.0 / self.low if self.low > 0 else math.inf)

    def widened(self, count: int) -> Number:
        """Return the number with an interval that holds for so many numbers at once (Bonferroni, normal estimates)."""
        factor = float(stats.norm.ppf(1.0 - 0.025 / count) / stats.norm.ppf(0.975))
        value, low, high = self
        return Number(value, value - factor * (value - low), value + factor * (high - value))

    def minus(self, other: Number) -> Number:
        """Return the difference from a number of an independent run: half-widths add in quadrature."""
        value = self.value - other.value
        low = value - math.hypot(self.value - self.low, other.high - other.value)
        return Number(value, low, value + math.hypot(self.high - self.value, other.value - other.low))

    @property
    def _decimals(self) -> int:
        half = (self.high - self.low) / 2.0 if math.isfinite(self.high) else self.value - self.low
        return max(0, digits_for(half)) if half > 0.0 else 12

    def _fixed(self, number: float) -> str:
        decimals = self._decimals
        return f"{round(number, decimals) + 0.0:.{decimals}f}".replace("-", "−")  # + 0.0: no minus before zero


def _outwards(number: float, towards: Any) -> float:
    """Round to two significant digits, up or down; what is not positive becomes 0."""
    if not number > 0.0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return towards(number / step) * step


def committed_path(run: str, name: str) -> Path:
    """Return the path of a file of a committed run, whose answers but two lie in ``tables``."""
    answer = FIGURES / run / "tables" / name
    return answer if answer.is_file() else FIGURES / run / name


def table(run: str, name: str) -> pd.DataFrame:
    """Return a committed table."""
    return pd.read_csv(committed_path(run, f"{name}.csv"))


def record(run: str, name: str) -> dict[str, Any]:
    """Return a committed JSON file."""
    return json.loads(committed_path(run, f"{name}.json").read_text(encoding="utf-8"))


def number(row: Mapping[str, Any] | pd.Series, column: str, all_rows: bool = False) -> Number:
    """Return a value of a row with the ends of its interval, or of that which holds for all rows of its table."""
    kind = "_simultaneous" if all_rows else ""
    return Number(*(float(row.get(f"{column}{end}", math.nan)) for end in ("", f"{kind}_low", f"{kind}_high")))


def rows(run: str, name: str, **where: Any) -> pd.DataFrame:
    """Return the rows of a committed table with these values."""
    frame = table(run, name)
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame


def of(run: str, name: str, column: str, all_rows: bool = False, **where: Any) -> Number | None:
    """Return a number of the first row of a committed table with these values; None where there is no such row."""
    found = rows(run, name, **where)
    return None if found.empty else number(found.iloc[0], column, all_rows)


def ratio(run: str, estimator: str, column: str = "matched_ratio", all_rows: bool = False) -> Number | None:
    """Return the relative noise of an estimator in the largest groups of a run, or another of its columns."""
    largest = table(run, "variance")["group_size"].max()
    return of(run, "variance", column, all_rows, estimator=estimator, group_size=largest)


def alpha(run: str, of_what: str = "", quantity: str = "alpha") -> Number | None:
    """Return α of a run, or what an entry of its record says, such as that of ``within_prompt``."""
    found = record(run, "alpha")
    found = found.get(of_what) if of_what else found
    return None if not found or found.get(quantity) is None else number(found, quantity)


def size(run: str) -> tuple[int, int]:
    """Return the prompts of a run, and the completions of each."""
    manifest = record(run, "manifest")
    return manifest["n_prompts"], manifest["n_sequences"] // manifest["n_prompts"]


def published_alpha() -> Number:
    """Return α of the published points of R1-Distill-Qwen-1.5B, refitted."""
    points = data.load("gloeckle2026")
    fit = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
    return Number(fit.alpha, *fit.confidence_interval())


def paired_alpha(one: str, other: str) -> Number:
    """Return the difference of α of two runs with prompts in common, in pairs."""
    found = alpha_difference(table(one, "length_scaling"), table(other, "length_scaling"))
    return Number(found.difference, *found.confidence_interval())
