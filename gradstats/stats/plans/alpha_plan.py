"""The number of prompts that an α of a given precision needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.length_scaling.alpha import LengthScalingFit
from gradstats.stats.plans.prompt_plan import ASSURANCE, PromptPlan, smallest


@dataclass(frozen=True, kw_only=True, repr=False)
class AlphaPlan(PromptPlan):
    r"""The size of a measurement of α with a given precision, :math:`t\,\mathrm{se}_1/\sqrt M ≤ h` of M prompts.

    Attributes:
        half_width: h, the wanted half-width of the interval of α.
        stderr_of_one: :math:`\mathrm{se}_1`, the standard error of α times the root of the number of prompts.
    """

    half_width: float
    stderr_of_one: float

    def _goal(self) -> str:
        return f"α ± {self.half_width:g} ({self.confidence_level:.0%} interval)"


def plan_alpha(
    pilot: LengthScalingFit | None = None,
    half_width: float = 0.05,
    confidence_level: float = CONFIDENCE_LEVEL,
    *,
    noise: float | None = None,
    length_spread: float | None = None,
) -> AlphaPlan:
    r"""Compute how many prompts give α ± ``half_width``, from a pilot fit or from two numbers.

    The standard error falls like one over the root of the number of prompts, at the pilot's completions per prompt,
    range of lengths and noise; the Student quantile is that of the resulting number. Without a pilot, independent
    sequences have :math:`\mathrm{se}(α) = \frac{σ}{2 s \sqrt n}`, σ the noise about the line and s the spread of
    lengths. A wider range of lengths needs fewer.

    A pilot's squared standard error is taken as a multiple of χ² with ν degrees of freedom, 1/ν being the sum of that
    of the error (Satterthwaite's) and of that of the spread of lengths, which the next study will not share. So is that
    of the study, with degrees that grow with its size: the half-width is reached in 80 % of studies where the quantile
    of their F-distributed quotient allows for it.

    Args:
        pilot: a fit of the same policy and task, however small.
        half_width: wanted half-width of the interval.
        confidence_level: of the interval, and of the range of sizes.
        noise: σ, the standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: s, the standard deviation of log T, instead of a pilot.

    Raises:
        TypeError: when neither or both of a pilot and the two numbers are given, or the pilot is not a fit.
        ValueError: for a half-width, noise or spread that is not positive, or a pilot without a standard error.

    Example:
        >>> import gradstats as gs
        >>> gs.plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5).n
        387
        >>> points = gs.data.load("gloeckle2026")
        >>> pilot = gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm)
        >>> plan = gs.plan_alpha(pilot, half_width=0.1)
        >>> plan.n_prompts, plan.n_prompts_low < plan.n_prompts < plan.n_prompts_assured < plan.n_prompts_high
        (220, True)
    """
    if (pilot is None) == (noise is None and length_spread is None):
        raise TypeError("give either a pilot fit, or both noise= and length_spread=")
    if pilot is not None and not isinstance(pilot, LengthScalingFit):
        raise TypeError(f"pilot is a {type(pilot).__name__}: give a fit, for example gs.fit_length_scaling(measured)")
    for name, value, example in (
        ("half_width", half_width, 0.05),
        ("noise", noise, 1.0),
        ("length_spread", length_spread, 0.6),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value:g} must be positive, for example {example:g}")
    level = require_level(confidence_level)
    degrees_of_one, degrees = 0.5, math.inf
    if pilot is not None:
        if not pilot.alpha_stderr > 0:
            raise ValueError("the pilot has no standard error of alpha: give one with noise and at least 3 prompts")
        of_one, per_prompt = pilot.alpha_stderr * math.sqrt(pilot.n_prompts), pilot.n / pilot.n_prompts
        degrees = 1.0 / (1.0 / pilot.line.degrees() + 1.0 / (pilot.n_prompts - 1.0))
        degrees_of_one = degrees / pilot.n_prompts
    elif noise is None or length_spread is None:
        raise TypeError("give both noise= and length_spread=: the error of a slope is proportional to their quotient")
    else:
        of_one, per_prompt = noise / (2.0 * length_spread), 1.0

    def enough(n_prompts: int, factor: float) -> bool:
        quantile = float(stats.t.ppf(0.5 + level / 2.0, n_prompts - 2))
        return quantile * of_one * math.sqrt(factor / n_prompts) <= half_width

    def quotient(n_prompts: int) -> float:
        """Return the quantile of (study's variance)/(pilot's variance)."""
        ahead = n_prompts * degrees_of_one
        if np.isfinite(degrees):
            return float(stats.f.ppf(ASSURANCE, ahead, degrees))
        return float(stats.chi2.ppf(ASSURANCE, ahead) / ahead)

    low, high = (
        1.0 / stats.chi2.ppf(0.5 + side * level / 2.0, degrees) * degrees if np.isfinite(degrees) else 1.0
        for side in (1.0, -1.0)
    )
    return AlphaPlan(
        half_width=half_width,
        stderr_of_one=of_one,
        confidence_level=confidence_level,
        n_prompts=smallest(lambda m: enough(m, 1.0)),
        n_prompts_low=smallest(lambda m: enough(m, float(low))),
        n_prompts_high=smallest(lambda m: enough(m, float(high))),
        n_prompts_assured=smallest(lambda m: enough(m, max(quotient(m), 1.0))),
        completions_per_prompt=per_prompt,
        tokens_per_completion=math.nan if pilot is None else float(pilot.lengths.mean()),
        pilot_n_prompts=None if pilot is None else pilot.n_prompts,
    )
