"""Intervals where a symmetric one fails: Fieller sets of ratios, studentised bootstrap, means of skewed quantities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
import scipy
from jaxtyping import Float, Integer

from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import (
    Estimate,
    Estimated,
    Interval,
    Statistic,
    influential_prompts,
    require_level,
    satterthwaite_degrees,
)
from gradstats.stats.protocols import effective_sample_size

N_RESAMPLES = 1999
#: Counts of prompts in resamples that are taken as numbers of eight bytes together: 32 MiB.
COUNTS_AT_ONCE = 2**22
# A resample whose standard error is below this share of the sample's has no spread to speak of.
_LEAST_SPREAD = 0.1
# Below this standard error a logarithm is known exactly, up to rounding.
EXACT = 1e-12
# Influences that differ by less, over their standard deviation, are equal: they are differences of M times as much.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class StudentisedEstimate(Estimate):
    """A number whose logarithm has the quantile of a studentised bootstrap where that is wider than Student's.

    On the side of the longer tail of the prompts' influences the end is that of lognormal ones where few prompts carry
    this tail and that is wider, and open where few prompts carry what it is of.
    """

    # (resamples,) the studentised deviations (log θ* − log θ)/se*; NaN for a resample of hardly any spread
    draws: Float[np.ndarray, " resamples"] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    # (M,) of each prompt on the logarithm
    influence: Float[np.ndarray, " m"] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    carriers: float = math.inf  # prompts that carry what it is of, at least

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``, symmetric about the logarithm; NaN where the standard error is."""
        return self.within(0.0, confidence_level)

    def within(self, quantile: float, confidence_level: float) -> tuple[float, float]:
        """Return the interval for a quantile of the studentised deviation, or for its own where that is larger."""
        if self.stderr <= EXACT:
            return self.value, self.value
        n_influential = float(influential_prompts(self.influence))
        margin = studentised_quantile(self.draws, n_influential, self.degrees, confidence_level, quantile)
        of_tail = math.inf if self.carriers < FEWEST_CARRIERS else max(margin, self.tail(confidence_level))
        below, above = (of_tail, margin) if longer_side(self.influence) < 0 else (margin, of_tail)
        with np.errstate(over="ignore"):
            low, high = np.exp(-below * self.stderr), np.exp(above * self.stderr)
        return float(self.value * low), float(self.value * high)

    def tail(self, confidence_level: float) -> float:
        """Return the standard errors to the end on the side of a tail that few prompts carry; 0 where many do."""
        few = tail_is_carried_by_few(self.influence)
        return lognormal_quantile(self.influence, confidence_level, missed=0.2) if few else 0.0

    @property
    def deviations(self) -> Float[np.ndarray, " resamples"] | None:
        """The draws of what is not known exactly."""
        return self.draws if self.stderr > EXACT else None


def studentised_quantile(
    draws: Float[np.ndarray, " resamples"],
    n_influential: float,
    degrees: float,
    confidence_level: float,
    at_least: float = 0.0,
) -> float:
    r"""Return the quantile of a deviation over its standard error, which few prompts may carry.

    It is Student's, or that of the resamples where larger, times :math:`t_ν/t_{M-1}` with the degrees of freedom of the
    standard error, :math:`ν = 1/(1/n - 1/M)`, at least 1 (:func:`studentised_ratio`).

    Args:
        draws: studentised deviations, NaN for a resample of hardly any spread.
        n_influential: n, the prompts of equal influence that the standard error rests on.
        degrees: M − 1.
        confidence_level: of the interval.
        at_least: a quantile that is used where it is larger, as of several deviations at once.
    """
    level, n_prompts = require_level(confidence_level), degrees + 1.0
    of_error = max(float(satterthwaite_degrees(n_influential, round(n_prompts))) / 2.0, 1.0)
    student, wider = (float(scipy.special.stdtrit(one, 0.5 + level / 2.0)) for one in (degrees, of_error))
    quantiles, known = [at_least, student], draws[np.isfinite(draws)]
    if len(known):
        # A third of the prompts carry it where their influence is normal.
        missing = 1.0 - min(3.0 * n_influential / n_prompts, 1.0)
        of_size = float(np.quantile(np.abs(known), level + missing * (1.0 - level) / 2.0))
        quantiles += [largest_deviation([known], level), of_size]
    return max(quantiles) * max(wider / student, 1.0)


def largest_deviation(draws: Sequence[Float[np.ndarray, " resamples"]], confidence_level: float) -> float:
    """Return what several studentised deviations stay within at once, on both sides.

    It is the upper quantile of the largest of them or the lower one of the smallest, whichever is larger in size: where
    a few prompts carry the variance, each of the two is too small more often than too large.
    """
    half = (1.0 - require_level(confidence_level)) / 2.0
    if not draws:
        return 0.0
    stacked = np.stack(draws)
    stacked = stacked[:, np.isfinite(stacked).any(axis=0)]
    lowest, highest = np.nanmin(stacked, axis=0), np.nanmax(stacked, axis=0)
    return float(max(-np.quantile(lowest, half), np.quantile(highest, 1.0 - half), 0.0))


@lru_cache(maxsize=2)
def resampled_prompts(n_prompts: int) -> Integer[np.ndarray, "resamples m"]:
    """Return how often each prompt is drawn, in each resample of the prompts with replacement.

    The same for every statistic of as many prompts, so that intervals are paired, and the same in every call, so that
    they can be repeated.
    """
    rng = np.random.default_rng(0)
    # Numbers of eight bytes would be the largest array of a comparison; prompts are drawn a few times at most.
    counts = np.empty((N_RESAMPLES, n_prompts), dtype=np.uint16 if n_prompts < 2**16 else np.uint32)
    for block in _blocks_of_resamples(n_prompts):
        n = len(counts[block])
        counts[block] = rng.multinomial(n_prompts, np.full(n_prompts, 1.0 / n_prompts), size=n)
    return counts


def _resampled_means(values: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "resamples k"]:
    """Return the mean of each column over the prompts of each resample."""
    m, counts = len(values), resampled_prompts(len(values))
    return np.concatenate([counts[block].astype(np.float64) @ values for block in _blocks_of_resamples(m)]) / m


def _blocks_of_resamples(n_prompts: int) -> list[slice]:
    step = max(1, COUNTS_AT_ONCE // n_prompts)
    return [slice(first, first + step) for first in range(0, N_RESAMPLES, step)]


def studentised_means(influences: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "resamples k"]:
    """Return t* of the mean of each column in each resample of the prompts; NaN for a resample without a spread."""
    m = len(influences)
    values = influences - influences.mean(axis=0)
    means, squares = _resampled_means(values), _resampled_means(values**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = means / np.sqrt(np.maximum(squares - means**2, 0.0) / (m - 1.0))
    draws[~np.isfinite(draws)] = np.nan
    return draws


def studentised_ratio(numerator: Statistic, denominator: Statistic, carriers: float = math.inf) -> Estimate:
    r"""Return the ratio of two positive statistics, with a studentised bootstrap of its logarithm.

    With :math:`a_m, b_m` the pseudo-values of the two, a resample that draws prompt m :math:`π_m` times has

    .. math:: \log\frac{A^*}{B^*}, \qquad A^* = \tfrac1M\sum_m π_m a_m, \qquad
        \mathrm{se}^{*2} = \frac{1}{M(M-1)}\sum_m π_m\Big(\frac{a_m}{A^*} - \frac{b_m}{B^*}\Big)²,

    the delta method in closed form. A resample whose se* is below a tenth of the sample's says nothing: with few
    prompts and 0/1 rewards it may hold only groups of the same success rate, in which the two gradients are
    proportional. The quantile of the deviation of the logarithm over se*, that of :func:`largest_deviation` or
    Student's where that is larger, is multiplied with the delete-one-prompt jackknife of log A/B, which counts a prompt
    of high leverage in full, together with the errors of sketch, probes and deals (P. Hall, *The Bootstrap and
    Edgeworth Expansion*, 1992). That standard error is itself uncertain where few prompts carry it: with ψ the
    influence of a prompt and :math:`n = (\sum ψ²)²/\sum ψ⁴` it has :math:`2/(1/n - 1/M)` degrees of freedom
    (Satterthwaite 1946), M where the influence is normal. The sample's n is too large, since most prompts that carry
    the variance of a heavy-tailed population are not in it: half as many degrees are taken, :math:`ν = 1/(1/n - 1/M)`,
    and the interval is wider by :math:`t_ν/t_{M-1}`. For the same reason the misses then lie on one side, which the
    sample does not show: as 3n/M falls from 1 to 0, the quantile of the size of the deviation rises from the stated
    level to half way between it and 1, and is used where it is wider. Where few prompts carry the longer tail of ψ
    (:func:`tail_is_carried_by_few`), the end on its side is :func:`lognormal_quantile` away if that is further; it is
    open where fewer than :data:`FEWEST_CARRIERS` prompts carry one of the two. These are choices supported by
    simulations of heavy-tailed populations (docs/statistics.md), not theorems.

    Args:
        numerator: a positive statistic.
        denominator: another of the same prompts.
        carriers: how many prompts carry each of them, at least.
    """
    m = len(numerator.replicates)
    difference = numerator.in_units_of_itself() - denominator.in_units_of_itself()
    variance = (numerator / denominator).logarithm().variance()
    value = float(np.divide(numerator.value, denominator.value)) if denominator.value else np.nan
    # A variance that one prompt alone carries is 0 without it, up to rounding, which says nothing of the ratio.
    positive = all(one.value > 0 and one.replicates.min() > EXACT * one.value for one in (numerator, denominator))
    known = positive and np.isfinite(variance) and m > 2
    if not known:
        return Estimate(value, np.nan, "log", m - 1.0)
    # ψ = a/A − b/B is the influence on the logarithm. Everything is written with it and β = b/B, so that no
    # difference of near-equal numbers is formed: a/A* − b/B* = (ψ − βψ*/β*)/(ψ* + β*).
    influence = difference.pseudo_values
    relative = denominator.in_units_of_itself().pseudo_values
    columns = np.column_stack([influence, relative, influence**2, influence * relative, relative**2])
    psi, beta, psi_sq, product, beta_sq = _resampled_means(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = psi / beta
        squares = (psi_sq - 2.0 * shift * product + shift**2 * beta_sq) / (psi + beta) ** 2
        draws = np.log1p(shift) / np.sqrt(np.maximum(squares, 0.0) / (m - 1.0))
        spread = squares / (np.mean(influence**2) - np.mean(influence) ** 2)
    draws[~(np.isfinite(draws) & (spread > _LEAST_SPREAD**2))] = np.nan
    stderr = float(np.sqrt(variance))
    if stderr > EXACT and np.isnan(draws).mean() > 0.5:
        return Estimate(value, np.nan, "log", m - 1.0)
    return StudentisedEstimate(value, stderr, "log", m - 1.0, draws, influence, carriers)


@dataclass(frozen=True)
class FiellerRatio:
    r"""A ratio of two statistics, with the set of values that the data do not exclude.

    The set holds every ψ for which :math:`N - ψD` is compatible with 0,

    .. math:: (N - ψD)² ≤ t²\,\big(v_{NN} - 2ψ\,v_{ND} + ψ²\,v_{DD}\big),

    which is an interval where D differs from 0, everything outside an interval where it does not but N does, and the
    whole line otherwise. Unlike an interval about the quotient, it has its stated coverage however close the
    denominator is to 0, but it is unbounded there. E. C. Fieller, *Some Problems in Interval Estimation*, JRSS B 16,
    1954.

    It is solved for the difference from the estimated quotient r, with :math:`e = N - rD`, so that no digits are lost
    where the quotient is known nearly exactly.
    """

    value: float  # r = N/D, NaN where D is 0
    denominator: float
    contrast_variance: float
    covariance: float
    denominator_variance: float
    degrees: float
    # (M,) the pseudo-values of e, one a prompt
    influence: Float[np.ndarray, " m"] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)

    @property
    def is_exact(self) -> bool:
        """Whether N is a known multiple of D, up to rounding."""
        return bool(self.contrast_variance <= (EXACT * self.value * self.denominator) ** 2)

    @cached_property
    def deviations(self) -> Float[np.ndarray, " resamples"] | None:
        """The studentised deviations of e over resamples of the prompts; NaN for a resample without a spread.

        None where the ratio is known exactly, or not at all.
        """
        return studentised_means(self.influence[:, None])[:, 0] if self.is_known and not self.is_exact else None

    @property
    def is_known(self) -> bool:
        """Whether the statistics and their errors are numbers."""
        variances = (self.contrast_variance, self.covariance, self.denominator_variance)
        return bool(np.isfinite([self.value, self.denominator, *variances]).all())

    def is_bounded(self, confidence_level: float) -> bool:
        """Return whether the denominator differs from 0 at this level."""
        t_sq = self._t_sq(confidence_level)
        return bool(self.is_known and self.denominator**2 > t_sq * self.denominator_variance)

    def of_few_prompts(self, confidence_level: float, quantile: float = 0.0) -> FiellerRatio:
        """Return the same with the error of N − rD that :func:`studentised_quantile` allows, for few prompts.

        That of D, which decides whether the set is bounded, stays.
        """
        if self.deviations is None:
            return self
        n_influential = float(influential_prompts(self.influence))
        of_contrast = studentised_quantile(
            self.deviations, n_influential, self.degrees, confidence_level, at_least=quantile
        )
        factor = of_contrast / max(np.sqrt(self._t_sq(confidence_level)), quantile)
        return replace(self, contrast_variance=self.contrast_variance * factor**2, covariance=self.covariance * factor)

    def of_long_tails(self, confidence_level: float) -> FiellerRatio:
        """Return the same with the error of N − rD that influences of so long a tail have (:func:`lognormal_quantile`).

        That of D, which decides whether the set is bounded, stays, as does an error that is larger.
        """
        if self.is_exact or not self.is_known:
            return self
        of_contrast = lognormal_quantile(self.influence, confidence_level)
        factor = max(of_contrast / float(np.sqrt(self._t_sq(confidence_level))), 1.0)
        return replace(self, contrast_variance=self.contrast_variance * factor**2, covariance=self.covariance * factor)

    def solution(self, confidence_level: float, quantile: float = 0.0) -> list[tuple[float, float]]:
        """Return the set as one or two closed intervals, in order; empty where the statistics are not known."""
        t_sq = max(self._t_sq(confidence_level), quantile**2)
        if not self.is_known:
            return []
        # aδ² − 2bδ + c ≤ 0 for δ = ψ − r, of which δ = 0 is always a solution.
        a = self.denominator**2 - t_sq * self.denominator_variance
        b = -t_sq * self.covariance
        c = -t_sq * self.contrast_variance
        discriminant = b * b - a * c
        if a > 0:
            root = np.sqrt(max(discriminant, 0.0))
            return [(float(self.value + (b - root) / a), float(self.value + (b + root) / a))]
        if a == 0 or discriminant <= 0:
            return [(-np.inf, np.inf)]
        root = np.sqrt(discriminant)
        return [(-np.inf, float(self.value + (b + root) / a)), (float(self.value + (b - root) / a), np.inf)]

    def within(self, confidence_level: float, lowest: float, highest: float) -> tuple[float, float]:
        """Return the ends of the set inside a parameter space; NaN where nothing of it is inside or it is not known."""
        pieces = [(max(low, lowest), min(high, highest)) for low, high in self.solution(confidence_level)]
        pieces = [(low, high) for low, high in pieces if low <= high]
        return (pieces[0][0], pieces[-1][1]) if pieces else (np.nan, np.nan)

    def _t_sq(self, confidence_level: float) -> float:
        return float(scipy.special.stdtrit(self.degrees, 0.5 + require_level(confidence_level) / 2.0)) ** 2


def fieller_ratio(numerator: Statistic, denominator: Statistic) -> FiellerRatio:
    """Return the ratio of two statistics of the same prompts."""
    value = float(numerator.value / denominator.value) if denominator.value else np.nan
    contrast = numerator - denominator.scaled(value)
    first, second = contrast.variance(), denominator.variance()
    covariance = 0.0
    if first > 0 and second > 0:
        # From Var(e + D) − Var(e − D) = 4 Cov(e, D), both in units of their standard errors.
        e, d = contrast.scaled(first**-0.5), denominator.scaled(second**-0.5)
        correlation = float(np.clip(((e + d).variance() - (e - d).variance()) / 4.0, -1.0, 1.0))
        covariance = correlation * float(np.sqrt(first * second))
    elif not (np.isfinite(first) and np.isfinite(second)):
        covariance = np.nan
    degrees = len(numerator.replicates) - 1.0
    return FiellerRatio(
        value, denominator.value, float(first), covariance, float(second), degrees, contrast.pseudo_values
    )


#: With fewer effective prompts nothing bounds from above what they carry.
FEWEST_CARRIERS = 15
#: At least so many simulated samples, and about so many simulated numbers where prompts are few.
_FEWEST_SAMPLES, _NUMBERS = 999, 200_000


@dataclass(frozen=True)
class SkewedMeanEstimate(Estimate):
    """A mean on the log scale, whose upper end is that of a lognormal sample where that is above Student's.

    Where few prompts carry the mean it has no upper end.
    """

    n_prompts: int = 0
    spread: float = 0.0  # standard deviation of the logarithms of the prompts' values
    share: float = 1.0  # of the prompts whose value is not 0
    carriers: float = math.inf  # prompts that carry it, by prompts_that_carry

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``; NaN where the standard error is."""
        low, high = super().confidence_interval(confidence_level)
        if not (np.isfinite(low) and np.isfinite(high) and self.stderr > EXACT):
            return low, high
        if self.carriers < FEWEST_CARRIERS:
            return low, math.inf
        draws = studentised_lognormal(self.n_prompts, self.spread, self.share)
        if not len(draws):
            return low, high
        lowest = float(np.quantile(draws, (1.0 - require_level(confidence_level)) / 2.0))
        with np.errstate(over="ignore"):
            return low, max(high, float(self.value * np.exp(-lowest * self.stderr)))


def carriers_of(estimate: Estimated) -> float:
    """Return how many prompts carry a variance that :func:`skewed_mean` estimates; infinite where it does not say."""
    return estimate.carriers if isinstance(estimate, SkewedMeanEstimate) else math.inf


def skewed_mean(mean: Statistic, values: Float[np.ndarray, " m"], completions: float = math.inf) -> Estimate:
    r"""Return a positive statistic that is close to the mean of one value a prompt, with an interval for heavy tails.

    A sample without the prompts that carry the mean has too low a mean *and* too low a standard error, so that an
    interval from Student's quantiles lies below the truth far more often than above it, and resampling the prompts that
    were drawn cannot make up for those that were not. So the lower quantile of :math:`(\log\bar x - \log E
    x)/\mathrm{se}`, which gives the upper end, is simulated for M lognormal values that spread as these do (a
    parametric bootstrap, as Zhou and Gao 1997 study for lognormal means), of which the share that is not 0 is that of
    the data (:func:`lognormal_tail`). Where completions carry it (:func:`completions_that_carry`), of which
    there are more than prompts, they spread by no less than so few carriers imply. The lower end is Student's, and the
    upper one where that is higher. Fewer than :data:`FEWEST_CARRIERS` by :func:`prompts_that_carry` give no upper end:
    of simulated samples that lack them, such an end held the truth in 0.3 to 0.9 (docs/statistics.md). The mean brings
    all that adds to its error (sketch, probes, deals).

    Args:
        mean: the statistic.
        values: one a prompt.
        completions: how many of these carry it.
    """
    plain = mean.estimate("log")
    spread, share = lognormal_tail(values)
    if not (np.isfinite(plain.stderr) and np.isfinite(spread)):
        return plain
    carriers = prompts_that_carry(values, completions)
    # M·s·exp(−σ²) prompts carry a lognormal mean.
    spread = max(spread, math.sqrt(math.log(max(len(values) * share / max(completions, EXACT), 1.0))))
    return SkewedMeanEstimate(plain.value, plain.stderr, "log", plain.degrees, len(values), spread, share, carriers)


def lognormal_tail(values: Float[np.ndarray, " m"]) -> tuple[float, float]:
    r"""Return the spread of the logarithms of values, and the share of values that are not 0; NaN of a single one.

    The spread is :math:`\sqrt{\frac{1}{|U|}\sum_{m\in U}(\log x_m - \tilde x)²}` over the set U of logarithms above
    their median :math:`\tilde x`: only the upper tail carries a mean. Values that are not positive count as 0.
    """
    above = values[values > EXACT * np.abs(values).max()]
    if len(above) < 2:
        return math.nan, len(above) / len(values)
    logarithms = np.log(above)
    upper = logarithms[logarithms > np.median(logarithms)] - np.median(logarithms)
    return float(np.sqrt(np.mean(upper**2))) if len(upper) else 0.0, len(above) / len(values)


def lognormal_carriers(values: Float[np.ndarray, " n"]) -> float:
    r"""Return how many of n values carry the mean of a lognormal population, :math:`n s\,e^{-σ²}`.

    With the spread σ of :func:`lognormal_tail` and the share s of values that are not 0; infinite where σ is not known.
    """
    spread, share = lognormal_tail(values)
    return math.inf if np.isnan(spread) else len(values) * share * math.exp(-(spread**2))


def completions_that_carry(values: Float[np.ndarray, " n"]) -> float:
    r"""Return how many of n completions carry a mean by its lognormal tail; infinite where the sample has no such tail.

    Values of a bounded range may spread as widely without any that is large. So it is taken for lognormal only where
    :math:`(\sum x)²/\sum x²` is at most that of nine in ten samples of lognormal values with this spread.
    """
    carriers = lognormal_carriers(values)
    if carriers < FEWEST_CARRIERS:
        spread, share = lognormal_tail(values)
        if effective_sample_size(values) > _most_that_carry(round(len(values) * share), round(spread, 1)):
            return math.inf
    return carriers


@lru_cache(maxsize=128)
def _most_that_carry(n: int, spread: float) -> float:
    """Return the 90 % quantile of (Σx)²/Σx² of n lognormal values."""
    draws = np.random.default_rng(0).standard_normal((int(np.clip(_NUMBERS // max(n, 1), 20, 200)), n))
    values = np.exp(spread * (draws - draws.max(axis=1, keepdims=True)))
    return float(np.quantile(values.sum(axis=1) ** 2 / (values**2).sum(axis=1), 0.9))


def prompts_that_carry(values: Float[np.ndarray, " m"], completions: float = math.inf) -> float:
    r"""Return how many prompts of equal value carry a mean: :math:`(\sum x)²/\sum x²`, or that of a lognormal tail.

    A sample without the few prompts that carry the mean of its population looks as if many did. The spread of
    logarithms is known far better (:func:`lognormal_carriers`), that of completions best: a sum of eight looks lighter
    than its terms. The smallest of these numbers is taken.
    """
    return min(effective_sample_size(values), lognormal_carriers(values), completions)


def lognormal_quantile(
    influence: Float[np.ndarray, " m"], confidence_level: float, missed: float | None = None
) -> float:
    """Return how many standard errors the mean of values with such a long tail may lie below its expectation.

    The side with the longer tail is taken as lognormal and the other as 0: a sample that lacks the few prompts of the
    tail has too small a mean and too small a standard error at once, as :func:`skewed_mean` states.

    Args:
        influence: one a prompt.
        confidence_level: of the interval.
        missed: in what share of samples the spread of the tail may be larger than the one taken; None takes that of
            the sample.
    """
    tail = longer_tail(influence)
    spread, share = lognormal_tail(tail)
    if missed is not None:
        n = max(np.count_nonzero(tail) // 2, 1)  # of the upper half, which the spread is of
        spread *= math.sqrt(n / (2.0 * float(scipy.special.gammaincinv(n / 2.0, missed))))
    draws = studentised_lognormal(len(influence), spread, share) if np.isfinite(spread) else np.zeros(0)
    return -float(np.quantile(draws, (1.0 - require_level(confidence_level)) / 2.0)) if len(draws) else 0.0


def longer_side(influence: Float[np.ndarray, " m"]) -> float:
    """Return 1 where values are skewed upwards and −1 where downwards."""
    return math.copysign(1.0, float(np.sum((influence - influence.mean()) ** 3)))


def longer_tail(influence: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Return how far values lie from their mean on the side with the longer tail, and 0 for those on the other.

    Prompts without gradient share one influence, which is the mean but for an error of the jackknife of the order
    sd/M. They count as 0 as well: as the least values of a lognormal tail they would spread it over powers of ten.
    """
    deviations, spread = longer_side(influence) * (influence - influence.mean()), influence.std()
    order = np.argsort(influence)
    same = np.diff(influence[order]) <= _ROUNDING * spread
    shared = np.empty(len(influence), dtype=bool)
    shared[order] = np.r_[False, same] | np.r_[same, False]
    return np.where((deviations > 0) & ~(shared & (deviations < spread / len(influence))), deviations, 0.0)


def tail_is_carried_by_few(influence: Float[np.ndarray, " m"]) -> bool:
    r"""Return whether few prompts carry the longer tail of their influences.

    Fewer than :data:`FEWEST_CARRIERS` by :math:`(\sum x)²/\sum x²` of :func:`longer_tail`, and fewer than half of the
    :math:`M/π` that carry either tail of normal influences.
    """
    return effective_sample_size(longer_tail(influence)) < min(FEWEST_CARRIERS, len(influence) / (2.0 * math.pi))


@lru_cache(maxsize=128)
def studentised_lognormal(n_prompts: int, spread: float, share: float) -> Float[np.ndarray, " samples"]:
    """Simulate (log x̄ − log E x)/se of samples in which a share of values is lognormal and the others are 0."""
    normal, uniform = _random_numbers(n_prompts)
    values = np.exp(spread * normal - spread**2 / 2.0) * (uniform < share)
    means = values.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = values.std(axis=1) / np.sqrt(n_prompts - 1.0) / means
        draws = np.log(means / share) / relative
    return draws[np.isfinite(draws)]


@lru_cache(maxsize=2)
def _random_numbers(n_prompts: int) -> tuple[Float[np.ndarray, "samples m"], Float[np.ndarray, "samples m"]]:
    """Return the same numbers in every call, so that intervals can be repeated."""
    rng = np.random.default_rng(0)
    shape = (int(np.clip(_NUMBERS // n_prompts, _FEWEST_SAMPLES, 1999)), n_prompts)
    return rng.standard_normal(shape), rng.random(shape)


@dataclass(frozen=True)
class MonotoneFunction:
    """A monotone function of several estimates, with the least and the greatest value over their intervals.

    Of one estimate its interval covers as often as that of the estimate, of several at least as often as all of theirs.
    """

    function: Callable[..., float]
    estimates: tuple[Estimated, ...]

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``; no value where one of the estimates has none."""
        values, *ends = zip(*(one.with_interval(confidence_level) for one in self.estimates), strict=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            corners = [self.function(*map(np.float64, corner)) for corner in product(*zip(*ends, strict=True))]
            return float(self.function(*map(np.float64, values))), float(min(corners)), float(max(corners))


def share_saved(share: Estimated) -> MonotoneFunction:
    """Return what a share, or a relative noise, is less than 1."""
    return MonotoneFunction(lambda one: 1.0 - one, (share,))
