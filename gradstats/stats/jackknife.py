"""Statistics over prompts with their delete-one replicates, and estimates with standard error and interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy
from jaxtyping import Float

from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.system.lazy_imports import pd

#: An estimate with its interval: value, low, high.
Interval = tuple[float, float, float]
UNKNOWN: Interval = (math.nan, math.nan, math.nan)


def interval_columns(intervals: dict[str, Interval]) -> dict[str, float]:
    """Return columns of a frame: each name, and with ``_low`` and ``_high``."""
    return {
        f"{name}{end}": number
        for name, interval in intervals.items()
        for end, number in zip(("", "_low", "_high"), interval, strict=True)
    }


@runtime_checkable
class Estimated(Protocol):
    """An estimate with an interval at any level; NaN where the data do not resolve it at that level."""

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``."""
        ...


def require_level(confidence_level: float) -> float:
    """Return the confidence level if it is valid."""
    if not 0.0 < confidence_level < 1.0:
        raise ValueError(f"confidence_level={confidence_level:g} must lie between 0 and 1, for example 0.95")
    return confidence_level


class TestResult:
    """A result whose fields are the columns of its frame; one has an interval, by default Student's."""

    estimated: ClassVar[str] = "difference"
    printed: ClassVar[tuple[str, ...]] = ()  # all by default
    stderr: float
    degrees: float

    def __repr__(self) -> str:
        """Return the main fields, with the interval."""
        shown = {name: repr(value) for name, value in self._columns().items()}
        ends = (getattr(self, self.estimated), *self.confidence_interval())
        shown[self.estimated] = "{:.3f} [{:.3f}, {:.3f}]".format(*ends).replace("-", "−")
        return f"{type(self).__name__}({', '.join(f'{name}={shown[name]}' for name in self.printed or shown)})"

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the field that has one."""
        value = getattr(self, self.estimated)
        return Estimate(value, self.stderr, "raw", self.degrees).confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame of one row: the fields, one of them with the ends of its interval."""
        row: dict[str, object] = {}
        for name, value in self._columns().items():
            interval = self.confidence_interval(confidence_level) if name == self.estimated else None
            row |= {name: value} if interval is None else interval_columns({name: (float(value), *interval)})
        return pd.DataFrame([row])

    def _columns(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.repr}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Estimate:
    """A number with a standard error, on the scale where its distribution is closest to a Student's."""

    value: float
    stderr: float  # its standard error, of the value ("raw") or of its logarithm ("log")
    scale: Literal["raw", "log"]  # where the interval is symmetric
    degrees: float

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``; NaN where the standard error is."""
        level = require_level(confidence_level)
        margin = float(scipy.special.stdtrit(self.degrees, 0.5 + level / 2.0)) * self.stderr
        if self.scale == "raw":
            return self.value - margin, self.value + margin
        if not self.value > 0:
            return np.nan, np.nan
        with np.errstate(over="ignore"):
            return float(self.value * np.exp(-margin)), float(self.value * np.exp(margin))

    def pvalue(self, expected: float = 0.0, *, only_above: bool = False) -> float:
        """Return the two-sided p-value of an expected value by Student's distribution, on the scale of the value."""
        if self.stderr == 0.0:
            return float(np.isclose(self.value, expected))
        t = (self.value - expected) / self.stderr
        return min(2.0 * float(scipy.special.stdtr(self.degrees, -(t if only_above else abs(t)))), 1.0)

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``."""
        return (self.value, *self.confidence_interval(confidence_level))


# A replicate below this share of the value is 0 but for rounding.
_ROUNDING = 1e-13
#: In place of a quantity that cannot be estimated from the data.
NOT_ESTIMATED = Estimate(math.nan, math.nan, "raw", math.nan)


@runtime_checkable
class Covariances(Protocol):
    """Forms that are numbered, and how their errors covary."""

    def covariance(self, first: Mapping[int, float], second: Mapping[int, float]) -> float:
        """Return the covariance of two linear combinations of forms."""
        ...


@dataclass(frozen=True)
class SharedError:
    """The error that a sketch adds to a statistic, as a linear combination of forms that are evaluated together."""

    forms: Covariances
    coefficients: Mapping[int, float]
    __array_ufunc__ = None  # so that a number of NumPy times an error is an error

    def __mul__(self, factor: float) -> SharedError:
        return SharedError(self.forms, {form: one * factor for form, one in self.coefficients.items()})

    __rmul__ = __mul__

    def __add__(self, other: SharedError) -> SharedError:
        if other.forms is not self.forms:
            raise ValueError("errors of different sketches cannot be added")
        total = dict(self.coefficients)
        for form, one in other.coefficients.items():
            total[form] = total.get(form, 0.0) + one
        return SharedError(self.forms, total)

    def covariance(self, other: SharedError) -> float:
        """Return the covariance with another error of the same sketch."""
        return self.forms.covariance(self.coefficients, other.coefficients)


@dataclass(frozen=True)
class Statistic:
    r"""A statistic of M prompts, with its values when each prompt is left out in turn.

    Arithmetic on statistics acts on value and replicates alike, so that a ratio of two of them is jackknifed
    as a ratio, paired prompt by prompt. ``sketch`` follows by the chain rule.
    """

    value: float
    replicates: Float[np.ndarray, " m"]  # (M,) the statistic without prompt m
    # derivatives of the value along directions of the sketch's error, for each of several folds of prompts, as
    # SketchError gives them, or the combination of forms that they follow from; None when inner products are exact
    sketch: Float[np.ndarray, " ..."] | SharedError | None = None
    # (F, 1 + M) where the statistic is an average over random deals: how F folds of them deviate in the value and in
    # each replicate, divided by √(F(F−1)), so that the sum of squares over folds is the variance of the average over
    # all deals; None where nothing is dealt
    dealt: Float[np.ndarray, "f columns"] | None = None

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
        return self._mapped(self.value * factor, self.replicates * factor, factor)

    def root(self) -> Statistic:
        """Return the square root; NaN of what is negative."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(np.sqrt(self.value))
            return self._mapped(value, np.sqrt(self.replicates), float(np.divide(0.5, value)))

    def logarithm(self) -> Statistic:
        """Return the logarithm; NaN of what is not positive, or is 0 but for rounding without a prompt."""
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = float(np.divide(1.0, self.value))
            positive = np.where(self.replicates > _ROUNDING * abs(self.value), self.replicates, np.nan)
            return self._mapped(float(np.log(self.value)), np.log(positive), slope)

    def _mapped(self, value: float, replicates: np.ndarray, slope: float) -> Statistic:
        """Return a function of the statistic, whose derivative is ``slope``."""
        sketch = None if self.sketch is None else self.sketch * slope
        return Statistic(value, replicates, sketch, None if self.dealt is None else self.dealt * slope)

    def without_bias(self, from_deals: float = 0.0) -> Statistic:
        r"""Return the statistic less the jackknife's estimate of its bias, :math:`(M-1)(\bar θ_{(·)} - θ)`.

        Functions of unbiased statistics have a bias of order 1/M; the replicates, and with them the standard error, are
        left as they are. B. Efron, *The Jackknife, the Bootstrap and Other Resampling Plans*, 1982.
        """
        m = len(self.replicates)
        return replace(self, value=m * self.value - (m - 1.0) * float(self.replicates.mean()) + from_deals)

    def in_units_of_itself(self) -> Statistic:
        """Return the statistic divided by its value: its derivative is that of the logarithm."""
        return self.scaled(float(np.divide(1.0, self.value)) if self.value else np.nan)

    @property
    def pseudo_values(self) -> Float[np.ndarray, " m"]:
        """M·θ − (M−1)·θ_(m): one value a prompt, whose mean is the statistic to first order."""
        m = len(self.replicates)
        return m * self.value - (m - 1.0) * self.replicates

    def variance(self) -> float:
        r"""Return the squared standard error: jackknife, deals and sketch together.

        :math:`\frac{M-1}{M}\sum_m(θ_{(m)} - \bar θ_{(·)})²`, less what the replicates of a finite number of deals
        scatter, plus the variance of the value over deals, plus that of the sketch; NaN where a replicate is.
        """
        m = len(self.replicates)
        with np.errstate(invalid="ignore"):
            variance = (m - 1.0) / m * float(np.sum((self.replicates - self.replicates.mean()) ** 2))
        if self.dealt is not None:
            variance -= self._scatter_over_deals
            # Where the difference of the two is negative, the deals are all there is.
            variance = max(variance, 0.0) if np.isfinite(variance) else variance
            variance += self.variance_over_deals
        return variance if self.sketch is None else variance + added_variance(self.sketch)

    @property
    def variance_over_deals(self) -> float:
        """The part of the squared standard error that more deals would remove."""
        return 0.0 if self.dealt is None else float(np.sum(self.dealt[:, 0] ** 2))

    @property
    def _scatter_over_deals(self) -> float:
        """What the scatter of replicates over a finite number of deals adds to the jackknife's variance."""
        if self.dealt is None:
            return 0.0
        m = len(self.replicates)
        scatter = self.dealt[:, 1:] - self.dealt[:, 1:].mean(axis=1, keepdims=True)
        return (m - 1.0) / m * float(np.sum(scatter**2))

    @property
    def surplus_over_deals(self) -> float:
        """By how much a finite number of deals moves the replicates more than the value, as a variance."""
        return self._scatter_over_deals - self.variance_over_deals

    def estimate(self, scale: Literal["raw", "log"] = "raw") -> Estimate:
        """Return the value with its standard error, of itself or of its logarithm.

        A statistic whose value or any replicate cannot be put on the log scale has a standard error of NaN.
        """
        chosen = self.logarithm() if scale == "log" else self
        variance = chosen.variance()
        stderr = float(np.sqrt(variance)) if np.isfinite(variance) else np.nan
        return Estimate(self.value, stderr, scale, len(self.replicates) - 1.0)

    def _combine(
        self, value: float, replicates: np.ndarray, slope: float, other: Statistic, other_slope: float
    ) -> Statistic:
        """Return the statistic of that value whose derivative is slope·d(self) + other_slope·d(other)."""
        sketch = None
        if self.sketch is not None and other.sketch is not None:
            # Both are slopes, or both are combinations of forms: errors of one kind belong to one sketch.
            sketch = slope * self.sketch + other_slope * other.sketch  # pyright: ignore[reportOperatorIssue]
        dealt = [part * by for part, by in ((self.dealt, slope), (other.dealt, other_slope)) if part is not None]
        return Statistic(value, replicates, sketch, sum(dealt[1:], dealt[0]) if dealt else None)


def mean_statistic(values: Float[np.ndarray, " m"], sketch: np.ndarray | SharedError | None = None) -> Statistic:
    """Return the mean of one value per prompt; its replicate without a prompt is the mean of the others.

    Of a single prompt there are no others: its replicate, and with it the interval, is NaN.
    """
    with np.errstate(invalid="ignore"):
        others = (values.sum() - values) / (len(values) - 1.0)
    return Statistic(float(values.mean()), others, sketch)


def ratio_of_sums(parts: Float[np.ndarray, " m"], wholes: Float[np.ndarray, " m"]) -> Estimate:
    """Return Σ parts / Σ wholes over prompts, without an interval where every prompt has the same ratio."""
    found = (mean_statistic(parts) / mean_statistic(wholes)).estimate()
    return replace(found, stderr=np.nan) if found.stderr == 0.0 else found


def added_variance(slopes: Float[np.ndarray, "f ..."] | SharedError) -> float:
    """Return the variance that a sketch adds to an expectation, from the slopes of disjoint folds of prompts.

    With the slopes L_f of F folds it is the mean of ⟨L_f, L_f'⟩ over different folds, (‖Σ L_f‖² − Σ‖L_f‖²)/(F(F−1)):
    unbiased for ‖E L‖², which the square of a mean is not. Of a single fold it is ‖L‖².
    """
    if isinstance(slopes, SharedError):
        return max(slopes.covariance(slopes), 0.0)
    n_folds = len(slopes)
    if n_folds == 1:
        return float(np.sum(slopes**2))
    total = slopes.sum(axis=0)
    pairs = float(np.sum(total**2) - np.sum(slopes**2)) / (n_folds * (n_folds - 1))
    # Where the estimate of this sum of squares is negative, nothing is added.
    return max(pairs, 0.0)


def covariance_of(statistics: Sequence[Statistic]) -> Float[np.ndarray, "k k"]:
    """Return the covariance matrix C of several statistics of the same prompts.

    A combination of them with coefficients c has the variance cᵀCc. The diagonal is :meth:`Statistic.variance`:
    jackknife, deals and sketch, except that parts that are estimated as negative are not raised to 0.
    """
    replicates = np.stack([one.replicates for one in statistics])
    m = replicates.shape[1]
    centred = replicates - replicates.mean(axis=1, keepdims=True)
    covariance = (m - 1.0) / m * centred @ centred.T
    for first, one in enumerate(statistics):
        for second, other in enumerate(statistics):
            if one.dealt is not None and other.dealt is not None:
                scatter, beside = (
                    part[:, 1:] - part[:, 1:].mean(axis=1, keepdims=True) for part in (one.dealt, other.dealt)
                )
                covariance[first, second] += float(one.dealt[:, 0] @ other.dealt[:, 0])
                covariance[first, second] -= (m - 1.0) / m * float(np.sum(scatter * beside))
    slopes = [one.sketch for one in statistics if one.sketch is not None]
    if len(slopes) < len(statistics):
        return covariance
    errors = [slope for slope in slopes if isinstance(slope, SharedError)]
    if errors:
        return covariance + np.array([[one.covariance(other) for other in errors] for one in errors])
    folds = np.stack([slope.reshape(len(slope), -1) for slope in slopes if isinstance(slope, np.ndarray)])
    n_folds = folds.shape[1]
    within = sum(folds[:, fold] @ folds[:, fold].T for fold in range(n_folds))
    if n_folds == 1:
        return covariance + within
    total = folds.sum(axis=1)
    return covariance + (total @ total.T - within) / (n_folds * (n_folds - 1))


def influential_prompts(influences: Float[np.ndarray, "... m"]) -> Float[np.ndarray, "..."]:
    r"""Return :math:`n = (\sum_m ψ_m²)²/\sum_m ψ_m⁴`, how many prompts of equal influence a standard error rests on."""
    squares = (influences - influences.mean(axis=-1, keepdims=True)) ** 2
    total, fourth = squares.sum(axis=-1), (squares**2).sum(axis=-1)
    return np.divide(total**2, fourth, out=np.full_like(total, np.inf), where=fourth > 0)


def satterthwaite_degrees(n_influential: npt.ArrayLike, n_prompts: int) -> Float[np.ndarray, "..."]:
    r"""Return the degrees of freedom of such a standard error, :math:`ν = 2/(1/n - 1/M)`; infinite for n ≥ M.

    The mean of M influences ψ has the squared standard error :math:`\sum ψ²/M²`, whose relative variance is
    :math:`\sum ψ⁴/(\sum ψ²)² - 1/M`; a χ² of ν degrees has :math:`2/ν`. Of normal influences :math:`n = M/3` and
    :math:`ν = M`. F. E. Satterthwaite, *An Approximate Distribution of Estimates of Variance Components*, 1946.

    Example:
        >>> from gradstats.stats.jackknife import satterthwaite_degrees
        >>> float(satterthwaite_degrees(10.0, 30).round(6))
        30.0
    """
    beyond = 1.0 / np.asarray(n_influential, dtype=np.float64) - 1.0 / n_prompts
    return np.divide(2.0, beyond, out=np.full_like(beyond, np.inf), where=beyond > 0)
