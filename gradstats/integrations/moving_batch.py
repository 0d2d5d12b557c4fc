"""What a trainer's own batch reaches, as a moving estimate over the last measured steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gradstats import estimators as families
from gradstats.estimators.batch import Batch
from gradstats.stats.intervals import fieller_ratio
from gradstats.stats.jackknife import Interval, mean_statistic
from gradstats.stats.variance.alignment import alignment_at, selection_adjusted_upper
from gradstats.stats.variance.moments import weighted_rows

#: Measured steps of the moving estimate.
WINDOW = 10
#: Steps from which their scatter gives an interval: that of three missed a tenth and more of the values shown.
_FEWEST = 5
_NUMBERS = ["trace_cov", "signal_sq", "matched_ratio"]
_ENDS = ("", "_low", "_high")


@dataclass
class MovingBatch:
    """The comparisons of the last measured steps.

    Noise and squared signal are unbiased in every step, so that the quotient of their means over steps resolves a
    critical batch that no single step does. Its interval takes the steps as the sample, and its upper end is open where
    the signal is resolved only just.
    """

    _steps: deque[pd.DataFrame] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, variance: pd.DataFrame, own: str, n_prompts: float) -> dict[str, float]:
        """Add the comparison of a step; returns what it says about the batch of the trainer: key → number.

        Args:
            variance: one row for each estimator.
            own: the row of the trainer's own estimator.
            n_prompts: prompts that an optimizer step learns from.
        """
        table = variance.set_index("estimator")
        if not np.isfinite(table.loc[own, ["trace_cov", "signal_sq"]].astype(float)).all():
            return {}
        self._steps.append(pd.DataFrame(table, columns=_NUMBERS, dtype=float))
        level = float(variance.attrs["confidence_level"])
        found = {"batch_prompts": float(n_prompts)}
        if len(self._steps) < _FEWEST:
            value, low, high = (float(table.at[own, f"noise_to_signal{end}"]) for end in _ENDS)
            found["over_steps"] = 1.0
        else:
            noise, signal = (mean_statistic(self._along(own, name)) for name in ("trace_cov", "signal_sq"))
            quotient = fieller_ratio(noise, signal)
            low, high = quotient.within(level, 0.0, np.inf)
            value = np.nan
            if np.isfinite(high):
                value, high = quotient.value, selection_adjusted_upper(quotient, high, level)
            found["over_steps"] = float(len(self._steps))
            found |= self._saving(own, level)
        aligned, least, most = (float(alignment_at(one, 1.0, n_prompts)) for one in (value, high, low))
        found |= _with_ends("critical_batch", (value, low, high)) | _with_ends("alignment", (aligned, least, most))
        return {key: one for key, one in found.items() if math.isfinite(one)}

    def _along(self, label: str, name: str) -> np.ndarray:
        """Return a number of an estimator in every step; NaN in those without it."""
        return np.array([step[name].get(label, np.nan) for step in self._steps], dtype=float)

    def _saving(self, own: str, level: float) -> Mapping[str, float]:
        """Return the share of prompts that the best estimator saves over the trainer's own at equal alignment."""
        best, of_own = mean_statistic(np.zeros(_FEWEST)), self._along(own, "matched_ratio")
        for label in self._steps[-1].index.drop(own):
            with np.errstate(invalid="ignore", divide="ignore"):
                logarithms = np.log(self._along(label, "matched_ratio") / of_own)
            known = logarithms[np.isfinite(logarithms)]
            if len(known) >= _FEWEST and known.mean() < best.value:
                best = mean_statistic(known)
        if not np.isfinite(of_own).sum() >= _FEWEST:
            return {}
        low, high = best.estimate().confidence_interval(level)
        return _with_ends("best_saving", (1.0 - math.exp(best.value), 1.0 - math.exp(high), 1.0 - math.exp(low)))


def _with_ends(name: str, interval: Interval) -> dict[str, float]:
    return {f"{name}{end}": one for end, one in zip(_ENDS, interval, strict=True)}


def silent_tokens(batch: Batch, estimator: str) -> float:
    """Return the share of tokens in groups in which every weight of an estimator is 0."""
    kept = np.bincount(batch.group_index, weighted_rows(families.get(estimator).weights(batch))) > 0
    return float(batch.lengths[~kept[batch.group_index]].sum() / batch.lengths.sum())
