"""How grading went: how often each reward timed out or failed, and how often two rewards disagree."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any


def merge_tallies(tallies: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sum of tallies, as they stand in rollouts' metadata under "grading".

    A tally holds ``completions``; for each reward under ``rewards`` its ``weight``, ``timeouts``, ``failures`` and
    ``first_failure``; and under ``disagreements`` for each pair of rewards (``"math | exact"``) on how many
    completions they gave different values.
    """
    merged: dict[str, Any] = {"completions": 0, "rewards": {}, "disagreements": {}}
    for tally in tallies:
        merged["completions"] += tally["completions"]
        for name, theirs in tally["rewards"].items():
            ours = merged["rewards"].setdefault(
                name, {"weight": theirs["weight"], "timeouts": 0, "failures": 0, "first_failure": None}
            )
            for count in ("timeouts", "failures"):
                ours[count] += theirs[count]
            ours["first_failure"] = ours["first_failure"] or theirs["first_failure"]
        for pair, count in tally["disagreements"].items():
            merged["disagreements"][pair] = merged["disagreements"].get(pair, 0) + count
    return merged


def ungraded_sentence(tally: dict[str, Any] | None) -> str | None:
    """What to know of completions that a reward could not score, or None when there are none."""
    if tally is None:
        return None
    parts = []
    for name, counts in tally["rewards"].items():
        if counts["timeouts"] or counts["failures"]:
            first = f" (the first: {counts['first_failure']})" if counts["first_failure"] else ""
            parts.append(f"{name}: {counts['timeouts']} timed out, {counts['failures']} failed{first}")
    if not parts:
        return None
    return (
        f"of {tally['completions']} completions some could not be scored and count 0 from that reward; "
        f"{'; '.join(parts)}: mend the reward or the answers, then score anew with `gradstats regrade`"
    )


def warn_ungraded(tally: dict[str, Any] | None) -> None:
    """Warn of completions that a reward could not score."""
    if sentence := ungraded_sentence(tally):
        warnings.warn(sentence, UserWarning, stacklevel=3)
