"""Recorded settings of a sampler that differ from those of the scored distribution."""

import pytest

from gradstats.stats.on_policy import departures_of


@pytest.mark.parametrize(
    ("sampler", "scorer_temperature", "departures"),
    [
        ({"temperature": 0.6, "top_p": 0.95}, 1.0, ["top_p=0.95", "temperature=0.6"]),
        ({"temperature": 0.6}, 0.6, []),
        ({"temperature": 0.6}, 0.6000000001, []),
        ({"temperature": 0.6}, None, []),
        ({"top_k": -1, "top_p": 1, "min_p": None, "repetition_penalty": 1.0, "temperature": None}, 1.0, []),
        (
            {"top_k": 50, "min_p": 0.1, "repetition_penalty": 1.1},
            1.0,
            ["top_k=50", "min_p=0.1", "repetition_penalty=1.1"],
        ),
        ({}, 1.0, []),
    ],
)
def test_only_what_was_recorded_and_differs_is_a_departure(sampler, scorer_temperature, departures):
    assert departures_of(sampler, scorer_temperature) == departures
