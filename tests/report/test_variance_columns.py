"""Columns of a printed comparison: what holds together, and the best set."""

import math

import pandas as pd

from gradstats.report.analysis_tables import best_set_marks, variance_columns


def frame():
    table = pd.DataFrame({"estimator": ["rloo", "mine"]})
    for name in ("ratio", "cosine"):
        table[name], table[f"{name}_low"], table[f"{name}_high"] = [1.0, 0.8], [1.0, 0.7], [1.0, 0.9]
    table["ratio_simultaneous_low"], table["ratio_simultaneous_high"] = [1.0, 0.6], [1.0, 0.95]
    table.attrs["reference"] = "rloo"
    return table


def test_intervals_that_hold_together_follow_their_quantity():
    first, second, third = variance_columns(frame(), ["ratio", "cosine"], "terminal")
    assert (first.heading, second.heading, third.heading) == ("ratio to rloo", "all ratios", "cosine")
    assert first.triples == [(1.0, 1.0, 1.0), (0.8, 0.7, 0.9)]
    assert second.together
    assert second.triples[0] == (1.0, 1.0, 1.0)  # known exactly
    assert math.isnan(second.triples[1][0])
    assert second.triples[1][1:] == (0.6, 0.95)


def test_a_paper_or_an_earlier_version_goes_without():
    assert [column.heading for column in variance_columns(frame(), ["ratio"], "paper")] == ["ratio to rloo"]
    early = frame().drop(columns="ratio_simultaneous_low")
    assert [column.together for column in variance_columns(early, ["ratio"], "terminal")] == [False]


def test_marks_of_the_best_set():
    assert best_set_marks(frame()) is None
    assert best_set_marks(frame().assign(in_best_set=[True, False])) == ["yes", "no"]
    assert best_set_marks(frame().assign(in_best_set=[None, True])) == ["–", "yes"]
    # As read back from a CSV file.
    assert best_set_marks(frame().assign(in_best_set=[float("nan"), True])) == ["–", "yes"]
