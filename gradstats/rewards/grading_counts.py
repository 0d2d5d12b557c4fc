"""Counts of grading: how often each reward timed out or failed, and how often two rewards disagree."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TypedDict


class RewardCounts(TypedDict):
    """Completions that one reward could not score.

    Attributes:
        weight: of the reward in the total.
        timeouts: completions on which it took too long.
        failures: completions on which it raised.
        first_failure: the message of the first of those, or None.
    """

    weight: float
    timeouts: int
    failures: int
    first_failure: str | None


class GradingCounts(TypedDict):
    """The entry "grading" of rollouts' metadata.

    Attributes:
        completions: how many were scored.
        rewards: counts of each reward, by name.
        disagreements: for each pair of rewards (``"math | exact"``), on how many completions their values differ.
    """

    completions: int
    rewards: dict[str, RewardCounts]
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
    """Return a sentence on completions that a reward could not score, or None when there are none.

    Args:
        counts: :class:`GradingCounts`, or None where nothing was recorded.
    """
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
