"""PGF pictures without a LaTeX installation."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from gradstats.plots import save_figure, style
from gradstats.plots.style import escaped, pgf_picture

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_a_pgf_picture_needs_no_latex_and_is_one_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with mpl.rc_context(style("neurips", "half")):
        fig, ax = plt.subplots()
        ax.scatter([1, 2], [3, 4], rasterized=True)
        ax.set_xlabel(r"length $T$")
        (path,) = save_figure(fig, tmp_path / "figure", ("pgf",))
        plt.close(fig)
    text = path.read_text()
    assert r"\pgfpathrectangle{\pgfpointorigin}{\pgfqpoint{2.750000in}" in text
    assert "length $T$" in text
    assert "pgfimage" not in text
    assert "setmainfont" not in text
    assert list(tmp_path.iterdir()) == [path]


def test_names_in_a_pgf_picture_are_no_commands_of_tex(tmp_path):
    with mpl.rc_context(style("neurips", "half")):
        fig, ax = plt.subplots()
        ax.set_xticks([0.5], labels=["token_mean(loo=True) & 50 %"])
        ax.set_xlabel(r"cost in \$ of $\alpha_1$, run_2 #3")
        (path,) = save_figure(fig, tmp_path / "figure", ("pgf",))
        plt.close(fig)
    text = path.read_text()
    assert r"token\_mean(loo=True) \& 50" in text
    assert r"\alpha_1" in text
    assert r"run\_2 \#3" in text
    assert r"cost in \$ of" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token_mean & 3 #1 {x}", r"token\_mean \& 3 \#1 \{x\}"),
        (r"$\alpha_1$ of run_2", r"$\alpha_1$ of run\_2"),
        (r"already\_escaped in \$", r"already\_escaped in \$"),
    ],
)
def test_formulas_and_what_is_escaped_already_stay(text, expected):
    assert escaped(text) == expected


def test_a_picture_is_one_group_of_balanced_environments():
    figure, _ = plt.subplots(figsize=(2.0, 1.0))
    lines = pgf_picture(figure).splitlines()
    assert lines[0].startswith("%")
    assert (lines[1], lines[-1]) == (r"\begingroup%", r"\endgroup%")
    assert r"\pgfpathrectangle{\pgfpointorigin}{\pgfqpoint{2.000000in}{1.000000in}}%" in lines
    text = "\n".join(lines)
    assert text.count(r"\begin{") == text.count(r"\end{")
