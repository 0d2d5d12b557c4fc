"""Confidence sets of ratios whose denominator may be near 0 (Fieller 1954)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy import stats

from gradstats.stats.jackknife import Statistic, require_level
from gradstats.stats.studentised import EXACT, studentised_means


@dataclass(frozen=True)
class FiellerRatio:
    r"""A ratio of two statistics, with the set of values that the data do not exclude.

    The set holds every ψ for which :math:`N - ψD` is compatible with 0,

    .. math:: (N - ψD)² ≤ t²\,\big(v_{NN} - 2ψ\,v_{ND} + ψ²\,v_{DD}\big),

    which is an interval where D differs from 0, everything outside an interval where it does not but N does, and the
    whole line otherwise. Unlike an interval about the quotient, it has its stated coverage however close the
    denominator is to 0,
    but it is unbounded there. E. C. Fieller, *Some Problems in Interval Estimation*, JRSS B 16, 1954.

    It is solved for the difference from the estimated quotient r, with :math:`e = N - rD`, so that no digits are lost
    where the quotient is known nearly exactly.

    Attributes:
        value: r = N/D, NaN where D is 0.
        denominator: D.
        contrast_variance: the variance of e.
        covariance: that of e and D.
        denominator_variance: the variance of D.
        degrees: degrees of freedom of t.
        influence: (M,) the pseudo-values of e, one a prompt.
    """

    value: float
    denominator: float
    contrast_variance: float
    covariance: float
    denominator_variance: float
    degrees: float
    influence: Float[np.ndarray, " m"] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)

    @property
    def is_exact(self) -> bool:
        """Whether N is a known multiple of D, up to rounding."""
        return bool(self.contrast_variance <= (EXACT * self.value * self.denominator) ** 2)

    @property
    def draws(self) -> Float[np.ndarray, " resamples"]:
        """The studentised deviations of e over resamples of the prompts; NaN for a resample without a spread."""
        return studentised_means(self.influence[:, None])[:, 0]

    @property
    def is_known(self) -> bool:
        """Whether the statistics and their errors are numbers."""
        variances = (self.contrast_variance, self.covariance, self.denominator_variance)
        return bool(np.isfinite([self.value, self.denominator, *variances]).all())

    def is_bounded(self, confidence_level: float) -> bool:
        """Return whether the denominator differs from 0 at this level."""
        t_sq = self._t_sq(confidence_level)
        return bool(self.is_known and self.denominator**2 > t_sq * self.denominator_variance)

    def solution(self, confidence_level: float, quantile: float = 0.0) -> list[tuple[float, float]]:
        """Return the set as one or two closed intervals, in order; empty where the statistics are not known.

        Args:
            confidence_level: of the set.
            quantile: takes the place of t where it is larger.

        Raises:
            ValueError: for a level outside (0, 1).
        """
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
        return float(stats.t.ppf(0.5 + require_level(confidence_level) / 2.0, self.degrees)) ** 2


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
