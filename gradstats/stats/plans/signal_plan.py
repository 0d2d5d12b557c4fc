"""The number of prompts that resolves the expected gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.plans.prompt_plan import ASSURANCE, PromptPlan
from gradstats.stats.variance.variance_comparison import VarianceComparison


@dataclass(frozen=True, kw_only=True, repr=False)
class SignalPlan(PromptPlan):
    r"""The size of a measurement whose interval of :math:`‖E g‖²` lies above 0.

    Attributes:
        estimator: label of the estimator.
        signal_sq: the pilot's estimate of ‖E g‖².
        linear: ζ, the variance of :math:`\langle E g, g_m\rangle` over prompts: the part of the variance that falls
            like 4ζ/M.
        quadratic: δ, the rest of the variance of :math:`\langle g_m, g_l\rangle`: the part that falls like 2δ/M².
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

    How many are needed for a signal follows from the two parts of the variance of its estimate, :math:`4ζ/M + 2δ/M²`
    (:meth:`gradstats.stats.variance.signal_components.SignalComponents.prompts_to_resolve`). The range is that over the
    pilot's interval of the signal, and reaches to infinity where that does to 0; the assured size is that for the lower
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
    signal = row.signal_sq.value
    low, high = row.signal_sq.confidence_interval(level)
    assured = signal - float(stats.t.ppf(ASSURANCE, row.signal_sq.degrees)) * row.signal_sq.stderr

    def needed(of: float) -> int | float:
        return parts.prompts_to_resolve(of, signal, level)

    return SignalPlan(
        estimator=estimator,
        signal_sq=signal,
        linear=max(parts.linear, 0.0),
        quadratic=max(parts.quadratic, 0.0),
        confidence_level=confidence_level,
        n_prompts=needed(signal),
        n_prompts_low=needed(high),
        n_prompts_high=needed(low),
        n_prompts_assured=needed(assured),
        completions_per_prompt=pilot.splits[0].n_completions / pilot.n_prompts,  # pyright: ignore[reportGeneralTypeIssues]
        tokens_per_completion=pilot.splits[0].mean_length,  # pyright: ignore[reportGeneralTypeIssues]
        pilot_n_prompts=pilot.n_prompts,
    )
