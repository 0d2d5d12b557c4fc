"""Mean, variance, χ² and effective sample size of importance ratios, with the prompt as the independent unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gradstats.stats.jackknife import Estimate, Statistic, mean_statistic
from gradstats.stats.protocols import effective_sample_size_of_means


@dataclass(frozen=True)
class RatioSpread:
    """One kind of ratio ρ over some completions drawn from the old policy."""

    ratio: str  # "token", "product" or "geometric_mean"
    length_low: int  # least number of counted tokens of these completions
    length_high: int
    n: int  # ratios: tokens, or completions
    n_prompts: int
    mean: Estimate  # E[ρ], which is 1 for tokens and products where the sampler can draw whatever the scored policy can
    variance: Estimate
    chi_squared: Estimate  # E[(ρ − 1)²], which is E[ρ²] − 1 where E[ρ] = 1
    effective_sample_size: Estimate  # (Σρ)²/Σρ², at most n

    def record(self, confidence_level: float) -> dict[str, object]:
        """Return the row of a frame, each quantity with its ``_low`` and ``_high``."""
        row: dict[str, object] = {
            name: getattr(self, name) for name in ("ratio", "length_low", "length_high", "n", "n_prompts")
        }
        for name in ("mean", "variance", "chi_squared"):
            estimate = getattr(self, name)
            low, high = estimate.confidence_interval(confidence_level)
            row |= {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
        low, high = self.effective_size_interval(confidence_level)
        return row | {
            "effective_sample_size": self.effective_sample_size.value,
            "effective_sample_size_low": low,
            "effective_sample_size_high": high,
        }

    def effective_size_interval(self, confidence_level: float) -> tuple[float, float]:
        """Return the interval of the effective sample size, which is at most the number of ratios."""
        low, high = self.effective_sample_size.confidence_interval(confidence_level)
        return low, high if np.isnan(high) else min(high, float(self.n))


def ratio_spread(
    ratio: str,
    log_ratios: Float[np.ndarray, " n"],
    prompts: Int[np.ndarray, " n"],
    lengths: Int[np.ndarray, " n"],
) -> RatioSpread:
    r"""Return the spread of one kind of ratio, with delete-one-prompt jackknife intervals.

    Means are over all ratios, so that a prompt counts with the number of its ratios. Intervals of variance, χ² and
    effective sample size are symmetric in the logarithm. Where a ratio overflows, mean, variance and χ² are infinite
    or NaN; the effective sample size does not depend on the scale of the ratios and is exact.
    """
    cluster = np.unique(prompts, return_inverse=True)[1]
    counts = _total(np.ones(len(log_ratios)), cluster)
    n, n_prompts = len(log_ratios), len(counts)
    relative = np.exp(log_ratios - log_ratios.max())
    first, second = (_mean(power, cluster, counts) for power in (relative, relative**2))
    with np.errstate(over="ignore", invalid="ignore"):
        ratios = np.exp(log_ratios)
        mean, square = _mean(ratios, cluster, counts), _mean(ratios**2, cluster, counts)
        variance = square - mean * mean
        chi_squared = _mean(np.expm1(log_ratios) ** 2, cluster, counts)
        return RatioSpread(
            ratio=ratio,
            length_low=int(lengths.min()),
            length_high=int(lengths.max()),
            n=n,
            n_prompts=n_prompts,
            mean=mean.estimate(),
            variance=_positive(variance),
            chi_squared=_positive(chi_squared),
            effective_sample_size=_positive(effective_sample_size_of_means(first, second, n)),
        )


def _total(values: Float[np.ndarray, " n"], cluster: Int[np.ndarray, " n"]) -> Float[np.ndarray, " m"]:
    return np.bincount(cluster, weights=values)


def _mean(
    values: Float[np.ndarray, " n"], cluster: Int[np.ndarray, " n"], counts: Float[np.ndarray, " m"]
) -> Statistic:
    if len(counts) == 1:  # nothing is left without the only prompt
        return Statistic(float(values.mean()), np.full(1, np.nan))
    return mean_statistic(_total(values, cluster)) / mean_statistic(counts)


def _positive(statistic: Statistic) -> Estimate:
    """On the log scale; ratios that are all the same have a spread of 0, whose logarithm does not exist."""
    return statistic.estimate("log" if statistic.value > 0 else "raw")
