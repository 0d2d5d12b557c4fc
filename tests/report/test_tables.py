"""Tables: digits, intervals, captions, escaping."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from compared_frames import compared as frame

from gradstats.analyses.numbers import format_estimate
from gradstats.config.experiment import FiguresSection
from gradstats.report.analysis_tables import alpha_table, variance_table
from gradstats.report.latex import layout_of
from gradstats.report.tables import latex_escape
from gradstats.stats import fit_length_scaling


def test_latex_is_booktabs_with_everything_escaped():
    table = frame([1.0, 1.3], [1.0, 1.1], [1.0, 1.5], names=("mine:f(x=0.8)", "50%_{x}&#$~^\\"))
    text = variance_table(table).to_latex()
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert "mine:f(x=0.8)" in text
    assert latex_escape("50%_{x}&#$~^\\") == r"50\%\_\{x\}\&\#\$\textasciitilde{}\textasciicircum{}\textbackslash{}"
    rows = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert {row.replace(r"\&", "").count("&") for row in rows} == {6}
    assert text.isascii()
    for part in ("90\\% intervals", "intervals over n = 30 prompts", "n = 30 prompts", "(60 groups of 4)"):
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


def test_alpha_table_states_n_level_and_method():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(5, 0.5, 40))
    fit = fit_length_scaling(lengths=lengths, sq_norms=lengths**1.6 * np.exp(rng.normal(0, 0.3, 40)))
    table = alpha_table({"my_run": fit}, confidence_level=0.9)
    assert "90% intervals (ols, cluster interval)" in table.caption
    assert "of 40 prompts" in table.caption
    low, high = fit.confidence_interval(0.9)
    assert format_estimate(fit.alpha, low, high, markup="latex") in table.to_latex()
    assert r"my\_run" in table.to_latex()
    assert "α within prompts" not in table.columns  # one completion per prompt
    with pytest.raises(ValueError, match="fits is empty"):
        alpha_table({})


def test_captions_state_a_metric_that_is_not_euclidean():
    fit = replace(fit_length_scaling(lengths=[1, 2, 4, 8], sq_norms=[1.0, 4.1, 15.0, 66.0]), metric="adam(eps=1e-08)")
    table = alpha_table({"mine": fit})
    for text in (table.to_markdown(), table.to_latex(), table.to_latex(layout_of(FiguresSection()))):
        assert "Gradients are measured in the metric adam(eps=1e-08)." in text.replace(r"\allowbreak{}", "")
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
