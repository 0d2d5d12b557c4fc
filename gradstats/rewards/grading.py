"""Score completions with one reward or several, and count time limits exceeded, failures and disagreements."""

from __future__ import annotations

import itertools
import math
import numbers
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from gradstats.config.experiment import Experiment
from gradstats.config.validation import naming
from gradstats.prompts.problem import Problem
from gradstats.rewards.registry import REWARDS, Reward, get_reward
from gradstats.system.worker import PROCESS, IsolatedError, IsolatedTimeoutError


class ScoringTimeoutError(TimeoutError):
    """Scoring a completion exceeded its time limit."""


class ReferenceAnswerError(ValueError):
    """The scorer cannot parse the reference answer."""


class MisreadReferenceWarning(UserWarning):
    """Reference answers are not read as they are written; a run shows it before it samples, and among its notes."""


class RewardCounts(TypedDict):
    """Completions that one reward could not score."""

    weight: float
    timeouts: int
    failures: int
    first_failure: str | None  # its message


class GradingCounts(TypedDict):
    """The entry "grading" of rollouts' metadata."""

    completions: int
    rewards: dict[str, RewardCounts]
    # for each pair of rewards ("math | exact"), on how many completions their values differ
    disagreements: dict[str, int]


def merge_grading_counts(shards: Iterable[GradingCounts]) -> GradingCounts:
    """Add up the :class:`GradingCounts` of several shards."""
    total: GradingCounts = {"completions": 0, "rewards": {}, "disagreements": {}}
    for shard in shards:
        total["completions"] += shard["completions"]
        for name, counts in shard["rewards"].items():
            summed = total["rewards"].setdefault(
                name, RewardCounts(weight=counts["weight"], timeouts=0, failures=0, first_failure=None)
            )
            summed["timeouts"] += counts["timeouts"]
            summed["failures"] += counts["failures"]
            summed["first_failure"] = summed["first_failure"] or counts["first_failure"]
        for pair, count in shard["disagreements"].items():
            total["disagreements"][pair] = total["disagreements"].get(pair, 0) + count
    return total


def ungraded_sentence(counts: GradingCounts | None) -> str | None:
    """Return a sentence on completions that a reward could not score, or None when there are none."""
    if counts is None:
        return None
    problems = []
    for name, reward in counts["rewards"].items():
        if reward["timeouts"] or reward["failures"]:
            first = f" (the first: {reward['first_failure']})" if reward["first_failure"] else ""
            problems.append(f"{name}: {reward['timeouts']} timed out, {reward['failures']} failed{first}")
    if not problems:
        return None
    return (
        f"some of {counts['completions']} completions could not be scored and receive 0 from that reward; "
        f"{'; '.join(problems)}: correct the reward or the answers, then score again with `gradstats regrade`"
    )


def warn_ungraded(counts: GradingCounts | None) -> None:
    """Warn of completions that a reward could not score; ``counts`` as in :func:`ungraded_sentence`."""
    if sentence := ungraded_sentence(counts):
        warnings.warn(sentence, UserWarning, stacklevel=3)


#: One reward, several as "name=weight", or several as name → weight; None uses the reward named by each problem.
RewardSpec = str | Reward | Sequence[str] | Mapping[str, object] | None

_WEIGHTED = re.compile(r"(.+)=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)")
_TIMEOUTS = (ScoringTimeoutError, IsolatedTimeoutError)
# A reward that fails on every one of at least this many completions is broken.
_MANY = 8
_OWN = "each problem's own"
# Beyond this many references that are misread the warning states only how many there are.
_MOST_NAMED = 100


@dataclass(frozen=True)
class WeightedReward:
    """One of the rewards that are added up."""

    name: str
    weight: float  # the factor of its value; with 0 it is only compared with the others
    function: Reward
    built_in: bool


@dataclass(frozen=True)
class Grader:
    """Rewards with weights: a completion's reward is the weighted sum of their values.

    A reward that exceeds its time limit, raises an error, or does not return a finite number adds 0 for that
    completion, and is counted.
    """

    rewards: tuple[WeightedReward, ...]

    @classmethod
    def make(cls, spec: RewardSpec, problems: Sequence[Problem]) -> Grader:
        """Find the rewards and check how they read the reference answers, before anything is sampled.

        A reference that the reward "math" does not read as it is written is warned of, all of them at once.
        """
        grader = cls(tuple(_weighted(name, weight, problems) for name, weight in _entries(spec)))
        names = [reward.name for reward in grader.rewards]
        if len(set(names)) < len(names):
            raise ValueError(f"reward repeats a name ({', '.join(names)}): give it once, with the summed weight")
        misread = {
            problem.prompt_id: (problem.answer, reading)
            for problem in problems
            if any("math" in (reward.name, reward.name == _OWN and problem.reward) for reward in grader.rewards)
            and (reading := _misread(problem)) is not None
        }
        if misread:
            warnings.warn(_misread_sentence(misread, len(problems)), MisreadReferenceWarning, stacklevel=2)
        return grader

    def __call__(self, completion: str, problem: Problem) -> float:
        """Return the weighted sum for a single completion; a reward that cannot score it adds 0."""
        return self.grade([completion], [problem])[0][0]

    def describe(self) -> str | dict[str, float]:
        """Return the form recorded in metadata: the name of a single reward, or names with weights."""
        if len(self.rewards) == 1 and self.rewards[0].weight == 1:
            return self.rewards[0].name
        return {reward.name: reward.weight for reward in self.rewards}

    def grade(self, completions: Sequence[str], problems: Sequence[Problem]) -> tuple[list[float], GradingCounts]:
        """Score completions, one problem each."""
        totals = [0.0] * len(completions)
        counted: GradingCounts = {"completions": len(completions), "rewards": {}, "disagreements": {}}
        values: dict[str, list[float]] = {}
        for reward in self.rewards:
            counts: RewardCounts = {"weight": reward.weight, "timeouts": 0, "failures": 0, "first_failure": None}
            values[reward.name] = [
                _value(reward, text, problem, counts) for text, problem in zip(completions, problems, strict=True)
            ]
            if not reward.built_in and _MANY <= len(completions) == counts["failures"]:
                raise ValueError(
                    f"the reward {reward.name!r} failed on all of {len(completions)} completions; the first: "
                    f"{counts['first_failure']}"
                )
            counted["rewards"][reward.name] = counts
            for row, value in enumerate(values[reward.name]):
                totals[row] += 0.0 if math.isnan(value) else reward.weight * value
        for one, other in itertools.combinations(values, 2):
            pairs = [pair for pair in zip(values[one], values[other], strict=True) if not any(map(math.isnan, pair))]
            counted["disagreements"][f"{one} | {other}"] = sum(not math.isclose(*pair) for pair in pairs)
        return totals, counted


def _entries(spec: RewardSpec) -> list[tuple[str | Reward | None, float]]:
    if spec is None or callable(spec):
        return [(spec, 1.0)]
    if isinstance(spec, Mapping):
        entries: Sequence[tuple[str, object]] = list(spec.items())
    else:
        entries = [_split(text) for text in ([spec] if isinstance(spec, str) else spec)]
    if not entries:
        raise ValueError("reward is empty: name at least one, or leave it out for the reward of the problem set")
    weighted = []
    for name, weight in entries:
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
            raise ValueError(f"the weight of reward {name!r} is {weight!r}: give a finite number")
        weighted.append((name, float(weight)))
    return weighted


def _split(text: str) -> tuple[str, float]:
    """Return ``"math=0.5"`` → ``("math", 0.5)``; the weight is 1 where none is given."""
    match = _WEIGHTED.fullmatch(text.strip())
    return (match.group(1).strip(), float(match.group(2))) if match else (text.strip(), 1.0)


def _weighted(name: str | Reward | None, weight: float, problems: Sequence[Problem]) -> WeightedReward:
    if name is None:
        named = {problem.reward for problem in problems}
        if len(named) != 1:
            return WeightedReward(_OWN, weight, get_reward(None), True)
        name = named.pop()
    label = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
    return WeightedReward(label, weight, get_reward(name), isinstance(name, str) and name.partition("(")[0] in REWARDS)


def _misread(problem: Problem) -> str | None:
    try:
        return PROCESS.call("gradstats.rewards.math_scorer:check_reference", problem.answer)
    except (ReferenceAnswerError, *_TIMEOUTS) as error:
        raise ReferenceAnswerError(f"problem {problem.prompt_id!r}: {error}") from error


def _misread_sentence(misread: Mapping[str, tuple[str, str]], n_problems: int) -> str:
    rows = [f"{name!r}: {answer!r} as {reading}" for name, (answer, reading) in misread.items()]
    more = f", and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return (
        f"math-verify does not read {len(rows)} of {n_problems} reference answers as they are written "
        f"({'; '.join(rows[:_MOST_NAMED])}{more}): only a completion with the same text gets their reward; write each "
        "as one value, or choose another reward"
    )


def _value(reward: WeightedReward, text: str, problem: Problem, counts: RewardCounts) -> float:
    """Return the reward's value, or NaN where it could not score the completion, which is counted."""
    try:
        value = reward.function(text, problem)
    except _TIMEOUTS:
        counts["timeouts"] += 1
        return math.nan
    except (Exception, SystemExit) as error:
        # Any other error of a built-in reward (a parameter out of range) concerns every completion.
        if reward.built_in and not isinstance(error, IsolatedError):
            raise
        return _failed(counts, str(error) if isinstance(error, IsolatedError) else f"{type(error).__name__}: {error}")
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    return _failed(counts, f"it returned {value!r}, which is not a finite number")


def _failed(counts: RewardCounts, reason: str) -> float:
    counts["failures"] += 1
    counts["first_failure"] = counts["first_failure"] or reason[:200]
    return math.nan


def check(experiment: Experiment) -> None:
    """Refuse rewards of an experiment that cannot be found."""
    with naming("sampling.reward"):
        Grader.make(experiment.sampling.reward, [])
