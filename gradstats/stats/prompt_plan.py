"""The arithmetic of plans: the smallest number of prompts whose study is as precise as wanted, and its range."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from gradstats.stats.jackknife import Interval

#: The share of studies in which the planned size is enough.
ASSURANCE = 0.8
#: Plans above this number are reported as infinite.
_MOST_PROMPTS = 10**12
_NODES = 400


@dataclass(frozen=True)
class PlannedPrompts:
    """How many prompts are enough; whole numbers, infinite where no number is."""

    n_prompts: int | float  # if the pilot's estimates are exactly right
    n_prompts_low: int | float  # ends of the range, as these are uncertain
    n_prompts_high: int | float
    n_prompts_assured: int | float  # that are enough in 80 % of studies, over pilots and studies


def smallest(enough: Callable[[int], bool], fewest: int = 3) -> int | float:
    """Find the smallest number of prompts that is enough, if more are as well; infinite above a million million."""
    if enough(fewest):
        return fewest
    low, high = fewest, 2 * fewest
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_PROMPTS:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _chi_squared_quantile(probability: npt.ArrayLike, degrees: float) -> Any:
    return 2.0 * scipy.special.gammaincinv(degrees / 2.0, probability)


def prompts_for_slope(
    stderr_of_one: float, half_width: float, level: float, *, degrees: float, degrees_of_one: float
) -> PlannedPrompts:
    r"""Plan :math:`t\,\mathrm{se}_1/\sqrt M \le h` of a slope.

    Args:
        stderr_of_one: se₁, the standard error times the root of the number of prompts.
        half_width: h.
        level: of the interval, and of the range.
        degrees: degrees of freedom of the pilot's squared standard error; infinite where it is known.
        degrees_of_one: those of the study's, for each of its prompts.
    """

    def enough(n_prompts: int, factor: float) -> bool:
        quantile = float(scipy.special.stdtrit(n_prompts - 2, 0.5 + level / 2.0))
        return quantile * stderr_of_one * math.sqrt(factor / n_prompts) <= half_width

    def quotient(n_prompts: int) -> float:
        """Return the quantile of (study's variance)/(pilot's variance)."""
        ahead = n_prompts * degrees_of_one
        if np.isfinite(degrees):
            return float(scipy.special.fdtri(ahead, degrees, ASSURANCE))
        return float(_chi_squared_quantile(ASSURANCE, ahead) / ahead)

    low, high = (
        1.0 / _chi_squared_quantile(0.5 + side * level / 2.0, degrees) * degrees if np.isfinite(degrees) else 1.0
        for side in (1.0, -1.0)
    )
    return PlannedPrompts(
        smallest(lambda m: enough(m, 1.0)),
        smallest(lambda m: enough(m, float(low))),
        smallest(lambda m: enough(m, float(high))),
        smallest(lambda m: enough(m, max(quotient(m), 1.0))),
    )


def prompts_for_logarithm(
    stderr_of_one: float,
    distance: float,
    level: float,
    *,
    degrees: float,
    fewest: int,
    power: float,
    excess_of_one: float = 0.0,
) -> PlannedPrompts:
    """Plan an interval of a logarithm that is narrow enough, or with a power excludes what lies at a distance.

    Args:
        stderr_of_one: the standard error times the root of the number of prompts.
        distance: the wanted half-width, or how far away what is to be excluded lies.
        level: of the interval, and of the range.
        degrees: degrees of freedom of the pilot's squared standard error.
        fewest: the smallest number of prompts to plan.
        power: the share of studies that exclude it; 0 where the width alone is planned.
        excess_of_one: by how many standard errors an end is further away than Student's where few prompts carry the
            tail on its side, times the root of the number of prompts: skewness falls so.
    """

    def enough(n: int, factor: float) -> bool:
        wide = float(scipy.special.stdtrit(n - 1, 0.5 + level / 2.0) - scipy.special.ndtri(0.5 + level / 2.0))
        wide += excess_of_one / math.sqrt(n)
        return (factor + wide) * stderr_of_one / math.sqrt(n) <= distance

    z = float(scipy.special.ndtri(0.5 + level / 2.0))
    at_power = z + (float(scipy.special.ndtri(power)) if power else 0.0)
    shrink, grow = (
        math.sqrt(degrees / _chi_squared_quantile(0.5 + side * level / 2.0, degrees)) for side in (1.0, -1.0)
    )
    if power:
        assured = _standard_errors_apart(level, degrees, power)
    else:
        # The study's squared standard error over the pilot's: the pilot's has as many degrees of freedom, the study's
        # at least so many.
        assured = z * math.sqrt(max(float(scipy.special.fdtri(degrees, degrees, ASSURANCE)), 1.0))
    factors = (at_power, at_power * shrink, at_power * grow, assured)
    return PlannedPrompts(*(smallest(partial(enough, factor=factor), fewest) for factor in factors))


def _standard_errors_apart(level: float, degrees: float, power: float) -> float:
    """Find how many of the pilot's standard errors apart an effect is found with a power, as they are uncertain.

    The c at which E Φ(c·X − z) is the power, with X² a χ² over its degrees of freedom.
    """
    at = (np.arange(_NODES) + 0.5) / _NODES
    spread = np.sqrt(_chi_squared_quantile(at, degrees) / degrees)
    z = float(scipy.special.ndtri(0.5 + level / 2.0))
    root = scipy.optimize.brentq(lambda c: float(scipy.special.ndtr(c * spread - z).mean()) - power, 0.0, 1e3)
    return float(root)  # pyright: ignore[reportArgumentType]  # a pair only with full_output


def prompts_for_factor(
    in_study: Callable[[int, float], Interval],
    factor: float,
    level: float,
    *,
    signal: float,
    stderr: float,
    degrees: float,
) -> PlannedPrompts:
    """Plan an interval ``(low, high)`` that ends within a factor f of the value v: v/f ≤ low and high ≤ f·v.

    Args:
        in_study: v with its interval, of a study of so many prompts and with such a signal.
        factor: f.
        level: of the range.
        signal: the pilot's.
        stderr: its standard error.
        degrees: degrees of freedom of that.
    """

    def enough(n_prompts: int, at: float) -> bool:
        value, low, high = in_study(n_prompts, at)
        return bool(high <= factor * value and value <= factor * low)

    def needed(deviation: float) -> int | float:
        at = signal + deviation * stderr
        return smallest(partial(enough, at=at)) if at > 0.0 else math.inf

    z, z_80 = (float(scipy.special.stdtrit(degrees, at)) for at in (0.5 + level / 2.0, ASSURANCE))
    return PlannedPrompts(needed(0.0), needed(z), needed(-z), needed(-z_80))
