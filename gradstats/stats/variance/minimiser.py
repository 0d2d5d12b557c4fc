"""Where a curve of variances along a parameter is lowest, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy
from jaxtyping import Bool, Float

from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import (
    UNKNOWN,
    Interval,
    Statistic,
    covariance_of,
    influential_prompts,
    require_level,
    satterthwaite_degrees,
)
from gradstats.stats.variance.best_set import pairwise_differences

#: Fewest values through which a curve is drawn; between fewer, the lowest is chosen among them.
_FEWEST_OF_A_CURVE = 5
# Points of the curve between neighbouring values, at which its slope is tested.
_STEPS = 16
# A variance that changes by less, relative to itself, does not depend on the parameter.
_FLAT = 1e-9


@dataclass(frozen=True)
class Minimiser:
    r"""The parameter at which a curve of variances is lowest.

    The curve V is the cubic spline through the variances at matched signal at the values, and linear in them. Its
    lowest point is the estimate. The interval holds the parameters at which the slope V′ is compatible with 0,
    :math:`|V'(β)| ≤ t\,\mathrm{se}(V'(β))` with the delete-one-prompt jackknife of V′, connected with the estimate; at
    the first and last value a slope that leads outwards is compatible as well. Student's t has the degrees of freedom
    of that standard error, which at some β a few prompts carry: Satterthwaite's from their influence on V′(β), at most
    M − 1. Where the interval reaches the first or last value, the true minimiser may lie beyond it.
    Where the parameter is not continuous, or has few values, the interval spans the values that may be lowest, as in
    :class:`gradstats.stats.variance.best_set.PairwiseDifferences`.
    """

    values: Float[np.ndarray, " k"]  # of the parameter, increasing
    variances: tuple[Statistic, ...] = field(repr=False)  # tr Cov at matched signal, in units of the lowest
    discrete: bool = False  # whether only the values themselves can be taken

    @property
    def value(self) -> float:
        """The minimiser; NaN where a variance is not known, or all are equal."""
        heights = self._heights
        if not np.isfinite(heights).all() or np.ptp(heights) <= _FLAT * np.abs(heights).max():
            return np.nan
        if self.discrete:
            return float(self.values[np.argmin(heights)])
        points = self._points
        at = int(np.argmin(self._spline(points) @ heights))
        if at in (0, len(points) - 1):
            return float(points[at])

        def slope(parameter: float) -> float:
            return float(self._spline(np.array([parameter]), 1)[0] @ heights)

        before, after = points[at - 1], points[at + 1]
        if not slope(before) < 0.0 < slope(after):
            return float(points[at])
        return float(scipy.optimize.root_scalar(slope, bracket=(before, after)).root)

    @property
    def is_at_an_end(self) -> bool:
        """Whether the curve is lowest at its first or last value, so that it may be lower beyond."""
        return bool(self.value in (self.values[0], self.values[-1]))

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``, inside the values; NaN where the minimiser or an error is not known."""
        level, lowest = require_level(confidence_level), self.value
        if not np.isfinite(lowest):
            return np.nan, np.nan
        if self.discrete:
            pairs = pairwise_differences(self.variances)
            chosen = self.values[pairs.best_set(np.ones(len(self.values), dtype=bool), level)]
            return (float(chosen.min()), float(chosen.max())) if len(chosen) else (np.nan, np.nan)
        points = np.union1d(self._points, [lowest])
        compatible = self._compatible(points, level)
        if compatible is None:
            return np.nan, np.nan
        low = high = int(np.searchsorted(points, lowest))
        while low > 0 and compatible[low - 1]:
            low -= 1
        while high < len(points) - 1 and compatible[high + 1]:
            high += 1
        first = points[0] if low == 0 else self._end(points[low - 1], points[low], level)
        last = points[-1] if high == len(points) - 1 else self._end(points[high + 1], points[high], level)
        return float(first), float(last)

    def relative_to_lowest(self, parameter: float, confidence_level: float = CONFIDENCE_LEVEL) -> Interval:
        r"""Return V at a parameter over its minimum, with its interval; NaN outside the values.

        The interval is that of :math:`\log V(β) - \log V(\hat β)` at these two parameters, which are taken as given;
        the minimum of an estimated curve is too low on average, and the quotient too large.
        """
        level, lowest = require_level(confidence_level), self.value
        if not np.isfinite(lowest) or self.discrete or not self.values[0] <= parameter <= self.values[-1]:
            return UNKNOWN
        there, best = self._spline(np.array([parameter, lowest]))
        heights = self._heights
        quotient = float((there @ heights) / (best @ heights))
        slope = there / (there @ heights) - best / (best @ heights)
        factor = np.exp(self._margin(slope[None], level)[0])
        return quotient, float(quotient / factor), float(quotient * factor)

    @property
    def _heights(self) -> Float[np.ndarray, " k"]:
        return np.array([one.value for one in self.variances])

    @cached_property
    def _covariance(self) -> Float[np.ndarray, "k k"]:
        return covariance_of(self.variances)

    @cached_property
    def _replicates(self) -> Float[np.ndarray, "k m"]:
        return np.stack([one.replicates for one in self.variances])

    @property
    def _points(self) -> Float[np.ndarray, " points"]:
        """The values, and points between them."""
        steps = np.linspace(0.0, 1.0, _STEPS, endpoint=False)
        between = self.values[:-1, None] + np.diff(self.values)[:, None] * steps
        return np.append(between.ravel(), self.values[-1])

    def _spline(self, points: Float[np.ndarray, " points"], derivative: int = 0) -> Float[np.ndarray, "points k"]:
        """Return the matrix that takes variances at the values to the spline, or its slope, at other points."""
        return scipy.interpolate.CubicSpline(self.values, np.eye(len(self.values)))(points, derivative)

    def _compatible(self, points: Float[np.ndarray, " points"], level: float) -> Bool[np.ndarray, " points"] | None:
        """Return at which points the slope may be 0; None where its error is not known."""
        slopes = self._spline(points, 1)
        if not np.isfinite(self._covariance).all():
            return None
        margin, height = self._margin(slopes, level), slopes @ self._heights
        compatible = np.abs(height) <= margin
        compatible[0] |= height[0] >= 0.0
        compatible[-1] |= height[-1] <= 0.0
        # The slope at the lowest point is 0 up to rounding.
        compatible[np.argmin(self._spline(points) @ self._heights)] = True
        return compatible

    def _end(self, outside: float, inside: float, level: float) -> float:
        """Return where, between a point whose slope is not compatible with 0 and one where it is, it begins to be."""

        def excess(parameter: float) -> float:
            slope = self._spline(np.array([parameter]), 1)
            return abs(float(slope[0] @ self._heights)) - float(self._margin(slope, level)[0])

        if not excess(outside) > 0.0 > excess(inside):  # a curve without noise: its lowest point
            return float(inside)
        return float(scipy.optimize.root_scalar(excess, bracket=(outside, inside)).root)

    def _margin(self, coefficients: Float[np.ndarray, "p k"], level: float) -> Float[np.ndarray, " p"]:
        """Return Student's quantile times the standard error of combinations of the variances at the values."""
        variance = np.einsum("pk,kl,pl->p", coefficients, self._covariance, coefficients)
        m = self._replicates.shape[1]
        of_error = satterthwaite_degrees(influential_prompts(coefficients @ self._replicates), m)
        quantile = np.asarray(scipy.special.stdtrit(np.minimum(of_error, m - 1.0), 0.5 + level / 2.0))
        return quantile * np.sqrt(np.maximum(variance, 0.0))


def minimiser_of(
    values: Sequence[float] | Float[np.ndarray, " values"],
    variances: Sequence[Statistic | None],
    *,
    discrete: bool = False,
) -> Minimiser | None:
    """Return where the variances at some values are lowest; None where one of them is not known."""
    known = [one for one in variances if one is not None and one.value > 0]
    if len(known) < len(variances) or not known:
        return None
    at = np.asarray(values, dtype=np.float64)
    order = np.argsort(at, kind="stable")
    unit = 1.0 / min(one.value for one in known)
    scaled = tuple(known[place].scaled(unit) for place in order)
    return Minimiser(at[order], scaled, discrete or len(known) < _FEWEST_OF_A_CURVE)
