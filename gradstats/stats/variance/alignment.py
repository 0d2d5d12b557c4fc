r"""What a batch of B groups reaches of an expected gradient: the critical batch and the alignment.

With g the gradient of one group, G the expectation of the target and B groups in a batch, the *alignment*

.. math:: ρ(B) = \frac{⟨E g, G⟩²}{E‖ĝ_B‖²\,‖G‖²} = \frac{1}{1/\cos² + B^*/B}, \qquad B^* = \mathrm{tr\,Cov}(g)/D,

is the share of the largest improvement of one SGD step that the batch reaches with its best learning rate, for a
Hessian that is a multiple of the identity (McCandlish et al., 1812.06162). D = ⟨E g, G⟩²/‖G‖² is the squared norm of
E g along G, cos the cosine of the two, and B* the *critical batch*: tr Cov(g) at the scale of the target over ‖G‖².
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from gradstats.stats.intervals import FiellerRatio, MonotoneFunction, SkewedMeanEstimate
from gradstats.stats.jackknife import Estimate, Estimated, Interval

# A skewness below which a quantile is that of a normal.
_NORMAL = 0.01
# Prompts of a planned study for which heavy tails are simulated: more only make the interval shorter.
_MOST_SIMULATED = 1000


@dataclass(frozen=True)
class CriticalBatch:
    """B*, in groups: a ray without a value where the signal is not resolved.

    The upper end allows for having been shown, see :func:`selection_adjusted_upper`, and is raised by the quotient of
    that of tr Cov, for heavy tails of squared gradients, over the one of a linear error, which a Fieller set has.
    """

    at_estimate: FiellerRatio  # V/D, with the variances at the estimate
    quadratic: float  # δ, at the scale of D
    noise: Estimate  # tr Cov
    skewness: float = 0.0  # of the estimate of a D of 0
    only_low: bool = False  # whether the quotient bounds B* from below and says no more

    @cached_property
    def quotient(self) -> FiellerRatio:
        """V/D, with the variances that each value in question implies."""
        return critical_batch(self.at_estimate, self.quadratic)

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``; the upper end of a value may be infinite."""
        low, high = self.quotient.within(confidence_level, 0.0, np.inf)
        if self.only_low or not np.isfinite(high):
            return np.nan, 0.0 if np.isnan(low) else low, np.inf
        # The standard error is that of log tr Cov.
        margin = float(scipy.special.stdtrit(self.noise.degrees, 0.5 + confidence_level / 2.0)) * self.noise.stderr
        raised = self.noise.confidence_interval(confidence_level)[1] / (self.noise.value * (1.0 + margin))
        high = selection_adjusted_upper(self.quotient, high, confidence_level, self.skewness)
        return self.quotient.value, low, high * raised if raised > 1.0 else high

    def in_study(self, n_prompts: int, signal: float, share: float) -> CriticalBatch:
        r"""Return what a study of M prompts finds, if the signal is D: that of a D as low as at most 1 − share have.

        The variances of the pilot's influence values fall like 1/M, but for :math:`4δ/M²` in that of D, whose other
        part is in proportion to D.
        """
        found, m = self.at_estimate, self.at_estimate.degrees + 1.0
        quadratic = max(self.quadratic, 0.0)
        linear = max(found.denominator_variance - 4.0 * quadratic / m**2, 0.0) * m * signal / found.denominator
        low = signal - float(scipy.special.ndtri(share)) * np.sqrt(linear / n_prompts + 2.0 * quadratic / n_prompts**2)
        low = max(low, 0.0)
        of_low = linear * low / signal / n_prompts + 4.0 * quadratic / n_prompts**2
        r = float(np.divide(found.value * found.denominator, low)) if low else np.nan
        numerator, covariance = (part * m / n_prompts for part in _of_numerator(found))
        study = FiellerRatio(
            value=r,
            denominator=low,
            contrast_variance=max(numerator - 2.0 * r * covariance + r**2 * of_low, 0.0),
            covariance=covariance - r * of_low,
            denominator_variance=of_low,
            degrees=n_prompts - 1.0,
        )
        noise = replace(self.noise, stderr=self.noise.stderr * np.sqrt(m / n_prompts), degrees=n_prompts - 1.0)
        if isinstance(noise, SkewedMeanEstimate):
            carriers = noise.carriers * n_prompts / m
            noise = replace(noise, n_prompts=min(n_prompts, _MOST_SIMULATED), carriers=carriers)
        return CriticalBatch(study, self.quadratic, noise, self.skewness)


def critical_batch(found: FiellerRatio, quadratic: float) -> FiellerRatio:
    r"""Return V/D, noise over signal, with a Fieller set whose variance is that under the value in question.

    The estimate of D from M prompts has the variance :math:`4ζ/M + 2δ/M²`, of which the jackknife counts the second
    part twice, and ζ is proportional to D. Where D is estimated too low by chance so is ζ, and a set with the variance
    at the estimate ends too early (coverage of 0.87 in place of 0.95 where noise has few directions). So a value ψ is
    tested with the variance that it implies, :math:`λV/ψ + 4δ/M²`, which leaves a quadratic inequality in ψ. The set is
    bounded where D differs from 0 by the variance at 0. The slope λ is that of the estimate,
    shrunk to its largest possible value :math:`4\sqrt δ/M` as if a standard error of D more had been seen.

    Args:
        found: V/D with the variance at the estimate.
        quadratic: δ, at the scale of D.
    """
    at_zero = 4.0 * max(quadratic, 0.0) / (found.degrees + 1.0) ** 2
    if not (found.is_known and at_zero > 0.0):
        return found
    linear, error = max(found.denominator_variance - at_zero, 0.0), np.sqrt(at_zero)
    slope = (linear + error * 2.0 * error) / (max(found.denominator, 0.0) + error)
    # Of N − ψD; that of e = N − rD, in which sets are solved, follows from Cov(N, D) = Cov(e, D) + r Var(D).
    r, numerator, covariance = found.value, *_of_numerator(found)
    both = covariance - slope * r * found.denominator / 2.0
    contrast = numerator - 2.0 * r * both + r**2 * at_zero
    return replace(
        found, contrast_variance=max(contrast, 0.0), covariance=both - r * at_zero, denominator_variance=at_zero
    )


def selection_adjusted_upper(found: FiellerRatio, high: float, confidence_level: float, skewness: float = 0.0) -> float:
    r"""Return the upper end of V/D where a value is shown, which it is where D is resolved.

    Where D is estimated too high by chance it is resolved, so that all misses of an upper end are among the values that
    are shown, and of few values shown many miss: 14 of 19 covered in one simulation. So ψ is excluded where an estimate
    of D as high as this one comes up in at most the share :math:`α = 1 - \mathrm{level}` of those studies that would
    resolve the D that ψ implies, and in α/2 of all, as without a selection. The end is infinite where even a D of
    nearly 0 is not excluded so, and the usual one where most studies would show a value. The estimate of a small D is
    skewed where noise has few directions: quantiles are those of a shifted χ² of its skewness, where above Student's.

    Args:
        found: V/D with the variance under the value in question.
        high: the upper end without a selection.
        confidence_level: of the interval.
        skewness: of the estimate of a D of 0.
    """
    missed = 1.0 - confidence_level
    noise, usual = found.value * found.denominator, float(scipy.special.stdtrit(found.degrees, 1.0 - missed / 2.0))
    resolved_from = usual * np.sqrt(found.denominator_variance)

    def excluded(inverse: float) -> float:
        """Return by how much the deviation of D from V/ψ exceeds the one that is allowed; 1/ψ reaches to 0."""
        apart = 1.0 - found.value * inverse
        variance = (
            found.contrast_variance * inverse**2
            - 2.0 * apart * inverse * found.covariance
            + apart**2 * found.denominator_variance
        )
        stderr = np.sqrt(max(variance, np.finfo(float).tiny))
        shown = float(scipy.special.ndtr((noise * inverse - resolved_from) / stderr))
        allowed = float(scipy.special.stdtrit(found.degrees, 1.0 - missed * min(shown, 0.5)))
        # The part of the error that is there for a D of 0 is skewed, the other normal.
        skewed = skewness * (found.denominator_variance / max(variance, found.denominator_variance)) ** 1.5
        if skewed > _NORMAL:
            degrees = 8.0 / skewed**2
            quantile = 2.0 * float(scipy.special.gammainccinv(degrees / 2.0, missed * min(shown, 0.5)))
            allowed = max(allowed, (quantile - degrees) / np.sqrt(2.0 * degrees))
        return (found.denominator - noise * inverse) / stderr - allowed

    if found.denominator_variance == 0.0 or noise / high >= resolved_from:  # most studies would show a value
        return high
    if excluded(0.0) <= 0.0:
        return np.inf
    return 1.0 / float(scipy.optimize.brentq(excluded, 0.0, 1.0 / high))  # pyright: ignore[reportArgumentType]


def _of_numerator(found: FiellerRatio) -> tuple[float, float]:
    """Return the variance of N and its covariance with D."""
    r, of_denominator = found.value, found.denominator_variance
    numerator = found.contrast_variance + 2.0 * r * found.covariance + r**2 * of_denominator
    return numerator, found.covariance + r * of_denominator


def alignment_at(critical: float, limit: float, n_groups: Any) -> Any:
    """Return ρ(B) of a critical batch and a squared cosine, at one number of groups or several."""
    return 1.0 / (1.0 / np.float64(limit) + critical / n_groups)


@dataclass(frozen=True)
class Alignment:
    """The critical batch of an estimator and the limit of its alignment; everything else follows from the two."""

    critical: CriticalBatch
    limit: Estimated  # the squared cosine

    def at(self, n_groups: float) -> MonotoneFunction:
        """Return ρ(B)."""
        return MonotoneFunction(lambda b, limit: alignment_at(b, limit, n_groups), (self.critical, self.limit))

    def groups_for(self, alignment: float) -> MonotoneFunction:
        """Return the groups at which ρ(B) is reached: infinite where the limit may be below it."""

        def needed(critical: float, limit: float) -> float:
            left = 1.0 / alignment - 1.0 / limit
            return critical / left if left > 0 else np.inf

        return MonotoneFunction(needed, (self.critical, self.limit))

    def of_kept(self, n_groups: float, kept: float) -> MonotoneFunction:
        r"""Return the alignment of B groups that are drawn until so many have a weight, as dynamic sampling does.

        Of a share k of groups with a weight, E g is 1/k times that of all and E‖g‖² as well, so that their critical
        batch is :math:`kB^* - (1-k)/\cos²`: B of them reach hardly more than the B/k groups that are drawn.
        """

        def reached(critical: float, limit: float) -> float:
            if limit == 0.0:
                return 0.0
            return alignment_at(kept * critical - (1.0 - kept) / limit, limit, n_groups)

        return MonotoneFunction(reached, (self.critical, self.limit))

    def progress_over(self, other: Alignment, relative_noise: Estimated, n_groups: float) -> MonotoneFunction:
        """Return ρ(B) over that of the reference, whose critical batch is smaller by the relative noise r."""

        def quotient(noise: float, critical: float, limit: float, of_other: float) -> float:
            if np.isinf(critical):
                return 1.0 / noise
            return alignment_at(noise * critical, limit, n_groups) / alignment_at(critical, of_other, n_groups)

        return MonotoneFunction(quotient, (relative_noise, other.critical, self.limit, other.limit))
