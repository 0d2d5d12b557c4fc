"""Counts of completions that could not be scored: sums over shards, and the sentence about them."""

from __future__ import annotations

import pytest

from gradstats.rewards.grading import (
    GradingCounts,
    RewardCounts,
    merge_grading_counts,
    ungraded_sentence,
    warn_ungraded,
)


def counts(completions, disagreements, **rewards) -> GradingCounts:
    """Counts of a shard; each reward as (timeouts, failures, first failure)."""
    return {
        "completions": completions,
        "rewards": {
            name: RewardCounts(weight=1.0, timeouts=timeouts, failures=failures, first_failure=first)
            for name, (timeouts, failures, first) in rewards.items()
        },
        "disagreements": disagreements,
    }


def test_tallies_add_up_and_a_clean_one_says_nothing():
    first = counts(3, {"math | exact": 1}, math=(0, 0, None), exact=(0, 0, None))
    both = merge_grading_counts([first, first])
    assert both["completions"] == 6
    assert both["disagreements"] == {"math | exact": 2}
    assert ungraded_sentence(both) is None
    assert ungraded_sentence(None) is None
    warn_ungraded(both)
    # the shards stay as they were
    assert first["disagreements"] == {"math | exact": 1}


def test_the_first_failure_of_the_first_shard_with_one_is_kept():
    shards = [
        counts(4, {}, math=(1, 0, None), exact=(0, 0, None)),
        counts(5, {}, math=(0, 2, "no number"), exact=(0, 1, "empty")),
        counts(6, {}, math=(3, 1, "too long"), exact=(0, 0, None)),
    ]
    merged = merge_grading_counts(shards)
    assert merged["rewards"]["math"] == {"weight": 1.0, "timeouts": 4, "failures": 3, "first_failure": "no number"}
    assert shards[0]["rewards"]["math"]["timeouts"] == 1
    sentence = ungraded_sentence(merged)
    assert sentence == (
        "some of 15 completions could not be scored and receive 0 from that reward; math: 4 timed out, 3 failed (the "
        "first: no number); exact: 0 timed out, 1 failed (the first: empty): correct the reward or the answers, then "
        "score again with `gradstats regrade`"
    )
    with pytest.warns(UserWarning, match="^some of 15 completions") as caught:
        warn_ungraded(merged)
    assert str(caught[0].message) == sentence


def test_no_shards_are_no_completions():
    assert merge_grading_counts([]) == {"completions": 0, "rewards": {}, "disagreements": {}}
