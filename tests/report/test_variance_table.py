"""The table of a comparison: names in words, and bold only where a tie is excluded."""

from __future__ import annotations

import numpy as np
import pytest
from compared_frames import compared as frame

from gradstats.estimators import Batch
from gradstats.plots.names import LABELS
from gradstats.report.analysis_tables import COMPARED_ROWS, variance_table
from gradstats.stats import compare
from gradstats.stats.variance.result import clear_winner, lowest


def bold_rows(table):
    return [line for line in table.to_latex().splitlines() if "textbf" in line]


def test_the_reference_is_bold_where_every_other_interval_lies_above_it():
    clear = frame([1.0, 1.3, 1.5], [1.0, 1.1, 1.2], [1.0, 1.5, 1.9])
    assert [line.split(" &")[0] for line in bold_rows(variance_table(clear))] == ["RLOO"]
    tie = frame([1.0, 1.3, 1.5], [1.0, 0.9, 1.2], [1.0, 1.5, 1.9])
    assert bold_rows(variance_table(tie)) == []
    assert "leave a tie" in variance_table(tie).caption


def test_the_comparisons_decision_is_read_from_the_frame():
    table = frame([1.0, 1.3, 0.8], [1.0, 1.1, 0.7], [1.0, 1.5, 0.9])
    table.attrs["lowest_beyond_doubt"] = "mine"
    assert [line.split(" &")[0] for line in bold_rows(variance_table(table))] == ["mine"]
    table.attrs["lowest_beyond_doubt"] = None
    assert bold_rows(variance_table(table)) == []
    assert "leave a tie" in variance_table(table).caption


def test_the_best_set_is_bold_as_the_comparison_gives_it():
    table = frame([1.0, 1.3, 0.9], [1.0, 1.1, 0.8], [1.0, 1.5, 1.1]).assign(in_best_set=[True, False, True])
    found = variance_table(table)
    assert [line.split(" &")[0] for line in bold_rows(found)] == ["RLOO", "mine"]
    assert "best set, which holds the lowest" in found.caption
    assert "not judged" not in found.caption


def test_rows_that_are_not_judged_are_not_claimed_to_be_higher():
    table = frame([1.0, 1.3, np.nan], [1.0, 1.1, 0.0], [1.0, 1.5, np.inf]).assign(in_best_set=[True, False, None])
    assert "of the rows that have one at this level" in variance_table(table).caption
    assert "the others are not judged." in variance_table(table).caption


def test_matched_ratios_that_hold_together_have_a_column():
    table = frame([1.0, 1.3, 0.9], [1.0, 1.1, 0.8], [1.0, 1.5, 1.1]).assign(in_best_set=[True, False, True])
    table["matched_ratio_simultaneous_low"] = [1.0, 1.05, 0.75]
    table["matched_ratio_simultaneous_high"] = [1.0, 1.6, 1.15]
    found = variance_table(table)
    headings, texts = found.cells("plain")
    assert headings.index("all matched ratios") == headings.index("matched ratio") + 1
    column = headings.index("all matched ratios")
    assert [row[column] for row in texts] == ["1", "1.05 to 1.60", "0.75 to 1.15"]
    assert "All matched ratios: those of all rows lie between these ends at once." in found.caption
    assert [line.count("textbf") for line in bold_rows(found)] == [1, 1]


def test_another_winner_needs_intervals_paired_with_it():
    table = frame([1.0, 1.3, 0.8], [1.0, 1.1, 0.7], [1.0, 1.5, 0.9])
    assert lowest(table) == "mine"
    assert bold_rows(variance_table(table)) == []
    against_mine = frame([1.25, 1.6, 1.0], [1.1, 1.2, 1.0], [1.4, 2.0, 1.0], reference="mine")
    bold = bold_rows(variance_table(table, paired=against_mine))
    assert [line.split(" &")[0] for line in bold] == ["mine"]
    assert "excludes a tie" in variance_table(table, paired=against_mine).caption
    against_mine.loc[0, "matched_ratio_low"] = 0.99
    assert bold_rows(variance_table(table, paired=against_mine)) == []
    against_mine.loc[0, "matched_ratio_low"] = np.nan
    assert bold_rows(variance_table(table, paired=against_mine)) == []


def test_of_two_rows_the_interval_itself_is_paired():
    assert clear_winner(frame([1.0, 0.8], [1.0, 0.7], [1.0, 0.9])) == 1
    assert clear_winner(frame([1.0, 0.8], [1.0, 0.7], [1.0, 1.01])) is None
    assert clear_winner(frame([1.0, 0.8], [1.0, 0.7], [1.0, 0.9], reference="a third")) is None


def test_a_real_comparison_bolds_the_baseline():
    """Scores with the noise of the reward: without a baseline the variance is clearly larger."""
    rng = np.random.default_rng(0)
    n, size = 40, 8
    rewards = 5.0 + rng.normal(size=n * size)
    batch = Batch(rewards=rewards, lengths=np.full(n * size, 10), groups=np.repeat(np.arange(n), size))
    scores = rng.normal(size=(n * size, 6))
    with pytest.warns(UserWarning, match="not resolved"):
        comparison = compare(batch, ["reinforce", "rloo"], scores=scores)
    table = variance_table(comparison, confidence_level=0.99)
    assert [line.split(" &")[0] for line in bold_rows(table)] == ["RLOO"]
    assert "99% intervals" in table.caption
    assert "n = 40 prompts" in table.caption


def test_paired_must_belong_to_the_table():
    table = frame([1.0, 1.3, 0.8], [1.0, 1.1, 0.7], [1.0, 1.5, 0.9])
    with pytest.raises(
        ValueError, match=r"paired has the reference 'rloo', and 'mine' is the lowest: compare again with"
    ):
        variance_table(table, paired=table)
    other = frame([1.0, 1.3], [1.0, 1.1], [1.0, 1.5], reference="mine")
    with pytest.raises(ValueError, match="paired holds other estimators"):
        variance_table(table, paired=other)
    with pytest.raises(ValueError, match=r"the table lacks the column\(s\) ratio_high"):
        variance_table(table.drop(columns="ratio_high"))


def test_estimators_have_the_names_of_figures_and_the_csv_their_labels(tmp_path):
    table = frame([1.0, 1.3], [1.0, 1.1], [1.0, 1.5], names=("rloo", "length_weighted(alpha=0.8, loo=True)"))
    found = variance_table(table)
    assert found.rows == ("RLOO", "length-weighted, α = 0.8, leave-one-out")
    assert "ratio to RLOO" in found.columns
    assert "ratios to RLOO are paired" in found.caption
    *_, csv = found.save(tmp_path / "variance")
    assert '"length_weighted(alpha=0.8, loo=True)"' in csv.read_text()
    assert "RLOO" not in csv.read_text()
    table.attrs[LABELS] = {"rloo": "leave one out, $N-1$"}
    chosen = variance_table(table)
    assert chosen.rows[0] == "leave one out, $N-1$"
    assert "leave one out, $N-1$ & " in chosen.to_latex()
    assert "ratios to leave one out" in chosen.caption


def test_a_caption_says_where_the_lowest_is_not_among_the_rows():
    table = frame([1.0, 1.3, 0.9], [1.0, 1.1, 0.8], [1.0, 1.5, 1.1]).assign(in_best_set=[False, False, True])
    some = table.iloc[:2].copy()
    some.attrs = table.attrs | {COMPARED_ROWS: 3}
    assert "No row is of the best set, " in variance_table(some).caption
    assert "(all pairs of the 3 estimators of the comparison compared)" in variance_table(some).caption
    some = some.drop(columns="in_best_set")
    some.attrs |= {"lowest_beyond_doubt": "otb"}
    assert "The lowest matched ratio is that of OTB, which is not listed." in variance_table(some).caption
    assert bold_rows(variance_table(some)) == []
