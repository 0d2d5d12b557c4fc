"""The common part of all plans: prompts, completions, tokens and hours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from gradstats.stats.printed import Printed
from gradstats.system.late import pd

#: The share of studies in which the planned size is enough.
ASSURANCE = 0.8
#: Plans above this number are reported as infinite.
MOST_PROMPTS = 10**12


@runtime_checkable
class Speed(Protocol):
    """The result of a dry run that a plan needs: seconds for a number of tokens."""

    @property
    def n_tokens(self) -> int:
        """Tokens of completions."""
        ...

    @property
    def sampling_seconds(self) -> int | float:
        """To draw them."""
        ...

    @property
    def measuring_seconds(self) -> int | float:
        """To differentiate them."""
        ...


@dataclass(frozen=True, kw_only=True, repr=False)
class PromptPlan(Printed):
    """The size that a question takes; whole numbers, infinite where no size is enough.

    Attributes:
        confidence_level: of the planned interval, and of the range of sizes.
        n_prompts: prompts needed, if the pilot's estimates are exactly right.
        n_prompts_low: lower end of the range of sizes that may be needed, as the pilot's estimates are uncertain.
        n_prompts_high: upper end of it.
        n_prompts_assured: prompts that are enough in 80 % of studies, over pilots and studies.
        completions_per_prompt: as in the pilot.
        tokens_per_completion: mean length in the pilot; NaN where it is not known.
        pilot_n_prompts: prompts of the pilot; None without one.
        seconds_per_token: of sampling and measuring, see :meth:`at_speed`; NaN where it is not known.
    """

    confidence_level: float
    n_prompts: int | float
    n_prompts_low: int | float
    n_prompts_high: int | float
    n_prompts_assured: int | float
    completions_per_prompt: float
    tokens_per_completion: float = math.nan
    pilot_n_prompts: int | None = None
    seconds_per_token: float = math.nan

    @property
    def n(self) -> int | float:
        """Completions of ``n_prompts``."""
        return self._completions(self.n_prompts)

    @property
    def n_assured(self) -> int | float:
        """Completions of ``n_prompts_assured``."""
        return self._completions(self.n_prompts_assured)

    @property
    def n_tokens(self) -> int | float:
        """Tokens of ``n_assured`` completions of the pilot's mean length."""
        return self.n_assured * self.tokens_per_completion

    @property
    def hours(self) -> int | float:
        """Hours that ``n_tokens`` take to sample and to measure, at the speed of a dry run."""
        return self.n_tokens * self.seconds_per_token / 3600.0

    def at_speed(self, speed: Speed) -> PromptPlan:
        """Return the same plan with its hours, from the cost that a dry run estimates."""
        seconds = speed.sampling_seconds + speed.measuring_seconds
        return replace(self, seconds_per_token=seconds / speed.n_tokens)

    def to_frame(self) -> pd.DataFrame:
        """Return a frame of one row."""
        derived = {name: getattr(self, name) for name in ("n", "n_assured", "n_tokens", "hours")}
        return pd.DataFrame([vars(self) | derived])

    def sentence(self) -> str:
        """Put the answer in words: the size that is enough in 80 % of studies."""
        aim = f"{self._aim()} in {ASSURANCE:.0%} of studies"
        if not np.isfinite(self.n_prompts_assured):
            low = f": at least {_count(self.n_prompts_low)}" if np.isfinite(self.n_prompts_low) else ""
            return f"The pilot is too small to say how many prompts {aim}{low}."
        cost = f"{_count(self.n_assured)} completions"
        if np.isfinite(self.n_tokens):
            cost += f", {_two_digits(self.n_tokens)} tokens"
        if np.isfinite(self.hours):
            cost += f", {self.hours:.2g} hours"
        return f"{_count(self.n_prompts_assured)} prompts ({cost}) {aim}."

    def sentences(self) -> list[str]:
        """Return the answer, and the range of sizes behind it."""
        behind = f"{self._goal()} takes {_count(self.n_prompts)} prompts"
        if self.pilot_n_prompts is not None:
            ends = f"{self.n_prompts_low:,.0f}, {self.n_prompts_high:,.0f}"
            known = ends if np.isfinite(self.n_prompts_high) else f"≥ {self.n_prompts_low:,.0f}"
            behind += f" [{known}] by the estimates of the pilot's {self.pilot_n_prompts:,}"
        return [self.sentence(), f"{behind}."]

    def _goal(self) -> str:
        """Return what is planned, with the level of its interval."""
        raise NotImplementedError

    def _aim(self) -> str:
        """Return what the prompts do, in a few words: a verb and its object."""
        raise NotImplementedError

    def _completions(self, n_prompts: int | float) -> int | float:
        return math.ceil(n_prompts * self.completions_per_prompt - 1e-9) if np.isfinite(n_prompts) else math.inf


def smallest(enough: Callable[[int], bool], fewest: int = 3) -> int | float:
    """Find the smallest number of prompts that is enough, if more are as well; infinite above a million million."""
    if enough(fewest):
        return fewest
    low, high = fewest, 2 * fewest
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_PROMPTS:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _count(number: int | float) -> str:
    return f"{number:,.0f}" if np.isfinite(number) else "more than 10¹²"


def _two_digits(number: int | float) -> str:
    rounded = round(number, 1 - math.floor(math.log10(number)))
    return f"{rounded:,.0f}"
