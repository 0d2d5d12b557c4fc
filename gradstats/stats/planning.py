"""How many sequences does an α of a given precision take?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from gradstats.stats.length_scaling import LengthScalingFit


@dataclass(frozen=True)
class AlphaPlan:
    """What a measurement of α would take.

    Attributes:
        half_width: wanted half-width of the interval of α.
        confidence_level: of that interval.
        n_prompts: prompts needed.
        n: sequences needed, at as many completions a prompt as in the pilot.
        pilot_stderr: standard error of α in the pilot.
        pilot_n_prompts: prompts of the pilot.
    """

    half_width: float
    confidence_level: float
    n_prompts: int
    n: int
    pilot_stderr: float
    pilot_n_prompts: int

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame([vars(self)])


def plan_alpha(pilot: LengthScalingFit, half_width: float, confidence_level: float = 0.95) -> AlphaPlan:
    r"""Says how many prompts give α ± ``half_width``, from a pilot fit.

    The standard error falls like one over the root of the number of prompts, at the pilot's completions a prompt,
    range of lengths and noise; the Student quantile is taken at the number found. A wider range of lengths needs
    fewer.

    Args:
        pilot: a fit of the same policy and task, however small.
        half_width: wanted half-width of the interval.
        confidence_level: of the interval.

    Raises:
        ValueError: for a half-width that is not positive, or a pilot without a standard error.
    """
    if not half_width > 0:
        raise ValueError(f"half_width={half_width:g} must be positive, for example 0.05")
    if not pilot.alpha_stderr > 0:
        raise ValueError("the pilot has no standard error of alpha: give one with noise and at least 3 prompts")

    def margin(n_prompts: int) -> float:
        quantile = float(stats.t.ppf(0.5 + confidence_level / 2.0, n_prompts - 2))
        return quantile * pilot.alpha_stderr * math.sqrt(pilot.n_prompts / n_prompts)

    normal = float(stats.norm.ppf(0.5 + confidence_level / 2.0))
    needed = max(3, math.ceil(pilot.n_prompts * (normal * pilot.alpha_stderr / half_width) ** 2))
    while margin(needed) > half_width:
        needed += 1
    return AlphaPlan(
        half_width=half_width,
        confidence_level=confidence_level,
        n_prompts=needed,
        n=math.ceil(needed * pilot.n / pilot.n_prompts),
        pilot_stderr=pilot.alpha_stderr,
        pilot_n_prompts=pilot.n_prompts,
    )
