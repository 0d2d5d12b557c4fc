"""What was estimated about one estimator's gradient: its row in a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimated, Statistic
from gradstats.stats.variance.moments import ComponentsOf, SignalComponents
from gradstats.stats.variance.quantities import (
    QUANTITIES,
    GradientStatistics,
    matched_trace_cov,
    most_influential_prompt,
    n_effective_beside,
    n_effective_prompts,
    share_kept,
)


@dataclass(frozen=True)
class EstimatorVariance:
    """What was estimated about one estimator's gradient; each quantity is an attribute, as in ``row.trace_cov``."""

    label: str
    quantities: Mapping[str, Estimated]  # by their names in gradstats.stats.variance.quantities
    group_size: int | None = None  # None when prompts have different numbers of completions and all were used
    block: str = ""  # of parameters, that the gradient is with respect to; "" for all of them
    unit: str = SEQUENCE_SUM  # of the gradient
    components: str = ""  # what the estimator is composed of, whatever its label
    known_coefficient: float | None = None  # the expected gradient over the reference's, where both are known exactly
    n_effective_prompts: float = math.nan
    n_effective_beside: float = math.inf  # of reference or target, whichever is worth fewer
    most_influential: int | None = None  # the number of the prompt; None without a gradient
    n_deals: int | None = None  # None where prompts are not dealt into batches
    share_of_deals: float = 0.0  # of the squared standard error of trace_cov or ratio that more deals would remove
    clipped_share: float = math.nan  # of dealt batches; NaN without a norm that clips
    signal_parts: ComponentsOf | None = field(default=None, repr=False, compare=False)  # None at batch level
    on_target: float = math.nan  # ⟨E g, G⟩ with the expectation G of the target
    target_sq: float = math.nan  # ‖G‖²
    # tr Cov at matched signal, up to a factor that all rows of a comparison share; None where the signal is not known.
    at_matched_signal: Statistic | None = field(default=None, repr=False, compare=False)
    # What all of these are functions of; a comparison does not keep it.
    gradient: GradientStatistics | None = field(default=None, repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        """Return a quantity."""
        try:
            return self.__dict__["quantities"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    @property
    def signal_components(self) -> SignalComponents | None:
        """The parts of the variance of ‖E g‖²; None at batch level and for fewer than 4 prompts."""
        return None if self.signal_parts is None else self.signal_parts.found

    def resolved(self, confidence_level: float) -> bool:
        """Return whether the interval of ‖E g‖² lies above 0."""
        return bool(self.signal_sq.confidence_interval(confidence_level)[0] > 0)


def row_without_gradient(label: str, kept: Float[np.ndarray, " prompts"]) -> EstimatorVariance:
    """Return the row of an estimator without a gradient: NaN but for the share of groups kept."""
    return EstimatorVariance(label, dict.fromkeys(QUANTITIES, NOT_ESTIMATED) | {"kept_share": share_kept(kept)})


def row_of(label: str, gradient: GradientStatistics, **about: Any) -> EstimatorVariance:
    """Return every quantity of one estimator."""
    if gradient.target is not None and gradient.on_target is not None:
        about |= {"on_target": gradient.on_target.value, "target_sq": gradient.target.signal.value}
    return EstimatorVariance(
        label,
        {name: one.estimate(gradient) for name, one in QUANTITIES.items()},
        known_coefficient=gradient.known_coefficient,
        n_effective_prompts=n_effective_prompts(gradient),
        n_effective_beside=n_effective_beside(gradient),
        most_influential=most_influential_prompt(gradient),
        at_matched_signal=matched_trace_cov(gradient),
        gradient=gradient,
        **about,
    )


def share_of_deals(gradient: GradientStatistics) -> float:
    """Return the share of the squared standard error of tr Cov or its ratio that more deals would remove."""
    statistics = [gradient.trace_cov]
    if gradient.reference is not None:
        relative = gradient.trace_cov.in_units_of_itself() - gradient.reference.trace_cov.in_units_of_itself()
        statistics.append(relative)
    shares = [one.variance_over_deals / one.variance() for one in statistics if one.variance_over_deals > 0]
    return float(max(shares, default=0.0))
