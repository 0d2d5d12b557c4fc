"""The number of sequences that an α of a given precision needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.length_scaling.fit import LengthScalingFit


@dataclass(frozen=True)
class AlphaPlan:
    """The size of a measurement of α with a given precision.

    Attributes:
        half_width: wanted half-width of the interval of α.
        confidence_level: of that interval.
        n_prompts: prompts needed.
        n: sequences needed, at as many completions per prompt as in the pilot (one, without a pilot).
        stderr_of_one: standard error of α times the root of the number of prompts.
        pilot_n_prompts: prompts of the pilot; None without one.
    """

    half_width: float
    confidence_level: float
    n_prompts: int
    n: int
    stderr_of_one: float
    pilot_n_prompts: int | None

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame([vars(self)])

    def sentence(self) -> str:
        """Return the answer in words."""
        source = "independent sequences with that noise and spread of lengths"
        if self.pilot_n_prompts is not None:
            source = f"similar to the pilot's {self.pilot_n_prompts} prompts"
        return (
            f"α ± {self.half_width:g} ({self.confidence_level:.0%} interval) takes {self.n:,} sequences of "
            f"{self.n_prompts:,} prompts, if they are {source}."
        )


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

    Args:
        pilot: a fit of the same policy and task, however small.
        half_width: wanted half-width of the interval.
        confidence_level: of the interval.
        noise: σ, the standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: s, the standard deviation of log T, instead of a pilot.

    Raises:
        TypeError: when neither or both of a pilot and the two numbers are given.
        ValueError: for a half-width, noise or spread that is not positive, or a pilot without a standard error.

    Example:
        >>> import gradstats as gs
        >>> gs.plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5).n
        387
        >>> points = gs.data.load("gloeckle2026")
        >>> pilot = gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm)
        >>> gs.plan_alpha(pilot, half_width=0.1).n_prompts
        219
    """
    if (pilot is None) == (noise is None and length_spread is None):
        raise TypeError("give either a pilot fit, or both noise= and length_spread=")
    for name, value, example in (
        ("half_width", half_width, 0.05),
        ("noise", noise, 1.0),
        ("length_spread", length_spread, 0.6),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value:g} must be positive, for example {example:g}")
    level = require_level(confidence_level)
    if pilot is not None:
        if not pilot.alpha_stderr > 0:
            raise ValueError("the pilot has no standard error of alpha: give one with noise and at least 3 prompts")
        of_one, per_prompt = pilot.alpha_stderr * math.sqrt(pilot.n_prompts), pilot.n / pilot.n_prompts
    elif noise is None or length_spread is None:
        raise TypeError("give both noise= and length_spread=: the error of a slope is proportional to their quotient")
    else:
        of_one, per_prompt = noise / (2.0 * length_spread), 1.0

    def margin(n_prompts: int) -> float:
        quantile = float(stats.t.ppf(0.5 + level / 2.0, n_prompts - 2))
        return quantile * of_one / math.sqrt(n_prompts)

    normal = float(stats.norm.ppf(0.5 + level / 2.0))
    needed = max(3, math.ceil((normal * of_one / half_width) ** 2))
    while margin(needed) > half_width:
        needed += 1
    return AlphaPlan(
        half_width=half_width,
        confidence_level=confidence_level,
        n_prompts=needed,
        n=math.ceil(needed * per_prompt),
        stderr_of_one=of_one,
        pilot_n_prompts=None if pilot is None else pilot.n_prompts,
    )
