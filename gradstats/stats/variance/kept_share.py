"""The share of groups with any non-zero weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from gradstats.stats.jackknife import UNKNOWN, Estimate, Interval, mean_statistic


@dataclass(frozen=True)
class KeptShare:
    """A share with Wilson's interval.

    Attributes:
        share: the mean over prompts with its standard error.
    """

    share: Estimate

    @property
    def value(self) -> float:
        """The share itself."""
        return self.share.value

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, for the sample size that the clustered standard error is worth."""
        p, n = self.share.value, self.share.degrees + 1.0
        if np.isnan(p):
            return UNKNOWN
        if self.share.stderr > 0:
            n = p * (1.0 - p) / self.share.stderr**2
        z_sq = stats.norm.ppf(0.5 + confidence_level / 2.0) ** 2
        centre = (p + z_sq / (2.0 * n)) / (1.0 + z_sq / n)
        margin = np.sqrt(z_sq * (p * (1.0 - p) / n + z_sq / (4.0 * n**2))) / (1.0 + z_sq / n)
        return p, float(max(centre - margin, 0.0)), float(min(centre + margin, 1.0))


def kept_share(kept: Float[np.ndarray, " prompts"]) -> KeptShare:
    """Estimate the mean over prompts of the share of its groups with any non-zero weight.

    A group has none where its rewards are all equal and the baseline subtracts their mean, or where a filter drops it.

    Args:
        kept: (M,) share of each prompt's groups that are kept.
    """
    return KeptShare(mean_statistic(kept).estimate())
