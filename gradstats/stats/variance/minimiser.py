"""Baselines whose parameters are chosen for each prompt on the others, to minimise the variance of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from scipy import interpolate, optimize
from scipy.special import stdtrit

from gradstats import estimators as families
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.estimators.baselines.grouping import unbiased
from gradstats.estimators.baselines.weighted import FITTED_ELSEWHERE
from gradstats.estimators.estimator import SEQUENCE_SUM, Level
from gradstats.stats.intervals import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import (
    UNKNOWN,
    Interval,
    Statistic,
    covariance_of,
    influential_prompts,
    require_level,
    satterthwaite_degrees,
)
from gradstats.stats.variance.notes import why_silent
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.result import pairwise_differences

#: Fewest values through which a curve is drawn; between fewer, the lowest is chosen among them.
FEWEST_OF_A_CURVE = 5
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
    M − 1. Where the interval reaches the first or last value, the true minimiser may lie beyond it
    (:func:`written_interval`). Where the parameter is not continuous, or has few values, the interval spans the values
    that may be lowest, as in :class:`gradstats.stats.variance.result.PairwiseDifferences`.

    Attributes:
        values: (k,) of the parameter, increasing.
        variances: tr Cov at matched signal at each value, in units of the lowest.
        discrete: whether only the values themselves can be taken.
    """

    values: Float[np.ndarray, " k"]
    variances: tuple[Statistic, ...] = field(repr=False)
    discrete: bool = False

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
        return float(optimize.root_scalar(slope, bracket=(before, after)).root)

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
        return interpolate.CubicSpline(self.values, np.eye(len(self.values)))(points, derivative)

    def _end(self, outside: float, inside: float, level: float) -> float:
        """Return where, between a point whose slope is not compatible with 0 and one where it is, it begins to be."""

        def excess(parameter: float) -> float:
            slope = self._spline(np.array([parameter]), 1)
            return abs(float(slope[0] @ self._heights)) - float(self._margin(slope, level)[0])

        if not excess(outside) > 0.0 > excess(inside):  # a curve without noise: its lowest point
            return float(inside)
        return float(optimize.root_scalar(excess, bracket=(outside, inside)).root)

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

    def _margin(self, coefficients: Float[np.ndarray, "p k"], level: float) -> Float[np.ndarray, " p"]:
        """Return Student's quantile times the standard error of combinations of the variances at the values."""
        variance = np.einsum("pk,kl,pl->p", coefficients, self._covariance, coefficients)
        m = self._replicates.shape[1]
        of_error = satterthwaite_degrees(influential_prompts(coefficients @ self._replicates), m)
        quantile = np.asarray(stdtrit(np.minimum(of_error, m - 1.0), 0.5 + level / 2.0))
        return quantile * np.sqrt(np.maximum(variance, 0.0))


def written_interval(low: float, high: float, values: ArrayLike, digits: int = 3) -> str:
    """Write the interval of a minimiser, with ≤ or ≥ at an end where it was cut to the values of a curve.

    Example:
        >>> from gradstats.stats.variance.minimiser import written_interval
        >>> written_interval(-1.0, 0.25, [-1.0, 0.0, 1.0])
        '[≤ -1, 0.25]'
    """
    first, last = np.min(values), np.max(values)
    below = "≤ " if np.isfinite(low) and low <= first else ""
    above = "≥ " if np.isfinite(high) and high >= last else ""
    return f"[{below}{low:.{digits}g}, {above}{high:.{digits}g}]"


def minimiser_of(
    values: ArrayLike, variances: Sequence[Statistic | None], *, discrete: bool = False
) -> Minimiser | None:
    """Return where the variances at some values are lowest; None where one of them is not known."""
    known = [one for one in variances if one is not None and one.value > 0]
    if len(known) < len(variances) or not known:
        return None
    at = np.asarray(values, dtype=np.float64)
    order = np.argsort(at, kind="stable")
    unit = 1.0 / min(one.value for one in known)
    return Minimiser(
        at[order],
        tuple(known[place].scaled(unit) for place in order),
        discrete or len(known) < FEWEST_OF_A_CURVE,
    )


#: Exponents through whose variances a curve is drawn, and points of it between neighbours.
EXPONENTS = np.linspace(-1.0, 2.0, 31)
_STEPS_OF_LEARNED_BASELINES = 16


@dataclass(frozen=True)
class LearnedBaseline:
    """A baseline with parameters for each prompt, on the completions on which they were chosen.

    Attributes:
        label: what it is called.
        names: of its parameters.
        parameters: (prompts, k) of each prompt, chosen on the others.
        given: (n,) weights of the completions.
        optimum: the parameter of lowest variance on all prompts, with the interval of the true one; None where there
            are several parameters.
    """

    label: str
    names: tuple[str, ...]
    parameters: Float[np.ndarray, "m k"] = field(repr=False, compare=False)
    given: Float[np.ndarray, " n"] = field(repr=False, compare=False)
    optimum: Minimiser | FiellerRatio | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Its label."""
        return self.label

    @property
    def level(self) -> Level:
        """``"sequence"``."""
        return "sequence"

    @property
    def needs(self) -> tuple[str, ...]:
        """Nothing: the weights are given."""
        return ()

    @property
    def across_groups(self) -> bool:
        """``False``: what it takes from other prompts is fixed."""
        return False

    @property
    def unit(self) -> str:
        """That of a plain sum."""
        return SEQUENCE_SUM

    def expected_scale(self, group_size: int) -> float | None:
        """Return 1, as for every leave-one-out baseline."""
        return unbiased(group_size, {"singleton": "zero"})

    def weights(self, batch: Batch) -> Float[np.ndarray, " n"]:
        """Return the weights of all completions that it was learned on."""
        if batch.rewards.size != self.given.size:
            raise ValueError(f"{self.label} has weights for {self.given.size} completions, got {batch.rewards.size}")
        return self.given

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the parameter of lowest variance; NaN where there are several, or it is not known.

        Where the slope of the variance is compatible with 0: for the exponent as in
        :class:`gradstats.stats.variance.minimiser.Minimiser`, cut to the exponents that were tried; for the shift
        Fieller's set, which may be unbounded.
        """
        require_level(confidence_level)
        if isinstance(self.optimum, FiellerRatio):
            return self.optimum.within(confidence_level, -np.inf, np.inf)
        return (np.nan, np.nan) if self.optimum is None else self.optimum.confidence_interval(confidence_level)

    def described(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Return the mean of each parameter over prompts, with its interval, or else with its range over prompts."""
        means, lows, highs = (operation(self.parameters, axis=0) for operation in (np.mean, np.min, np.max))
        low, high = self.confidence_interval(confidence_level)
        if np.isfinite(low) or np.isfinite(high):
            tried = self.optimum.values if isinstance(self.optimum, Minimiser) else (-np.inf, np.inf)
            return f"{self.names[0]} {means[0]:.3g} {written_interval(low, high, tried)}"
        return ", ".join(
            f"{name} {mean:.3g} ({low:.3g} to {high:.3g})"
            for name, mean, low, high in zip(self.names, means, lows, highs, strict=True)
        )


def learned_exponent(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return length weights :math:`T^{2α}` with the α of lowest variance on the other prompts.

    :math:`α_m` is the lowest point, between −1 and 2, of the cubic spline through the variances without prompt m.
    """
    variances = [
        variance_with(pool, families.length_weighted(alpha=one, loo=True).weights(pool.batch)) for one in EXPONENTS
    ]
    points = np.linspace(EXPONENTS[0], EXPONENTS[-1], _STEPS_OF_LEARNED_BASELINES * (len(EXPONENTS) - 1) + 1)
    curve = interpolate.CubicSpline(EXPONENTS, np.stack([one.replicates for one in variances]))
    chosen = points[np.argmin(curve(points), axis=0)]
    by_row = chosen[_prompts(pool)]
    # The exponents are given, so that norms, from which they would be fitted, do not matter.
    given = pool.batch.with_fields(
        columns={**pool.batch.columns, FITTED_ELSEWHERE: by_row}, sq_norms=np.ones(len(by_row))
    )
    weights = families.length_weighted(alpha="within_prompt", loo=True).weights(given)
    optimum = minimiser_of(EXPONENTS, variances)
    return LearnedBaseline("learned exponent", ("alpha",), chosen[:, None], weights, optimum)


def learned_shift(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return the leave-one-out mean plus the shift δ of lowest variance on the other prompts.

    The variance without prompt m is a parabola :math:`a + bδ + cδ²`, known from three shifts; :math:`δ_m = -b/2c`.
    """
    unit = float(np.abs(pool.batch.rewards).max()) or 1.0

    def weights_at(delta: float | np.ndarray) -> np.ndarray:
        plain = families.rloo().weights(pool.batch)
        sizes = pool.batch.group_sizes[pool.batch.group_index]
        return np.where(sizes == 1, plain, plain - delta / sizes)

    below, middle, above = (variance_with(pool, weights_at(delta)) for delta in (-unit, 0.0, unit))
    # −b and 2c, of δ in units of the largest reward.
    descent, curvature = (below - above).scaled(0.5), above + below - middle.scaled(2.0)
    lowest = np.zeros_like(descent.replicates)
    np.divide(descent.replicates, curvature.replicates, out=lowest, where=curvature.replicates > 0)
    chosen = unit * lowest
    optimum = fieller_ratio(descent.scaled(unit), curvature)
    # As of the slope of any curve, at its lowest point.
    of_error = satterthwaite_degrees(influential_prompts(optimum.influence), len(chosen))
    optimum = replace(optimum, degrees=min(optimum.degrees, float(of_error)))
    return LearnedBaseline("learned shift", ("delta",), chosen[:, None], weights_at(chosen[_prompts(pool)]), optimum)


def learned_mixture(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return the mixture of three leave-one-out means that has the lowest variance on the other prompts.

    The baseline is :math:`\sum_k p_k b_k` with shares :math:`p_k ≥ 0` that sum to 1 of the mean of the group's other
    completions, the same weighted by length, and the mean over the completions of all other prompts. The variance
    without prompt m is :math:`p^T Q p`, known from the three means and their halves in pairs.
    """
    batch, prompts = pool.batch, _prompts(pool)
    sums = np.bincount(prompts, weights=batch.rewards)
    counts = np.bincount(prompts)
    of_others = (sums.sum() - sums) / np.maximum(counts.sum() - counts, 1)
    sizes = batch.group_sizes[batch.group_index]
    beside = np.where(sizes == 1, 0.0, (batch.rewards - of_others[prompts]) / sizes)
    plain, by_length = (one.weights(batch) for one in (families.rloo(), families.token_mean(loo=True)))
    means = np.stack([plain, by_length, beside])
    n_means = len(means)
    form = np.empty((pool.groups.n_prompts, n_means, n_means))
    for at in range(n_means):
        form[:, at, at] = variance_with(pool, means[at]).replicates
    for first, second in combinations(range(n_means), 2):
        half = variance_with(pool, (means[first] + means[second]) / 2.0).replicates
        form[:, first, second] = form[:, second, first] = (
            2.0 * half - (form[:, first, first] + form[:, second, second]) / 2
        )
    chosen = lowest_shares(form)
    return LearnedBaseline(
        "learned mixture", ("group", "token", "batch"), chosen, np.einsum("nk,kn->n", chosen[prompts], means)
    )


def lowest_shares(form: Float[np.ndarray, "m k k"]) -> Float[np.ndarray, "m k"]:
    """Return the shares p ≥ 0, Σp = 1, at which each quadratic form pᵀQp is lowest.

    For every set of shares that may differ from 0 the lowest point on their plane is Q⁻¹1, scaled; the lowest of those
    that are not negative is the answer.
    """
    m, k = form.shape[:2]
    best, shares = np.full(m, np.inf), np.zeros((m, k))
    for size in range(1, k + 1):
        for kept in map(list, combinations(range(k), size)):
            inner = form[:, kept][:, :, kept]
            solved = np.linalg.pinv(inner, hermitian=True).sum(axis=2)
            total = solved.sum(axis=1, keepdims=True)
            found = np.divide(solved, total, out=np.full_like(solved, np.nan), where=total != 0)
            value = np.einsum("mi,mij,mj->m", found, inner, found)
            better = (found >= 0).all(axis=1) & (value < best)
            best[better] = value[better]
            shares[better] = 0.0
            shares[np.ix_(better, kept)] = found[better]
    return shares


def learned_baselines(pool: PooledCompletions) -> list[LearnedBaseline]:
    """Return the learned exponent, shift and mixture."""
    return [learn(pool) for learn in (learned_exponent, learned_shift, learned_mixture)]


def variance_with(pool: PooledCompletions, weights: Float[np.ndarray, " n"]) -> Statistic:
    """Return tr Cov of the gradient with these weights, whose replicates are those of the other prompts."""
    moments = pool.local(LearnedBaseline("candidate", (), np.empty((0, 0)), weights)).moments
    if moments is None:
        raise ValueError(f"a baseline cannot be learned here, since every completion has weight 0: {why_silent(pool)}")
    return moments.trace_cov


def _prompts(pool: PooledCompletions) -> Int[np.ndarray, " n"]:
    """Return the prompt of each completion."""
    return pool.groups.prompt[pool.groups.group]
