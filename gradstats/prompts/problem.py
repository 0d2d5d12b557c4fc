"""A problem: the question put to the policy, and its reference answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Options of a source of problems by name; reasoning-gym's tasks accept any values that JSON can hold.
Settings = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One problem of a set.

    Attributes:
        prompt_id: name of the problem, unique in its set and stable from run to run.
        prompt: the text of the user's message; the policy's chat template goes around it.
        answer: the reference answer, as text.
        reward: name of the reward function that suits the set (see :func:`gradstats.rewards.registry.get_reward`).
        details: what a reward function needs beyond the answer, such as the settings of a reasoning-gym task.
    """

    prompt_id: str
    prompt: str
    answer: str
    reward: str = "math"
    details: Settings = field(default_factory=dict)
