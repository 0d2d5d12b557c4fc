"""What every quantity of a row is computed from: second moments of one estimator's gradient, and of those beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gradstats.stats.jackknife import Statistic


@dataclass(frozen=True)
class Beside:
    """Another gradient h that an estimator's gradient g is compared with.

    Attributes:
        trace_cov: tr Cov(h).
        signal: ‖E h‖², unbiased.
        cross: ⟨E g, E h⟩, unbiased.
    """

    trace_cov: Statistic
    signal: Statistic
    cross: Statistic


@dataclass(frozen=True)
class GradientStatistics:
    """U-statistics over prompts of one estimator's gradient g.

    Attributes:
        trace_cov: tr Cov of one group's gradient.
        second_moment: E‖g‖².
        signal: ‖E g‖², unbiased, may be negative.
        kept: (M,) share of each prompt's groups with any non-zero weight.
        prompts_per_batch: B of the mean squared error.
        reference: the gradient in the denominator of ratios; None where it has no weights.
        target: the gradient that bias and cosine are judged against; None where it has no weights.
        reference_on_target: ⟨E r, G⟩, the reference with the target; None where one of them has no weights.
        known_scale: the factor of E g relative to G, where it is known exactly.
        known_coefficient: the factor of E g relative to the reference's E r, where both are known multiples of the true
            gradient.
        within: the component of ``trace_cov`` between groups of one prompt; None where no prompt has two.
    """

    trace_cov: Statistic
    second_moment: Statistic
    signal: Statistic
    kept: Float[np.ndarray, " prompts"]
    prompts_per_batch: int
    reference: Beside | None = None
    target: Beside | None = None
    reference_on_target: Statistic | None = None
    known_coefficient: float | None = None
    within: Statistic | None = None
    known_scale: float | None = None
