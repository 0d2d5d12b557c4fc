"""The number of prompts that resolves the expected gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.plans.prompt_plan import ASSURANCE, PromptPlan, smallest
from gradstats.stats.variance.variance_comparison import VarianceComparison


@dataclass(frozen=True, kw_only=True)
class SignalPlan(PromptPlan):
    r"""The size of a measurement whose interval of :math:`‖E g‖²` lies above 0.

    Attributes:
        estimator: label of the estimator.
        signal_sq: the pilot's estimate of ‖E g‖².
        linear: ζ, the variance of ⟨E g, g_m⟩ over prompts: the part of the variance that falls like 4ζ/M.
        quadratic: δ, the rest of the variance of ⟨g_m, g_l⟩: the part that falls like 2δ/M².
    """

    estimator: str
    signal_sq: float
    linear: float
    quadratic: float

    def _goal(self) -> str:
        return (
            f"‖E ĝ‖² of {self.estimator} resolved ({self.confidence_level:.0%} interval above 0 in {ASSURANCE:.0%} of "
            "studies)"
        )


def plan_signal(pilot: VarianceComparison, estimator: str, confidence_level: float = CONFIDENCE_LEVEL) -> SignalPlan:
    r"""Compute how many prompts put the interval of ‖E g‖² above 0, from a pilot comparison.

    The estimate varies by :math:`4ζ/M + 2δ/M²`, of which the jackknife counts the second part twice; see
    :class:`gradstats.stats.variance.signal_components.SignalComponents`. A part whose estimate is negative counts as 0.
    The signal s is resolved in 80 % of studies of M prompts where
    :math:`z\sqrt{4ζ/M + 4δ/M²} + z_{0.8}\sqrt{4ζ/M + 2δ/M²} \le s`; ζ is taken in proportion to s. The range is that
    over the pilot's interval of s, and reaches to infinity where that does to 0; the assured size is that for the lower
    end of its one-sided 80 % interval.

    Args:
        pilot: a comparison at one group size.
        estimator: label of a row.
        confidence_level: of the interval, and of the range of sizes.

    Raises:
        ValueError: for an estimator without a row, at batch level, or without an interval; a comparison of several
            group sizes; fewer than 4 prompts.
    """
    level = require_level(confidence_level)
    row = next((row for row in pilot.rows if row.label == estimator), None)
    if row is None:
        raise ValueError(
            f"estimator={estimator!r} is not in the pilot: choose from {', '.join(row.label for row in pilot.rows)}"
        )
    if len(pilot.splits) > 1:
        raise ValueError("the pilot compares several group sizes: compare at one group size")
    parts = row.signal_components
    if parts is None or not np.isfinite(row.signal_sq.stderr):
        raise ValueError(
            f"the pilot has no interval of ‖E g‖² for {estimator!r} from at least 4 prompts: choose a group-level "
            "estimator with weights that are not all 0, or measure more prompts"
        )
    linear, quadratic = max(parts.linear, 0.0), max(parts.quadratic, 0.0)
    signal = row.signal_sq.value
    low, high = row.signal_sq.confidence_interval(level)
    assured = signal - float(stats.t.ppf(ASSURANCE, row.signal_sq.degrees)) * row.signal_sq.stderr
    z, z_80 = float(stats.norm.ppf(0.5 + level / 2.0)), float(stats.norm.ppf(ASSURANCE))

    def needed(of: float) -> int | float:
        if not of > 0:
            return math.inf
        first = 4.0 * linear * (of / signal if signal > 0 else 1.0)

        def enough(m: int) -> bool:
            own = z * math.sqrt(first / m + 4.0 * quadratic / m**2)
            return own + z_80 * math.sqrt(first / m + 2.0 * quadratic / m**2) <= of

        return smallest(enough)

    return SignalPlan(
        estimator=estimator,
        signal_sq=signal,
        linear=linear,
        quadratic=quadratic,
        confidence_level=confidence_level,
        n_prompts=needed(signal),
        n_prompts_low=needed(high),
        n_prompts_high=needed(low),
        n_prompts_assured=needed(assured),
        completions_per_prompt=pilot.splits[0].n_completions / pilot.n_prompts,  # pyright: ignore[reportGeneralTypeIssues]
        tokens_per_completion=pilot.splits[0].mean_length,  # pyright: ignore[reportGeneralTypeIssues]
        pilot_n_prompts=pilot.n_prompts,
    )
