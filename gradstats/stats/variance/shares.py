"""What parts of a gradient make up of it, and the bins of lengths or success rates that split it into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Real

from gradstats.estimators.estimator import Weighting
from gradstats.stats.intervals import FiellerRatio, fieller_ratio, studentised_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval
from gradstats.stats.variance.moments import PromptMoments, cross_signal
from gradstats.stats.variance.pools import PooledCompletions, Weighted
from gradstats.stats.variance.sketch_error import SketchError


@dataclass(frozen=True)
class ShareOfSum:
    """A share x of a sum of two positive parts, with the interval of the odds x/(1 − x)."""

    share: float
    odds: Estimate  # of the part over the rest

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, between 0 and 1."""
        ends = self.odds.confidence_interval(confidence_level)
        low, high = (end / (1.0 + end) if np.isfinite(end) else end for end in ends)
        return self.share, low, 1.0 if high == np.inf else high


@dataclass(frozen=True)
class ResolvedRatio:
    """A ratio that has no value where its denominator is not resolved; None where nothing is known of it."""

    ratio: FiellerRatio | None

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``."""
        ratio = self.ratio
        if ratio is None:
            return UNKNOWN
        if ratio.is_known and ratio.is_exact:
            return ratio.value, ratio.value, ratio.value
        value = ratio.value if ratio.is_bounded(confidence_level) else np.nan
        return value, *ratio.within(confidence_level, -np.inf, np.inf)


@dataclass(frozen=True)
class GradientShares:
    """What the part gᵇ of a gradient g = Σ_b gᵇ makes up of it."""

    gradient: FiellerRatio | None  # ⟨E gᵇ, E g⟩/‖E g‖²; None without a gradient
    variance: Estimated  # (E⟨gᵇ, g⟩ − ⟨E gᵇ, E g⟩)/tr Cov(g), the part's covariance with the whole
    part: PromptMoments | None  # None where none of its completions has any weight

    def with_intervals(self, confidence_level: float) -> tuple[Interval, Interval]:
        """Return ``(value, low, high)`` of the shares of gradient and variance."""
        gradient = ResolvedRatio(self.gradient).with_interval(confidence_level)
        return gradient, self.variance.with_interval(confidence_level)


def gradient_shares(
    pool: PooledCompletions, estimator: Weighting, masks: Sequence[Bool[np.ndarray, " n"]]
) -> tuple[Weighted, list[GradientShares]]:
    r"""Split an estimator's gradient into the contributions of sets of completions.

    Both shares sum to 1 over sets that make up the whole. The share of the expected gradient is its projection on the
    whole, a U-statistic over pairs of different prompts with its Fieller set. In that of the variance
    :math:`⟨g^b, g⟩ = \tfrac12(‖g^b‖² + ‖g‖² - ‖g - g^b‖²)`, with exact squares where they were measured; its interval
    is a studentised bootstrap over prompts of the odds, or a jackknife where these are not positive.
    """
    whole, moments = pool.with_parts(estimator, [mask for one in masks for mask in (one, ~one)])
    if whole.moments is None:
        return whole, [GradientShares(None, NOT_ESTIMATED, None) for _ in masks]
    pairs = zip(moments[::2], moments[1::2], strict=True)
    return whole, [_shares(whole.moments, part, rest, pool.sketch_error) for part, rest in pairs]


def _shares(
    whole: PromptMoments, part: PromptMoments | None, rest: PromptMoments | None, sketch_error: SketchError | None
) -> GradientShares:
    if part is None or rest is None:
        exact = 0.0 if part is None else 1.0
        gradient = fieller_ratio(whole.signal.scaled(exact), whole.signal)
        return GradientShares(gradient, Estimate(exact, 0.0, "raw", len(whole.signal.replicates) - 1.0), part)
    along = cross_signal(part, whole, sketch_error)
    together = (part.second_moment + whole.second_moment - rest.second_moment).scaled(0.5)
    covariance, variance = together - along, whole.trace_cov
    odds = studentised_ratio(covariance, variance - covariance)
    share: Estimated = (covariance / variance).estimate()
    if np.isfinite(odds.stderr):
        share = ShareOfSum(covariance.value / variance.value, odds)
    return GradientShares(fieller_ratio(along, whole.signal), share, part)


def equal_count_bins(values: Real[np.ndarray, " n"], n_bins: int) -> Real[np.ndarray, "bins 2"]:
    """Return the smallest and greatest value of bins of about equally many; fewer where values tie."""
    ordered = np.sort(values)
    starts = np.unique(ordered[(np.arange(n_bins) * len(ordered)) // n_bins])
    ends = [*(ordered[ordered < start].max() for start in starts[1:]), ordered[-1]]
    return np.column_stack([starts, ends])


def bin_of(values: Real[np.ndarray, " n"], n_bins: int) -> Int[np.ndarray, " n"]:
    """Return in which of the bins of about equally many each value lies."""
    return np.searchsorted(equal_count_bins(values, n_bins)[:, 0], values, side="right") - 1


def inside_bins(values: Real[np.ndarray, " n"], bins: Real[np.ndarray, "bins 2"]) -> list[Bool[np.ndarray, " n"]]:
    """Return which values lie in each bin, both ends inside."""
    return [(values >= low) & (values <= high) for low, high in bins]


def binned(
    values: Real[np.ndarray, " n"], bins: int | Sequence[float]
) -> tuple[Real[np.ndarray, "bins 2"], list[Bool[np.ndarray, " n"]]]:
    """Split values into bins of equal counts, or by edges, each bin without its upper edge except the last."""
    if isinstance(bins, int | np.integer):
        if bins < 1:
            raise ValueError(f"bins={bins} must be at least 1")
        ends = equal_count_bins(values, int(bins))
        return ends, inside_bins(values, ends)
    edges = np.asarray(bins, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ValueError(f"bins={list(bins)} must be a number of bins, or at least two ascending edges")
    outside = values[(values < edges[0]) | (values > edges[-1])]
    if len(outside):
        raise ValueError(f"bins={list(bins)} leaves {len(outside)} values outside, such as {outside[0]:g}: widen them")
    place = np.minimum(np.searchsorted(edges, values, side="right") - 1, len(edges) - 2)
    return np.column_stack([edges[:-1], edges[1:]]), [place == at for at in range(len(edges) - 1)]
