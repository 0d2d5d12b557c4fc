"""One estimator's row of the comparison: its estimates, and which of them the data resolve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.quantities import VARIANCE_COMPONENTS

MISSING = Estimate(np.nan, np.nan, "raw", np.nan)
Interval = tuple[float, float, float]
UNKNOWN: Interval = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class EstimatorVariance:
    """What was estimated about one estimator's gradient g, beside a reference r and the unbiased `rloo`.

    Attributes:
        label: the estimator, with its parameters.
        group_size: completions per group; None when prompts have different numbers and all were used.
        unit: what the gradient is measured in; see `gradstats.estimators.Estimator`.
        trace_cov: tr Cov of one group's gradient.
        signal_sq: ‖E g‖², unbiased, may be negative.
        signal_to_noise: signal_sq over trace_cov, the inverse of noise-to-signal.
        ratio: trace_cov over the reference's.
        coefficient: ⟨E g, E r⟩/‖E r‖², what the gradient keeps of the reference's.
        matched_ratio: ratio over the square of the coefficient.
        known_coefficient: the coefficient where both expectations are known exactly, else None.
        cosine: between E g and E of `rloo`.
        bias_to_noise: ‖E g − E rloo‖² over trace_cov.
        kept_share: share of groups with any non-zero weight, by prompt.
        within_prompt: the component of trace_cov between groups of one prompt, where prompts have several groups.
        between_prompt: the rest of it, unbiased, may be negative; it does not shrink with the group size.
        reference_signal_sq: ‖E r‖².
        unbiased_signal_sq: ‖E rloo‖².
    """

    label: str
    group_size: int | None = None
    unit: str = SEQUENCE_SUM
    trace_cov: Estimate = MISSING
    signal_sq: Estimate = MISSING
    signal_to_noise: Estimate = MISSING
    ratio: Estimate = MISSING
    coefficient: Estimate = MISSING
    matched_ratio: Estimate = MISSING
    known_coefficient: float | None = None
    cosine: Estimate = MISSING
    bias_to_noise: Estimate = MISSING
    kept_share: Estimate = MISSING
    within_prompt: Estimate = MISSING
    between_prompt: Estimate = MISSING
    reference_signal_sq: Estimate = MISSING
    unbiased_signal_sq: Estimate = MISSING

    def intervals(self, confidence_level: float, prompts_per_batch: int) -> dict[str, Interval]:
        """Quantity → (estimate, low, high) at a level, with NaN for what the data do not resolve."""
        return {
            "trace_cov": _plain(self.trace_cov, confidence_level),
            "signal_sq": _plain(self.signal_sq, confidence_level),
            "noise_to_signal": self._noise_to_signal(confidence_level),
            "ratio": _plain(self.ratio, confidence_level),
            "matched_ratio": self._matched_ratio(confidence_level),
            "cosine": self._cosine(confidence_level),
            "bias_share": self._bias_share(confidence_level, prompts_per_batch),
            "kept_share": _wilson(self.kept_share, confidence_level),
        }

    def component_intervals(self, confidence_level: float) -> dict[str, Interval]:
        """Variance component → (estimate, low, high) at a level."""
        return {one.name: _plain(getattr(self, one.name), confidence_level) for one in VARIANCE_COMPONENTS}

    def resolved(self, confidence_level: float) -> bool:
        """Whether the interval of ‖E g‖² lies above 0."""
        return is_resolved(self.signal_sq, confidence_level)

    def _noise_to_signal(self, level: float) -> Interval:
        low, high = self.signal_to_noise.confidence_interval(level)
        if not high > 0:
            return UNKNOWN
        if not self.resolved(level):
            return np.nan, 1.0 / high, np.inf
        return 1.0 / self.signal_to_noise.value, 1.0 / high, 1.0 / low if low > 0 else np.inf

    def _matched_ratio(self, level: float) -> Interval:
        if self.known_coefficient is not None:
            if self.known_coefficient == 0.0:
                return UNKNOWN
            value, low, high = _plain(self.ratio, level)
            factor = self.known_coefficient**-2
            return value * factor, low * factor, high * factor
        low, high = self.coefficient.confidence_interval(level)
        settled = self.resolved(level) and is_resolved(self.reference_signal_sq, level)
        if not (settled and (low > 0 or high < 0)):
            return UNKNOWN
        return _plain(self.matched_ratio, level)

    def _cosine(self, level: float) -> Interval:
        if not (self.resolved(level) and is_resolved(self.unbiased_signal_sq, level)):
            return UNKNOWN
        return _plain(self.cosine, level)

    def _bias_share(self, level: float, prompts_per_batch: int) -> Interval:
        value = self.bias_to_noise.value
        low, high = self.bias_to_noise.confidence_interval(level)
        return (
            _share_of_error(value, prompts_per_batch, np.nan),
            _share_of_error(low, prompts_per_batch, -np.inf),
            _share_of_error(high, prompts_per_batch, np.nan),
        )


def is_resolved(signal_sq: Estimate, confidence_level: float) -> bool:
    """Whether an estimate's interval lies above 0."""
    return bool(signal_sq.confidence_interval(confidence_level)[0] > 0)


def prompts_to_resolve(signal_sq: Estimate, n_prompts: int, confidence_level: float) -> float:
    r"""A lower bound on the number of prompts that resolves a signal.

    The standard error of ‖E g‖² falls at most like 1/M, and the signal is at most the upper end of its
    interval; with four chances in five, the lower end is then above 0 from M·(t + 0.84)·se/upper prompts on.
    """
    high = signal_sq.confidence_interval(confidence_level)[1]
    if not high > 0:
        return np.nan
    quantile = stats.norm.ppf(0.5 + confidence_level / 2.0) + stats.norm.ppf(0.8)
    return float(max(n_prompts * quantile * signal_sq.stderr / high, n_prompts + 1.0))


def _plain(estimate: Estimate, level: float) -> Interval:
    return (estimate.value, *estimate.confidence_interval(level))


def _share_of_error(bias_to_noise: float, prompts_per_batch: int, below_pole: float) -> float:
    """‖E d‖²/(‖E d‖² + trace_cov/B), which grows with its argument down to the pole at −1/B."""
    scaled = bias_to_noise * prompts_per_batch
    if np.isnan(scaled):
        return np.nan
    return float(scaled / (scaled + 1.0)) if scaled > -1.0 else below_pole


def _wilson(share: Estimate, level: float) -> Interval:
    """Wilson's interval with the sample size that the clustered standard error is worth."""
    p, n = share.value, share.degrees + 1.0
    if np.isnan(p):
        return UNKNOWN
    if share.stderr > 0:
        n = p * (1.0 - p) / share.stderr**2
    z_sq = stats.norm.ppf(0.5 + level / 2.0) ** 2
    centre = (p + z_sq / (2.0 * n)) / (1.0 + z_sq / n)
    margin = np.sqrt(z_sq * (p * (1.0 - p) / n + z_sq / (4.0 * n**2))) / (1.0 + z_sq / n)
    return p, float(max(centre - margin, 0.0)), float(min(centre + margin, 1.0))
