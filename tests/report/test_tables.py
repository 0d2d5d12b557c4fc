"""Tables: digits, intervals, bold only where a tie is excluded, captions, escaping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gradstats.estimators import Batch
from gradstats.report.numbers import number_with_interval
from gradstats.report.tables import alpha_table, latex_escape, profile_table, variance_table
from gradstats.stats import compare, fit_length_scaling
from gradstats.stats.profile import PROFILE_QUANTITIES, PolicyProfile
from gradstats.stats.variance.winner import clear_winner, lowest


def frame(matched, low, high, reference="rloo", names=("rloo", "reinforce", "mine")):
    table = pd.DataFrame({"estimator": names[: len(matched)], "group_size": 4})
    for column in ("trace_cov", "ratio", "matched_ratio", "cosine", "matched_bias_share", "kept_share"):
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


def test_the_best_set_is_bold_as_the_comparison_gives_it():
    table = frame([1.0, 1.3, 0.9], [1.0, 1.1, 0.8], [1.0, 1.5, 1.1]).assign(in_best_set=[True, False, True])
    found = variance_table(table)
    assert [line.split(" &")[0] for line in bold_rows(found)] == ["rloo", "mine"]
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
    for part in ("90\\% intervals", "intervals over n = 30 prompts", "n = 30 prompts", "(60 groups)"):
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


@pytest.mark.parametrize("written", [1, 2])
def test_a_table_may_be_saved_again_after_a_kill_between_its_files(tmp_path, monkeypatch, written):
    from gradstats.system import files

    whole = variance_table(frame([1.0, 1.3, 0.9], [1.0, 1.2, 0.8], [1.0, 1.4, 1.0]))
    real, calls = files.atomic_path, []

    def killed(path, **options):
        calls.append(path)
        if len(calls) > written:
            raise KeyboardInterrupt
        return real(path, **options)

    with monkeypatch.context() as patched:
        for module in ("gradstats.system.outputs", "gradstats.system.files"):
            patched.setattr(f"{module}.atomic_path", killed)
        with pytest.raises(KeyboardInterrupt):
            whole.save(tmp_path / "variance")
    assert len(list(tmp_path.iterdir())) == written
    assert [path.suffix for path in whole.save(tmp_path / "variance")] == [".tex", ".md", ".csv"]


def test_alpha_table_states_n_level_and_method():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(5, 0.5, 40))
    fit = fit_length_scaling(lengths=lengths, sq_norms=lengths**1.6 * np.exp(rng.normal(0, 0.3, 40)))
    table = alpha_table({"my_run": fit}, confidence_level=0.9)
    assert "90% intervals (ols, cluster interval)" in table.caption
    assert "of 40 prompts" in table.caption
    low, high = fit.confidence_interval(0.9)
    assert number_with_interval(fit.alpha, low, high, markup="latex") in table.to_latex()
    assert r"my\_run" in table.to_latex()
    assert "α within prompts" not in table.columns  # one completion per prompt
    with pytest.raises(ValueError, match="fits is empty"):
        alpha_table({})


def test_captions_state_a_metric_that_is_not_euclidean():
    fit = replace(fit_length_scaling(lengths=[1, 2, 4, 8], sq_norms=[1.0, 4.1, 15.0, 66.0]), metric="adam(eps=1e-08)")
    table = alpha_table({"mine": fit})
    for text in (table.to_markdown(), table.to_latex()):
        assert "Gradients are measured in the metric adam(eps=1e-08)." in text
    assert "metric" not in alpha_table({"mine": replace(fit, metric="euclidean")}).to_markdown()


def test_alpha_within_prompts_stands_beside_the_pooled_one():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 4)
    lengths = np.exp(rng.normal(5, 0.5, 80))
    sq_norms = lengths**1.6 * np.exp(rng.normal(0, 0.3, 20))[groups] * np.exp(rng.normal(0, 0.1, 80))
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)
    within = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    table = alpha_table({"mine": fit}, confidence_level=0.9)
    assert table.columns["α within prompts"] == [(within.alpha, *within.confidence_interval(0.9))]
    assert table.source["alpha_within"].item() == within.alpha


def profile(seed=0, **changes):
    """A profile with the numbers 1, 2, 3, … except for those given."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(5, 0.5, 40))
    fit = fit_length_scaling(lengths=lengths, sq_norms=lengths**1.6 * np.exp(rng.normal(0, 0.3, 40)))
    batch = Batch(rewards=rng.normal(5.0, 1.0, 40), lengths=np.full(40, 10), groups=np.repeat(np.arange(10), 4))
    with pytest.warns(UserWarning, match="not resolved"):
        comparison = compare(batch, ["reinforce"], scores=rng.normal(size=(40, 6)))
    named = [name for name in PROFILE_QUANTITIES if not name.startswith("alpha")]
    numbers = {name: float(at) if at > 2 else at for at, name in enumerate(named, 1)}
    numbers |= {"n_long": 10, "median_length": 4.0, "mean_reward": 3.0} | changes
    return PolicyProfile(**numbers, pooled=fit, within=fit, comparison=comparison)


def test_profiles_stand_side_by_side_with_their_intervals(tmp_path):
    one, other = profile(0), profile(1, mean_entropy=0.25, top16_share=float("nan"))
    table = profile_table({"base": one, "tuned_model": other}, confidence_level=0.8)
    headings, rows = table.cells("plain")
    assert headings == ["quantity", "base", "tuned_model"]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["entropy per token, nats"] == ["5", "0.25"]
    assert cells[PROFILE_QUANTITIES["top16_share"]] == ["11", "–"]
    for column, shown in enumerate((one, other)):
        low, high = shown.pooled.confidence_interval(0.8)
        assert cells["α, all completions"][column] == number_with_interval(shown.alpha_pooled, low, high)
        row = shown.comparison.to_frame(0.8).set_index("estimator").loc["reinforce"]
        expected = number_with_interval(*(float(row[f"ratio{end}"]) for end in ("", "_low", "_high")))
        assert cells["tr Cov of reinforce over RLOO's"][column] == expected
    assert "with 80% intervals" in table.caption
    assert r"tuned\_model" in table.to_latex()
    frame = pd.read_csv(table.save(tmp_path / "profile")[-1])
    assert frame.groupby("policy").size().to_dict() == {"base": len(rows), "tuned_model": len(rows)}


def test_a_table_of_profiles_needs_one():
    with pytest.raises(ValueError, match="profiles is empty: give at least one name and its profile"):
        profile_table({})
