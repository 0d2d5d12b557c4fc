"""The median of all pairwise slopes: a line that a few outliers cannot move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

LARGEST = 5000


@dataclass(frozen=True)
class TheilSenLine:
    """The Theil–Sen line, with intervals from the ranks of the pairwise slopes.

    Attributes:
        slope: median of the slopes of all pairs of different log T.
        intercept: median of log‖S‖² − slope·log T.
        r_squared: NaN: a median explains no share of a variance.
        x: (n,) log T.
        y: (n,) log‖S‖².
        clusters: (n,) prompt of each sequence.
        intervals: ``"cluster"`` and ``"rank"`` (Sen 1968; independent sequences, equal noise at all lengths).
        default_interval: ``"cluster"``, with each sequence a cluster where every prompt has one completion.
    """

    slope: float
    intercept: float
    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, " n"]
    clusters: Int[np.ndarray, " n"]
    default_interval: str = "cluster"
    intervals: tuple[str, ...] = ("rank", "cluster")
    r_squared: float = float("nan")

    def slope_stderr(self, method: str) -> float:
        """Return the half-width of a method's 95 % interval in units of a normal distribution's 1.96."""
        low, high = self.slope_interval(0.95, method, 0, np.random.default_rng(0))
        return (high - low) / (2.0 * float(stats.norm.ppf(0.975)))

    def degrees(self) -> float:
        """Return the degrees of freedom of the standard error by the default interval method."""
        return float(self.clusters.max())

    def slope_interval(
        self, level: float, method: str, n_resamples: int, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Return the interval of the slope; nothing is drawn."""
        if method == "rank":
            _, _, low, high = np.asarray(stats.theilslopes(self.y, self.x, alpha=level), dtype=float)
            return float(low), float(high)
        return self._clustered(level)

    def band(
        self, x: Float[np.ndarray, " points"], level: float, method: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the line, and the lines of the interval's slopes through the median point."""
        low, high = self.slope_interval(level, method, 0, np.random.default_rng(0))
        centre = float(np.median(self.x))
        value = self.intercept + self.slope * x
        ends = np.stack([(slope - self.slope) * (x - centre) for slope in (low, high)])
        return value, value + ends.min(axis=0), value + ends.max(axis=0)

    def _clustered(self, level: float) -> tuple[float, float]:
        """Invert Kendall's S as Sen does, with the variance of S by prompt.

        S = Σ_{i<j} sgn(x_j − x_i) sgn(r_j − r_i) moves with each sequence by S_i, the terms of the sum that it is in,
        so its variance is Σ_g(Σ_{i∈g} S_i)².
        """
        dx = self.x[:, None] - self.x[None, :]
        dy = self.y[:, None] - self.y[None, :]
        by_sequence = (np.sign(dx) * np.sign(dy - self.slope * dx)).sum(axis=1)
        n_clusters = int(self.clusters.max()) + 1
        by_prompt = np.bincount(self.clusters, weights=by_sequence)
        variance = float(by_prompt @ by_prompt) * n_clusters / max(n_clusters - 1.0, 1.0)
        later = dx > 0
        slopes = np.sort(dy[later] / dx[later])
        half_width = float(stats.t.ppf(0.5 + level / 2.0, max(n_clusters - 1, 1)) * np.sqrt(variance))
        low = int(np.floor((len(slopes) - half_width) / 2.0))
        high = int(np.ceil((len(slopes) + half_width) / 2.0))
        if low < 0 or high >= len(slopes):
            return -np.inf, np.inf
        return float(slopes[low]), float(slopes[high])


def theil_sen_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> TheilSenLine:
    """Fit the Theil–Sen line (Sen, JASA 63, 1968).

    Raises:
        ValueError: for more sequences than fit in memory as pairs.
    """
    if len(x) > LARGEST:
        raise ValueError(
            f"method='theil_sen' uses all pairs and takes at most {LARGEST} sequences, got {len(x)}: fit "
            "a random subset"
        )
    slope = float(np.asarray(stats.theilslopes(y, x), dtype=float)[0])
    return TheilSenLine(slope, float(np.median(y - slope * x)), x, y, clusters)
