"""Which completions are drawn together, and what is refused before the first is drawn."""

from __future__ import annotations

import pandas as pd
import pytest

from gradstats.config.sections import SamplingSection
from gradstats.policy.policy import load_policy
from gradstats.prompts import Problem
from gradstats.sampling.plan import SamplingPlan
from gradstats.sampling.sample import sample

PROBLEMS = [
    Problem("long", "abc def", "z", "exact"),
    Problem("short", "q", "7", "exact"),
    Problem("mid", "ab c", "x", "exact"),
]


@pytest.fixture(scope="module")
def policy(policy_folder):
    return load_policy(policy_folder)


def test_any_batch_can_be_drawn_alone(policy):
    def plan():
        return SamplingPlan.make(
            policy,
            PROBLEMS,
            SamplingSection(group_size=4, max_new_tokens=8, seed=3, batch_size=5, reward="exact"),
        )

    whole = plan()
    in_order = [whole.draw(batch) for batch in range(whole.n_batches)]
    backwards = plan()
    for batch in reversed(range(backwards.n_batches)):
        pd.testing.assert_frame_equal(backwards.draw(batch).frame, in_order[batch].frame)
    assert [len(part) for part in in_order] == [5, 5, 2]


def test_prompts_that_leave_no_room_in_the_context_are_refused(policy):
    message = (
        r"max_new_tokens is 60, .* 9 tokens of prompt 'long' .* context of 64: lower it to 55 or less, or drop the 2"
    )
    with pytest.raises(ValueError, match=message):
        sample(policy, PROBLEMS, max_new_tokens=60, progress=False)
    with pytest.raises(ValueError, match=r"context of 64: drop the 1 longest"):
        sample(policy, [Problem("huge", "ab " * 30, "x"), PROBLEMS[1]], max_new_tokens=4, progress=False)


def test_no_problems_and_repeated_names_are_refused(policy):
    with pytest.raises(ValueError, match="problems is empty"):
        sample(policy, [], progress=False)
    with pytest.raises(ValueError, match="problems repeat a prompt_id"):
        sample(policy, [PROBLEMS[0], PROBLEMS[0]], progress=False)
