"""One estimator's row of the comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Estimated, Interval, Statistic
from gradstats.stats.variance.between_prompt import between_prompt
from gradstats.stats.variance.bias_share import bias_share
from gradstats.stats.variance.cosine import cosine
from gradstats.stats.variance.gradient_statistics import GradientStatistics
from gradstats.stats.variance.kept_share import KeptShare, kept_share
from gradstats.stats.variance.matched_bias_share import matched_bias_share
from gradstats.stats.variance.matched_ratio import matched_ratio
from gradstats.stats.variance.most_influential_prompt import most_influential_prompt
from gradstats.stats.variance.n_effective_prompts import n_effective_beside, n_effective_prompts
from gradstats.stats.variance.noise_to_signal import noise_to_signal
from gradstats.stats.variance.quantities import COMPARED, VARIANCE_COMPONENTS
from gradstats.stats.variance.ratio import ratio
from gradstats.stats.variance.signal_components import SignalComponents
from gradstats.stats.variance.signal_sq import is_resolved, signal_sq
from gradstats.stats.variance.trace_cov import trace_cov
from gradstats.stats.variance.within_prompt import within_prompt


@dataclass(frozen=True)
class EstimatorVariance:
    """What was estimated about one estimator's gradient; each quantity is defined in the file of its name.

    Attributes:
        label: the estimator, with its parameters.
        kept_share: share of groups with any non-zero weight.
        group_size: completions per group; None when prompts have different numbers and all were used.
        unit: what the gradient is measured in; see :class:`gradstats.estimators.Estimator`.
        components: what the estimator is composed of, whatever its label.
        known_coefficient: what the expected gradient is of the reference's, where both are known exactly, else None.
        n_effective_prompts: how many prompts of equal squared gradients the variance is worth.
        n_effective_beside: the same of what it is compared with: reference or target, whichever is worth fewer.
        most_influential: the number of the prompt without which trace_cov changes most; None without a gradient.
        n_deals: how often prompts were dealt into batches; None for estimators that stay within their group.
        share_of_deals: the share of the squared standard errors of trace_cov and ratio, whichever is larger, that more
            deals would remove.
        clipped_share: the share of dealt batches whose gradient was clipped; NaN without a norm that clips.
        signal_components: the parts of the variance of signal_sq, for a plan; None at batch level and for fewer than 4
            prompts.
        at_matched_signal: tr Cov at matched signal, up to a factor that all rows of a comparison share; None where the
            signal is not known.
    """

    label: str
    kept_share: KeptShare
    group_size: int | None = None
    unit: str = SEQUENCE_SUM
    components: str = ""
    known_coefficient: float | None = None
    n_effective_prompts: float = np.nan
    n_effective_beside: float = np.inf
    most_influential: int | None = None
    n_deals: int | None = None
    share_of_deals: float = 0.0
    clipped_share: float = np.nan
    signal_components: SignalComponents | None = None
    trace_cov: Estimate = NOT_ESTIMATED
    signal_sq: Estimate = NOT_ESTIMATED
    noise_to_signal: Estimated = NOT_ESTIMATED
    ratio: Estimate = NOT_ESTIMATED
    matched_ratio: Estimated = NOT_ESTIMATED
    cosine: Estimated = NOT_ESTIMATED
    bias_share: Estimated = NOT_ESTIMATED
    matched_bias_share: Estimated = NOT_ESTIMATED
    within_prompt: Estimate = NOT_ESTIMATED
    between_prompt: Estimate = NOT_ESTIMATED
    at_matched_signal: Statistic | None = field(default=None, repr=False, compare=False)

    def intervals(self, confidence_level: float) -> dict[str, Interval]:
        """Quantity → (estimate, low, high) at a level, with NaN for what the data do not resolve."""
        return {one.name: getattr(self, one.name).with_interval(confidence_level) for one in COMPARED}

    def component_intervals(self, confidence_level: float) -> dict[str, Interval]:
        """Return variance component → (estimate, low, high) at a level."""
        return {one.name: getattr(self, one.name).with_interval(confidence_level) for one in VARIANCE_COMPONENTS}

    def resolved(self, confidence_level: float) -> bool:
        """Return whether the interval of ‖E g‖² lies above 0."""
        return is_resolved(self.signal_sq, confidence_level)


def silent_row(label: str, kept: Float[np.ndarray, " prompts"]) -> EstimatorVariance:
    """Return the row of an estimator without a gradient: NaN but for the share of groups kept."""
    return EstimatorVariance(label, kept_share(kept))


def row_of(label: str, gradient: GradientStatistics) -> EstimatorVariance:
    """Return every quantity of one estimator."""
    return EstimatorVariance(
        label=label,
        known_coefficient=gradient.known_coefficient,
        n_effective_prompts=n_effective_prompts(gradient),
        n_effective_beside=n_effective_beside(gradient),
        most_influential=most_influential_prompt(gradient),
        share_of_deals=_share_of_deals(gradient),
        trace_cov=trace_cov(gradient),
        signal_sq=signal_sq(gradient),
        noise_to_signal=noise_to_signal(gradient),
        ratio=ratio(gradient),
        matched_ratio=matched_ratio(gradient),
        cosine=cosine(gradient),
        bias_share=bias_share(gradient),
        matched_bias_share=matched_bias_share(gradient),
        kept_share=kept_share(gradient.kept),
        within_prompt=within_prompt(gradient),
        between_prompt=between_prompt(gradient),
    )


def _share_of_deals(gradient: GradientStatistics) -> float:
    statistics = [gradient.trace_cov]
    if gradient.reference is not None:
        relative = gradient.trace_cov.in_units_of_itself() - gradient.reference.trace_cov.in_units_of_itself()
        statistics.append(relative)
    shares = [one.variance_over_deals / one.variance() for one in statistics if one.variance_over_deals > 0]
    return float(max(shares, default=0.0))
