"""Scoring many completions with one reward or several, and keeping count of what went wrong."""

from __future__ import annotations

import itertools
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradstats.prompts.problem import Problem
from gradstats.rewards.errors import ReferenceAnswerError, ScoringTimeoutError
from gradstats.rewards.registry import REWARDS, Reward, get_reward
from gradstats.system.worker import PROCESS, IsolatedError, IsolatedTimeoutError

#: One reward, several as "name=weight", or several as name → weight; None takes each problem's own.
RewardSpec = str | Reward | Sequence[str] | Mapping[str, Any] | None

_WEIGHTED = re.compile(r"(.+)=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)")
_TIMEOUTS = (ScoringTimeoutError, IsolatedTimeoutError)
# A reward that fails on so many completions without exception is broken.
_MANY = 8
_OWN = "each problem's own"


@dataclass(frozen=True)
class WeightedReward:
    """One of the rewards that are added up.

    Attributes:
        name: how it is named in tallies.
        weight: what its value is multiplied by; 0 only compares it with the others.
        function: the reward.
        built_in: whether it comes with this package.
    """

    name: str
    weight: float
    function: Reward
    built_in: bool


@dataclass(frozen=True)
class Grader:
    """Rewards with weights: a completion's reward is the weighted sum of their values.

    A reward that times out, raises, or gives no finite number counts 0 for that completion, and is counted.
    """

    rewards: tuple[WeightedReward, ...]

    @classmethod
    def make(cls, spec: RewardSpec, problems: Sequence[Problem]) -> Grader:
        """Look up the rewards and have them read the problems' reference answers, before anything is sampled.

        Args:
            spec: a name ("math", "reasoning_gym(threshold=0.5)", "module:function"), a function, names with weights
                (a mapping, or strings "name=weight"), or None for the reward that suits each problem.
            problems: what will be graded.

        Raises:
            ValueError: for unknown names, repeated ones or weights that are no finite numbers, and for a reference
                answer that math-verify cannot parse (the problem is named).
            ImportError: when a "module:function" cannot be imported.
        """
        grader = cls(tuple(_weighted(name, weight, problems) for name, weight in _entries(spec)))
        names = [reward.name for reward in grader.rewards]
        if len(set(names)) < len(names):
            raise ValueError(f"reward names {', '.join(names)}, one of them twice: add up its weights")
        for problem in problems:
            if any("math" in (reward.name, reward.name == _OWN and problem.reward) for reward in grader.rewards):
                _check_reference(problem)
        return grader

    def __call__(self, completion: str, problem: Problem) -> float:
        """The weighted sum of a single completion; what could not be scored counts 0 here too."""
        return self.grade([completion], [problem])[0][0]

    def describe(self) -> str | dict[str, float]:
        """What metadata record: the name of a single reward, or names with weights."""
        if len(self.rewards) == 1 and self.rewards[0].weight == 1:
            return self.rewards[0].name
        return {reward.name: reward.weight for reward in self.rewards}

    def grade(self, completions: Sequence[str], problems: Sequence[Problem]) -> tuple[list[float], dict[str, Any]]:
        """Score completions, one problem each.

        Returns:
            The weighted sums, and a tally (see :func:`gradstats.rollouts.grading_counts.merge_grading_counts`).

        Raises:
            ValueError: when a reward of the user's own failed on every one of eight or more completions.
        """
        totals = [0.0] * len(completions)
        tally: dict[str, Any] = {"completions": len(completions), "rewards": {}, "disagreements": {}}
        values: dict[str, list[float]] = {}
        for reward in self.rewards:
            counts: dict[str, Any] = {"weight": reward.weight, "timeouts": 0, "failures": 0, "first_failure": None}
            values[reward.name] = [
                _value(reward, text, problem, counts) for text, problem in zip(completions, problems, strict=True)
            ]
            if not reward.built_in and _MANY <= len(completions) == counts["failures"]:
                raise ValueError(
                    f"the reward {reward.name!r} failed on all of {len(completions)} completions; the first: "
                    f"{counts['first_failure']}"
                )
            tally["rewards"][reward.name] = counts
            for row, value in enumerate(values[reward.name]):
                totals[row] += 0.0 if math.isnan(value) else reward.weight * value
        for one, other in itertools.combinations(values, 2):
            pairs = [pair for pair in zip(values[one], values[other], strict=True) if not any(map(math.isnan, pair))]
            tally["disagreements"][f"{one} | {other}"] = sum(not math.isclose(*pair) for pair in pairs)
        return totals, tally


def _entries(spec: RewardSpec) -> list[tuple[str | Reward | None, float]]:
    if spec is None or callable(spec):
        return [(spec, 1.0)]
    if isinstance(spec, Mapping):
        entries: list[tuple[Any, Any]] = list(spec.items())
    else:
        entries = [_split(text) for text in ([spec] if isinstance(spec, str) else spec)]
    if not entries:
        raise ValueError("reward is empty: name at least one, or leave it out for the problem set's own")
    for name, weight in entries:
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
            raise ValueError(f"the weight of reward {name!r} is {weight!r}: give a finite number")
    return [(name, float(weight)) for name, weight in entries]


def _split(text: str) -> tuple[str, float]:
    """``"math=0.5"`` → ``("math", 0.5)``; a weight of 1 where none is told."""
    found = _WEIGHTED.fullmatch(text.strip())
    return (found.group(1).strip(), float(found.group(2))) if found else (text.strip(), 1.0)


def _weighted(name: str | Reward | None, weight: float, problems: Sequence[Problem]) -> WeightedReward:
    if name is None:
        own = {problem.reward for problem in problems}
        if len(own) != 1:
            return WeightedReward(_OWN, weight, get_reward(None), True)
        name = own.pop()
    label = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
    return WeightedReward(label, weight, get_reward(name), isinstance(name, str) and name.partition("(")[0] in REWARDS)


def _check_reference(problem: Problem) -> None:
    try:
        PROCESS.call("gradstats.rewards.math_scorer:check_reference", problem.answer)
    except (ReferenceAnswerError, *_TIMEOUTS) as error:
        raise ReferenceAnswerError(f"problem {problem.prompt_id!r}: {error}") from error


def _value(reward: WeightedReward, text: str, problem: Problem, counts: dict[str, Any]) -> float:
    """The reward's value, or NaN where it gave none, which is counted."""
    try:
        value = reward.function(text, problem)
    except _TIMEOUTS:
        counts["timeouts"] += 1
        return math.nan
    except Exception as error:
        # What a built-in reward raises otherwise (a parameter out of range) is wrong for every completion.
        if reward.built_in and not isinstance(error, IsolatedError):
            raise
        return _failed(counts, str(error) if reward.built_in else f"{type(error).__name__}: {error}")
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    return _failed(counts, f"it gave {value!r}, which is no finite number")


def _failed(counts: dict[str, Any], why: str) -> float:
    counts["failures"] += 1
    counts["first_failure"] = counts["first_failure"] or why[:200]
    return math.nan
