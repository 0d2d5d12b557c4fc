r"""Temperatures that the surprises of tokens exclude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from gradstats.stats.jackknife import require_level

# Relative to the scored temperature. Beyond these ends nothing is excluded.
TEMPERATURES = np.geomspace(0.5, 2.0, 41)


@dataclass(frozen=True)
class TemperatureTest:
    r"""For each temperature, whether the tokens can have been drawn at it.

    With :math:`d = -\log π(y) - H` of a token drawn at τ times the scored temperature, π over the sampled distribution
    is proportional to :math:`e^{-δd}`, δ = 1 − 1/τ, so that :math:`E[d\,e^{-δd}] = 0` exactly, given the tokens before.

    Attributes:
        temperatures: (k,) τ, ascending.
        means: (k,) the mean over prompts of :math:`\sum_t d_t e^{-δ d_t}`, which falls with τ.
        stderrs: (k,) its standard error.
        degrees: degrees of freedom of the Student quantile.
    """

    temperatures: Float[np.ndarray, " k"]
    means: Float[np.ndarray, " k"]
    stderrs: Float[np.ndarray, " k"]
    degrees: float

    def compatible(self, confidence_level: float) -> tuple[float, float]:
        """Return the lowest and the highest τ that is not excluded.

        0 and infinity where nothing is excluded between 0.5 and 2; NaN where all of them are, or no token is uncertain.

        Args:
            confidence_level: the probability, at least, with which the true τ is not excluded.
        """
        quantile = float(stats.t.ppf(0.5 + require_level(confidence_level) / 2.0, self.degrees))
        if not np.all(self.stderrs > 0):
            return np.nan, np.nan
        at = np.log(self.temperatures)
        t = np.minimum.accumulate(self.means / self.stderrs)  # falls with τ but for noise far from the estimate
        if t[-1] > quantile or t[0] < -quantile:
            return np.nan, np.nan
        low = 0.0 if t[0] <= quantile else float(np.exp(np.interp(-quantile, -t, at)))
        high = np.inf if t[-1] >= -quantile else float(np.exp(np.interp(quantile, -t, at)))
        return low, high


def temperature_test(excess: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]) -> TemperatureTest:
    """Test every temperature on a grid.

    Args:
        excess: for each completion, d of its tokens, in nats.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    tokens = np.concatenate(list(excess))
    owner = np.repeat(prompts, [len(d) for d in excess])
    sizes = np.bincount(prompts)
    means, stderrs = [], []
    for temperature in TEMPERATURES:
        tilted = tokens * np.exp(-(1.0 - 1.0 / temperature) * tokens)
        by_prompt = np.bincount(owner, weights=tilted, minlength=len(sizes)) / sizes
        means.append(by_prompt.mean())
        stderrs.append(by_prompt.std(ddof=1) / np.sqrt(len(sizes)))
    return TemperatureTest(TEMPERATURES, np.array(means), np.array(stderrs), len(sizes) - 1.0)
