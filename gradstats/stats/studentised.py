"""Studentised bootstrap over prompts, on the log scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Integer
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate, Statistic, require_level
from gradstats.stats.satterthwaite import influential_prompts, satterthwaite_degrees

N_RESAMPLES = 1999
#: Counts of prompts in resamples that are taken as numbers of eight bytes together: 32 MiB.
COUNTS_AT_ONCE = 2**22
# A resample whose standard error is below this share of the sample's has no spread to speak of.
LEAST_SPREAD = 0.1
# Below this standard error a logarithm is known exactly, up to rounding.
EXACT = 1e-12


@dataclass(frozen=True)
class StudentisedEstimate(Estimate):
    """A number whose logarithm has the quantile of a studentised bootstrap where that is wider than Student's.

    Attributes:
        draws: (resamples,) the studentised deviations (log θ* − log θ)/se*; NaN for a resample of hardly any spread.
        n_influential: n, how many prompts of equal squared influence the standard error rests on.
    """

    draws: Float[np.ndarray, " resamples"] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    n_influential: float = np.inf

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``, symmetric about the logarithm; NaN where the standard error is.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        return self.within(0.0, confidence_level)

    def within(self, quantile: float, confidence_level: float) -> tuple[float, float]:
        """Return the interval for a quantile of the studentised deviation, or for its own where that is larger."""
        level = require_level(confidence_level)
        if self.stderr <= EXACT:
            return self.value, self.value
        student, of_error = (
            float(stats.t.ppf(0.5 + level / 2.0, degrees)) for degrees in (self.degrees, self.degrees_of_error)
        )
        margin = max(quantile, self._deviation(level), student) * max(of_error / student, 1.0) * self.stderr
        with np.errstate(over="ignore"):
            return float(self.value * np.exp(-margin)), float(self.value * np.exp(margin))

    @property
    def degrees_of_error(self) -> float:
        """Degrees of freedom of the standard error: 1/(1/n − 1/M), at least 1."""
        return max(float(satterthwaite_degrees(self.n_influential, round(self.degrees) + 1)) / 2.0, 1.0)

    def _deviation(self, level: float) -> float:
        """Return the quantile of the deviation on one side, or that of its size where few prompts carry the error."""
        own = largest_deviation([self.draws], level)
        known = np.isfinite(self.draws)
        if not known.any():
            return own
        # A third of the prompts carry it where their influence is normal.
        missing = 1.0 - min(3.0 * self.n_influential / (self.degrees + 1.0), 1.0)
        return max(own, float(np.quantile(np.abs(self.draws[known]), level + missing * (1.0 - level) / 2.0)))


def largest_deviation(draws: Sequence[Float[np.ndarray, " resamples"]], confidence_level: float) -> float:
    """Return what several studentised deviations stay within at once, on both sides.

    It is the upper quantile of the largest of them or the lower one of the smallest, whichever is larger in size: where
    a few prompts carry the variance, each of the two is too small more often than too large.

    Args:
        draws: of each, from the same resamples; without any, the answer is 0.
        confidence_level: of all intervals together.
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


def resampled_means(values: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "resamples k"]:
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
    means, squares = resampled_means(values), resampled_means(values**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = means / np.sqrt(np.maximum(squares - means**2, 0.0) / (m - 1.0))
    draws[~np.isfinite(draws)] = np.nan
    return draws


def studentised_ratio(numerator: Statistic, denominator: Statistic) -> Estimate:
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
    level to half way between it and 1, and is used where it is wider. Both are choices supported by simulations of
    heavy-tailed populations (docs/statistics.md), not theorems.
    """
    m = len(numerator.replicates)
    difference = numerator.in_units_of_itself() - denominator.in_units_of_itself()
    variance = (numerator / denominator).logarithm().variance()
    value = float(np.divide(numerator.value, denominator.value)) if denominator.value else np.nan
    known = np.isfinite(variance) and numerator.value > 0 and denominator.value > 0 and m > 2
    if not known:
        return Estimate(value, np.nan, "log", m - 1.0)
    # ψ = a/A − b/B is the influence on the logarithm. Everything is written with it and β = b/B, so that no
    # difference of near-equal numbers is formed: a/A* − b/B* = (ψ − βψ*/β*)/(ψ* + β*).
    influence = difference.pseudo_values
    relative = denominator.in_units_of_itself().pseudo_values
    columns = np.column_stack([influence, relative, influence**2, influence * relative, relative**2])
    psi, beta, psi_sq, product, beta_sq = resampled_means(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = psi / beta
        squares = (psi_sq - 2.0 * shift * product + shift**2 * beta_sq) / (psi + beta) ** 2
        draws = np.log1p(shift) / np.sqrt(np.maximum(squares, 0.0) / (m - 1.0))
        spread = squares / (np.mean(influence**2) - np.mean(influence) ** 2)
    draws[~(np.isfinite(draws) & (spread > LEAST_SPREAD**2))] = np.nan
    stderr = float(np.sqrt(variance))
    if stderr > EXACT and np.isnan(draws).mean() > 0.5:
        return Estimate(value, np.nan, "log", m - 1.0)
    return StudentisedEstimate(value, stderr, "log", m - 1.0, draws, float(influential_prompts(influence)))
