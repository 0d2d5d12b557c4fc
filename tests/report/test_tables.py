"""Tables: digits, intervals, bold only where a tie is excluded, captions, escaping."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from gradstats.estimators import Batch
from gradstats.report.numbers import common_exponent, number_with_interval
from gradstats.report.tables import alpha_table, latex_escape, variance_table
from gradstats.stats import compare, fit_length_scaling
from gradstats.stats.variance.winner import clear_winner, lowest

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("triple", "plain", "latex"),
    [
        ((0.7887, 0.475, 1.102), "0.79 ± 0.31", r"$0.79 \pm 0.31$"),
        ((1.305, 1.067, 1.596), "1.30 +0.29 −0.24", r"$1.30^{+0.29}_{-0.24}$"),
        ((387.7, 288.7, 520.6), "388 +133 −99", r"$388^{+133}_{-99}$"),
        ((-0.012, -0.045, 0.021), "−0.012 ± 0.033", r"$-0.012 \pm 0.033$"),
        ((-0.001, -0.2, 0.2), "0.00 ± 0.20", r"$0.00 \pm 0.20$"),
        ((1.0, 1.0, 1.0), "1", "$1$"),
        ((0.765625, 0.765625 - 1e-15, 0.765625 + 1e-15), "0.766", "$0.766$"),
        ((2.5, NAN, NAN), "2.5", "$2.5$"),
        ((NAN, NAN, NAN), "–", "--"),
        ((NAN, 57.7, INF), "> 57.7", "$> 57.7$"),
        ((NAN, NAN, 3.0), "< 3", "$< 3$"),
        ((0.15, -INF, 0.62), "0.15 +0.47 −∞", r"$0.15^{+0.47}_{-\infty}$"),
        ((0.15, NAN, 0.62), "0.15 +0.47", "$0.15^{+0.47}$"),
    ],
)
def test_numbers_have_the_digits_their_intervals_allow(triple, plain, latex):
    assert number_with_interval(*triple) == plain
    assert number_with_interval(*triple, markup="latex") == latex


def test_html_stacks_unequal_sides_and_escapes():
    stacked = '1.30 <span class="sides"><span>+0.29</span> <span>−0.24</span></span>'
    assert number_with_interval(1.305, 1.067, 1.596, markup="html") == stacked
    assert number_with_interval(NAN, 3.0, INF, markup="html") == "&gt; 3"


def test_powers_of_ten_are_shared_by_a_column():
    assert common_exponent([(1.23e7, 1.1e7, 1.4e7), (4.0, NAN, NAN)]) == 7
    assert common_exponent([(0.0004, 0.0003, 0.0005)]) == -4
    assert common_exponent([(1234.0, 1000.0, 1500.0), (NAN, NAN, INF)]) == 0
    assert number_with_interval(1.23e7, 1.13e7, 1.33e7, exponent=7) == "1.23 ± 0.10"


def frame(matched, low, high, reference="rloo", names=("rloo", "reinforce", "mine")):
    table = pd.DataFrame({"estimator": names[: len(matched)], "group_size": 4})
    for column in ("trace_cov", "ratio", "matched_ratio", "cosine", "bias_share", "kept_share"):
        table[column], table[f"{column}_low"], table[f"{column}_high"] = matched, low, high
    table.attrs |= {
        "reference": reference,
        "confidence_level": 0.9,
        "n_prompts": 30,
        "n_groups": 60,
        "prompts_per_batch": 128,
    }
    return table


def bold_rows(table):
    return [line for line in table.to_latex().splitlines() if "textbf" in line]


def test_the_reference_is_bold_where_every_other_interval_lies_above_it():
    clear = frame([1.0, 1.3, 1.5], [1.0, 1.1, 1.2], [1.0, 1.5, 1.9])
    assert [line.split(" &")[0] for line in bold_rows(variance_table(clear))] == ["rloo"]
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
    assert [line.split(" &")[0] for line in bold_rows(table)] == ["rloo"]
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


def test_latex_is_booktabs_with_everything_escaped():
    table = frame([1.0, 1.3], [1.0, 1.1], [1.0, 1.5], names=("length_weighted(alpha=0.8)", "50%_{x}&#$~^\\"))
    text = variance_table(table).to_latex()
    assert [rule for rule in (r"\toprule", r"\midrule", r"\bottomrule") if rule in text] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    assert r"length\_weighted(alpha=0.8)" in text
    assert latex_escape("50%_{x}&#$~^\\") == r"50\%\_\{x\}\&\#\$\textasciitilde{}\textasciicircum{}\textbackslash{}"
    rows = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert {row.replace(r"\&", "").count("&") for row in rows} == {6}
    assert text.isascii()
    for part in ("90\\% intervals", "delete-one-prompt jackknife", "n = 30 prompts", "(60 groups)"):
        assert part in text


def test_markdown_columns_are_even():
    text = variance_table(frame([1.0, 1.3], [1.0, 1.1], [1.0, 1.5], names=("a|b", "c*d"))).to_markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {8}
    assert r"a\|b" in text
    assert r"c\*d" in text


def test_saved_tables_keep_every_digit(tmp_path):
    table = frame([1.0, 1.0 / 3.0], [1.0, 0.1], [1.0, 0.5])
    paths = variance_table(table).save(tmp_path / "tables" / "variance")
    assert [path.name for path in paths] == ["variance.tex", "variance.md", "variance.csv"]
    assert pd.read_csv(paths[-1])["ratio"][1] == 1.0 / 3.0
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in variance_table(table).save(tmp_path / "tables" / "variance")] == before


def test_alpha_table_tells_n_level_and_method():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(5, 0.5, 40))
    fit = fit_length_scaling(lengths=lengths, sq_norms=lengths**1.6 * np.exp(rng.normal(0, 0.3, 40)))
    table = alpha_table({"my_run": fit}, confidence_level=0.9)
    assert "90% intervals (ols, t interval)" in table.caption
    assert "of 40 prompts" in table.caption
    low, high = fit.confidence_interval(0.9)
    assert number_with_interval(fit.alpha, low, high, markup="latex") in table.to_latex()
    assert r"my\_run" in table.to_latex()
    with pytest.raises(ValueError, match="fits is empty"):
        alpha_table({})
