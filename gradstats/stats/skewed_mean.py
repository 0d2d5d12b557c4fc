"""Intervals of the mean of a positive, skewed quantity that a few prompts may carry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate, Statistic, require_level
from gradstats.stats.studentised import EXACT

#: At least so many simulated samples, and about so many simulated numbers where prompts are few.
FEWEST_SAMPLES, NUMBERS = 999, 200_000


@dataclass(frozen=True)
class SkewedMeanEstimate(Estimate):
    """A mean on the log scale, whose upper end is that of a lognormal sample of the same spread where above Student's.

    Attributes:
        n_prompts: M.
        spread: standard deviation of the logarithms of the prompts' values.
        share: of the prompts whose value is not 0.
    """

    n_prompts: int = 0
    spread: float = 0.0
    share: float = 1.0

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval ``(low, high)``; NaN where the standard error is.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        low, high = super().confidence_interval(confidence_level)
        if not (np.isfinite(low) and np.isfinite(high) and self.stderr > EXACT):
            return low, high
        draws = studentised_lognormal(self.n_prompts, self.spread, self.share)
        if not len(draws):
            return low, high
        lowest = float(np.quantile(draws, (1.0 - require_level(confidence_level)) / 2.0))
        with np.errstate(over="ignore"):
            return low, max(high, float(self.value * np.exp(-lowest * self.stderr)))


def skewed_mean(mean: Statistic, values: Float[np.ndarray, " m"]) -> Estimate:
    r"""Return a positive statistic that is close to the mean of one value a prompt, with an interval for heavy tails.

    A sample without the prompts that carry the mean has too low a mean *and* too low a standard error, so that an
    interval from Student's quantiles lies below the truth far more often than above it, and resampling the prompts that
    were drawn cannot make up for those that were not. So the lower quantile of
    :math:`(\log\bar x - \log E x)/\mathrm{se}`, which gives the upper end, is simulated for M lognormal values that
    spread as these do (a parametric bootstrap, as Zhou and Gao 1997 study for lognormal means), of which the share that
    is not 0 is that of the data. The spread is
    :math:`\sqrt{\frac{1}{|U|}\sum_{m\in U}(\log x_m - \tilde x)²}` over the set U of logarithms above their median
    :math:`\tilde x`: only the upper tail carries the mean. The lower end is Student's, and the upper one where that is
    higher.

    Args:
        mean: the statistic, with all that adds to its error (sketch, probes, deals).
        values: (M,) one a prompt, of which those that are not positive count as 0.
    """
    plain = mean.estimate("log")
    above = values[values > EXACT * np.abs(values).max()]
    if not (np.isfinite(plain.stderr) and len(above) > 1):
        return plain
    logarithms = np.log(above)
    upper = logarithms[logarithms > np.median(logarithms)] - np.median(logarithms)
    spread = float(np.sqrt(np.mean(upper**2))) if len(upper) else 0.0
    m = len(values)
    return SkewedMeanEstimate(plain.value, plain.stderr, "log", plain.degrees, m, spread, len(above) / m)


@lru_cache(maxsize=128)
def studentised_lognormal(n_prompts: int, spread: float, share: float) -> Float[np.ndarray, " samples"]:
    """Simulate (log x̄ − log E x)/se of samples in which a share of values is lognormal and the others are 0.

    Args:
        n_prompts: of a sample.
        spread: standard deviation of the logarithms.
        share: of the values that are not 0, on average.

    Returns:
        One deviation a sample that has any spread.
    """
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
    shape = (int(np.clip(NUMBERS // n_prompts, FEWEST_SAMPLES, 1999)), n_prompts)
    return rng.standard_normal(shape), rng.random(shape)
