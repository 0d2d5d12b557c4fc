"""Delete-one-prompt jackknife: statistics with their replicates, and estimates with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL

#: An estimate with its interval: value, low, high.
Interval = tuple[float, float, float]
UNKNOWN: Interval = (np.nan, np.nan, np.nan)


@runtime_checkable
class Estimated(Protocol):
    """What was estimated, with an interval at any level; NaN for what the data do not resolve at it."""

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``."""
        ...


def require_level(confidence_level: float) -> float:
    """Return the confidence level, if it is one.

    Raises:
        ValueError: for a level outside (0, 1).
    """
    if not 0.0 < confidence_level < 1.0:
        raise ValueError(f"confidence_level={confidence_level:g} must lie between 0 and 1, for example 0.95")
    return confidence_level


@dataclass(frozen=True)
class Estimate:
    """A number with a standard error, on the scale where its distribution is closest to a Student's.

    Attributes:
        value: the estimate.
        stderr: its standard error, of the value (``"raw"``) or of its logarithm (``"log"``).
        scale: where the interval is symmetric.
        degrees: degrees of freedom of the Student quantile.
    """

    value: float
    stderr: float
    scale: Literal["raw", "log"]
    degrees: float

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``; NaN where the standard error is.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        level = require_level(confidence_level)
        margin = float(stats.t.ppf(0.5 + level / 2.0, self.degrees)) * self.stderr
        if self.scale == "raw":
            return self.value - margin, self.value + margin
        if not self.value > 0:
            return np.nan, np.nan
        with np.errstate(over="ignore"):
            return float(self.value * np.exp(-margin)), float(self.value * np.exp(margin))

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``."""
        return (self.value, *self.confidence_interval(confidence_level))


#: In place of a quantity that cannot be estimated from the data.
NOT_ESTIMATED = Estimate(np.nan, np.nan, "raw", np.nan)


@dataclass(frozen=True)
class Statistic:
    r"""A statistic of M prompts, with its values when each prompt is left out in turn.

    Arithmetic on statistics acts on value and replicates alike, so that a ratio of two of them is jackknifed
    as a ratio, paired prompt by prompt. ``sketch`` follows by the chain rule.

    Attributes:
        value: the statistic on all prompts.
        replicates: (M,) the statistic without prompt m.
        sketch: derivatives of the value along directions of the sketch's error, for each of several folds of
            prompts, as :class:`gradstats.stats.variance.sketch_error.SketchError` gives them; None when inner products
            are exact.
    """

    value: float
    replicates: Float[np.ndarray, " m"]
    sketch: Float[np.ndarray, " ..."] | None = None

    def __add__(self, other: Statistic) -> Statistic:
        return self._combine(self.value + other.value, self.replicates + other.replicates, 1.0, other, 1.0)

    def __sub__(self, other: Statistic) -> Statistic:
        return self._combine(self.value - other.value, self.replicates - other.replicates, 1.0, other, -1.0)

    def __mul__(self, other: Statistic) -> Statistic:
        return self._combine(
            self.value * other.value, self.replicates * other.replicates, other.value, other, self.value
        )

    def __truediv__(self, other: Statistic) -> Statistic:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(np.divide(self.value, other.value))
            replicates = self.replicates / other.replicates
            inverse = float(np.divide(1.0, other.value))
        return self._combine(value, replicates, inverse, other, -value * inverse)

    def scaled(self, factor: float) -> Statistic:
        """Return the statistic times a known number."""
        return Statistic(
            self.value * factor,
            self.replicates * factor,
            None if self.sketch is None else self.sketch * factor,
        )

    def root(self) -> Statistic:
        """Return the square root; NaN of what is negative."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(np.sqrt(self.value))
            slope = float(np.divide(0.5, value))
            replicates = np.sqrt(self.replicates)
        return Statistic(value, replicates, None if self.sketch is None else self.sketch * slope)

    def estimate(self, scale: Literal["raw", "log"] = "raw") -> Estimate:
        r"""Return the value with its standard error, jackknife and sketch together.

        :math:`\mathrm{se}² = \frac{M-1}{M}\sum_m(θ_{(m)} - \bar θ_{(·)})² + \text{sketch}`, with θ the value or
        its logarithm. A statistic whose value or any replicate cannot be put on the log scale has a standard
        error of NaN.
        """
        m = len(self.replicates)
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = np.log(self.replicates) if scale == "log" else self.replicates
            slope = float(np.divide(1.0, self.value)) if scale == "log" else 1.0
            variance = (m - 1.0) / m * np.sum((replicates - replicates.mean()) ** 2)
            if self.sketch is not None:
                variance += slope**2 * added_variance(self.sketch)
        stderr = float(np.sqrt(variance)) if np.isfinite(variance) else np.nan
        return Estimate(self.value, stderr, scale, m - 1.0)

    def _combine(
        self, value: float, replicates: np.ndarray, slope: float, other: Statistic, other_slope: float
    ) -> Statistic:
        """Return the statistic of that value whose derivative is slope·d(self) + other_slope·d(other)."""
        if self.sketch is None or other.sketch is None:
            return Statistic(value, replicates)
        return Statistic(value, replicates, slope * self.sketch + other_slope * other.sketch)


def mean_statistic(values: Float[np.ndarray, " m"], sketch: np.ndarray | None = None) -> Statistic:
    """Return the mean of one value per prompt; its replicate without a prompt is the mean of the others."""
    return Statistic(float(values.mean()), (values.sum() - values) / (len(values) - 1.0), sketch)


def added_variance(slopes: Float[np.ndarray, "f ..."]) -> float:
    """Return the variance that a sketch adds to an expectation, from the slopes of disjoint folds of prompts.

    With the slopes L_f of F folds it is the mean of ⟨L_f, L_f'⟩ over different folds, (‖Σ L_f‖² − Σ‖L_f‖²)/(F(F−1)):
    unbiased for ‖E L‖², which the square of a mean is not. Of a single fold it is ‖L‖².
    """
    n_folds = len(slopes)
    if n_folds == 1:
        return float(np.sum(slopes**2))
    total = slopes.sum(axis=0)
    pairs = float(np.sum(total**2) - np.sum(slopes**2)) / (n_folds * (n_folds - 1))
    # Where the estimate of this sum of squares is negative, nothing is added.
    return max(pairs, 0.0)
