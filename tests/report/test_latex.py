"""LaTeX tables at every venue's widths: which columns they have, and that LaTeX sets them without an overfull box."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradstats.config.sections import FiguresSection
from gradstats.plots.style import VENUES
from gradstats.report.analysis_tables import variance_table
from gradstats.report.latex import (
    Layout,
    breakable,
    formula_width,
    latex_escape,
    layout_of,
    unbreakable,
)
from gradstats.report.run_tables import run_tables, several_tables
from gradstats.report.saved_results import read_results
from gradstats.report.tables import Table

NAMES = (
    "rloo",
    "length_weighted(alpha=within_prompt, loo=True)",
    "recipe:length_weighted(alpha=0.8, loo=True, off_policy=True, ratio=sequence_product)",
    "users_module_of_some_length:an_estimator_whose_name_is_long(parameter=0.25)",
)
PAPER = ("trace_cov", "ratio", "matched_ratio", "cosine", "matched_bias_share", "kept_share")


def comparison(reference="rloo"):
    """Four rows with what is hard to set: long labels and numbers, all kinds of intervals, a power of ten, bold."""
    frame = pd.DataFrame({"estimator": NAMES, "group_size": 4})
    for column in PAPER:
        frame[column] = [1.0, 1.305, 0.0001734, 88.21]
        frame[f"{column}_low"] = [1.0, 1.067, 0.0001234, -np.inf]
        frame[f"{column}_high"] = [1.0, 1.596, 0.0002234, 520.6]
    frame["trace_cov"] *= 1e7
    frame["matched_ratio_simultaneous_low"] = [1.0, 0.85, -0.001, -123.4]
    frame["matched_ratio_simultaneous_high"] = [1.0, 0.9, 1.1, 1234.5]
    frame["cosine"] = [1.0, 0.79, np.nan, np.nan]
    about = {"reference": reference, "confidence_level": 0.95, "n_prompts": 96, "n_groups": 192}
    frame.attrs |= about | {"prompts_per_batch": 128, "target": "importance", "effective_sample_size": 1843.4}
    return frame


LAYOUTS = [Layout(venue, column) for venue in VENUES for column in ("half", "full")]


def set_by_latex(tables, folder):
    """Set tables, each at the width of its layout, in one document; returns what is too wide or too tall."""
    body = []
    for table, layout in tables:
        page = VENUES[layout.venue]
        # A half column of a page with one column makes its own width.
        width = page.full if page.columns == 1 else layout.inches
        body += [
            rf"\clearpage\setlength{{\textwidth}}{{{width}in}}",
            r"\columnwidth=\textwidth\hsize=\textwidth\linewidth=\textwidth",
            rf"\typeout{{AT {layout.place} {layout.siunitx}}}",
            table.to_latex(layout),
        ]
    packages = "array,booktabs,tabularx" + (",siunitx" if any(layout.siunitx for _, layout in tables) else "")
    (folder / "tables.tex").write_text(
        "\\documentclass{article}\n\\usepackage[paperwidth=14in,textwidth=13in,paperheight=11in,textheight=9in]{geometry}\n"
        f"\\usepackage{{{packages}}}\n\\begin{{document}}\n" + "\n".join(body) + "\n\\end{document}\n"
    )
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "tables.tex"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("AT ") >= len(tables)
    return re.findall(r"Overfull \\[hv]box.*|Float too large.*", done.stdout)


needs_latex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")


@needs_latex
def test_tables_fit_every_venue_at_both_widths(tmp_path):
    tables = [(variance_table(comparison(reference)), at) for at in LAYOUTS for reference in ("rloo", NAMES[2])]
    assert set_by_latex(tables, tmp_path) == []


@needs_latex
def test_every_table_of_a_run_fits(tmp_path):
    figures = Path(__file__).parents[2] / "figures"
    runs = [read_results(figures / name) for name in ("embedded", "embedded_values")]
    every = [table for run in runs for table in run_tables(run.answers, run.name, run.figure_style).values()]
    assert len(every) > 20
    every += several_tables(
        {"a run with a name that is long": runs[0], runs[1].name: runs[1]}, FiguresSection()
    ).values()
    layouts = [Layout("icml", "half"), Layout("neurips", "half"), Layout("icml", "full")]
    assert set_by_latex([(table, at) for table in every for at in layouts], tmp_path) == []


@needs_latex
def test_numbers_aligned_by_siunitx_fit_too(tmp_path):
    if not subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True).stdout:
        pytest.skip("the LaTeX package siunitx is not installed")
    layouts = [Layout(venue, column, siunitx=True) for venue in ("icml", "neurips") for column in ("half", "full")]
    run = read_results(Path(__file__).parents[2] / "figures" / "embedded_values")
    of_run = run_tables(run.answers, run.name, run.figure_style)
    tables = [(variance_table(comparison()), at) for at in layouts]
    tables += [(of_run[name], layouts[0]) for name in ("allocation", "ratios", "alpha_by_block")]
    assert set_by_latex(tables, tmp_path) == []


def test_the_caption_is_silent_about_columns_that_are_left_out():
    table = variance_table(comparison())
    sentence = "The share of bias is that of a batch of 128 prompts, or of a batch-level estimator's own."
    assert sentence in table.caption
    assert sentence not in table.to_latex(Layout("icml", "half", columns=("matched_ratio",)))
    assert sentence in table.to_latex(Layout("icml", "half", columns=("matched_bias_share",)))


def test_columns_are_chosen_by_name_or_heading_in_the_order_asked():
    table = variance_table(comparison())
    chosen = Layout("icml", "full", columns=("cosine", "relative noise", "matched_ratio_simultaneous", "cosine"))
    assert table.headings_at(chosen) == ["cosine", "relative noise", "relative noise of all rows"]
    text = table.to_latex(chosen)
    assert [text.index(word) for word in ("{cosine}", "{relative noise}")] == sorted(
        [text.index("{cosine}"), text.index("{relative noise}")]
    )


def test_a_column_that_the_table_lacks_is_refused():
    with pytest.raises(ValueError, match="has no column 'cosin', only trace_cov, ratio, matched_ratio,"):
        variance_table(comparison()).to_latex(Layout(columns=("cosin",)))


def test_columns_that_do_not_fit_are_refused_with_those_that_do():
    table = variance_table(comparison())
    asked = Layout("icml", "half", columns=PAPER)
    with pytest.raises(ValueError, match=r"6 columns do not fit icml's half column \(3\.25 in\); the first \d do"):
        table.to_latex(asked)


def test_the_environment_is_that_of_the_page():
    table = variance_table(comparison())
    assert r"\begin{table*}" in table.to_latex(Layout("icml", "full"))
    assert r"\begin{table}" in table.to_latex(Layout("icml", "half"))
    boxed = table.to_latex(Layout("neurips", "half"))
    assert r"\begin{minipage}{2.75in}" in boxed
    assert r"\end{minipage}" in boxed
    assert "minipage" not in table.to_latex(Layout("neurips", "full"))


def test_a_small_table_keeps_its_width():
    small = Table("Caption.", "run", ("a",), {"α": [(0.8, 0.7, 0.9)]}, pd.DataFrame())
    text = small.to_latex(Layout("icml", "half"))
    assert r"\begin{tabular}{@{}lc@{}}" in text
    assert r"$0.80_{\pm 0.10}$" in text


def test_rows_with_stacked_scripts_are_further_apart():
    stretch = r"\renewcommand{\arraystretch}"
    table = variance_table(comparison())
    assert stretch in table.to_latex(Layout("icml", "half", columns=("matched_ratio",)))
    assert stretch not in table.to_latex(Layout("icml", "half", columns=("relative noise of all rows",)))


def test_a_tall_table_is_continued_under_its_number():
    tall = pd.concat([comparison()] * 20, ignore_index=True)
    tall.attrs = comparison().attrs
    lines = variance_table(tall).to_latex(Layout("icml", "half")).splitlines()
    n = sum(line.startswith(r"\begin{table}") for line in lines)
    assert n > 1
    assert lines.count(r"\caption{Continued.}") == lines.count(r"\addtocounter{table}{-1}") == n - 1
    assert sum(line.startswith(r"\label{") for line in lines) == 1
    once = variance_table(comparison()).to_latex(Layout("icml", "half"))
    assert sum("88" in line for line in lines) == 20 * sum("88" in line for line in once.splitlines())


def test_siunitx_aligns_what_begins_with_a_number():
    text = variance_table(comparison()).to_latex(Layout("icml", "half", siunitx=True, columns=("matched_ratio",)))
    assert r"\bfseries 1.30{\boldmath$^{+0.30}_{-0.23}$}" in text
    assert r"{$1.73_{\pm 0.50} \cdot 10^{-4}$}" in text
    assert "S[table-format=2.2" in text


def test_a_layout_names_a_venue():
    assert layout_of(FiguresSection(venue="colm")) == Layout("colm")
    assert Layout("colm").place == "colm's full column"
    with pytest.raises(ValueError, match="venue='nature' is not known"):
        Layout("nature")
    with pytest.raises(ValueError, match="column='third' is not a width"):
        Layout("icml", "third")


@pytest.mark.parametrize(
    ("text", "set_as"),
    [
        ("(96 groups) a_b", r"(96 groups) a\_b"),  # short words do not break
        ("length_weighted(alpha=0.8)", r"length\_\allowbreak{}weighted(\allowbreak{}alpha=\allowbreak{}0.8)"),
        ("length-weighted, α = 0.8, own", r"length-weighted, $\alpha$~=~0.8, own"),
        ("50% of $x_1 + y_{long}$", r"50\% of $x_1 + y_{long}$"),
    ],
)
def test_names_break_after_punctuation_and_neither_before_values_nor_within_formulas(text, set_as):
    assert breakable(text) == set_as
    assert unbreakable("by $x_1 + y_{long}$, n = 30") == ["by", "$x_1 + y_{long}$,", "n\u00a0=\u00a030"]


@pytest.mark.parametrize("text", [r"$\input{secrets}$", "$\\write18{ls}$", "$x", "costs $5_{"])
def test_what_figures_do_not_set_as_a_formula_is_escaped(text):
    assert latex_escape(text).count(r"\$") == text.count("$")
    assert "\\input" not in latex_escape(text)


@pytest.mark.parametrize(
    ("cell", "points"),
    # Measured with \settowidth at 8 pt in Computer Modern.
    [
        ("$1.30^{+0.30}_{-0.23}$", 34.7),
        ("$0.79_{\\pm 0.31}$", 34.7),
        ("$> 0.928$", 28.3),
        ("$[0.20, 1.00]$", 38.7),
        ("$1.81_{\\pm 0.16} \\cdot 10^{-4}$", 59.3),
        ("$388$", 12.75),
    ],
)
def test_widths_are_estimated_from_above_and_not_by_much(cell, points):
    assert points <= 8.0 * formula_width(cell) <= 1.2 * points
