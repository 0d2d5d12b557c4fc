"""Warnings that never stop a training run."""

from __future__ import annotations

import warnings

import pytest

from gradstats.integrations.training_record import Complaints


def test_each_reason_is_given_once():
    complaints = Complaints()
    with warnings.catch_warnings(record=True) as caught:
        complaints.say("step 3 was skipped", ValueError("no gradient\nat all"))
        complaints.say("step 4 was skipped", ValueError("no gradient"))
        complaints.say("step 5 was skipped", ZeroDivisionError())
    assert [str(one.message) for one in caught] == [
        "step 3 was skipped (no gradient); training continues",
        "step 5 was skipped (ZeroDivisionError); training continues",
    ]


@pytest.mark.filterwarnings("ignore")
def test_a_warning_is_not_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Complaints().say("nothing happened", ValueError("why"))
