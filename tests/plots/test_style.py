"""Figure style: exact widths, type-42 fonts, no side effects."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from fixture_frames import CASES
from matplotlib.colors import to_rgb

from gradstats import plots
from gradstats.plots import VENUES, save_figure, style
from gradstats.plots.style import LEAST_CONTRAST, contrast, edge, escaped, ink, muted, palette, paper, stroke


def test_a_pgf_picture_needs_no_latex_and_is_one_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with mpl.rc_context(style("neurips", "half")):
        fig, ax = plt.subplots()
        ax.scatter([1, 2], [3, 4], rasterized=True)
        ax.set_xticks([0.5], labels=["token_mean(loo=True) & 50 %"])
        ax.set_xlabel(r"cost in \$ of $\alpha_1$, run_2 #3")
        (path,) = save_figure(fig, tmp_path / "figure", ("pgf",))
    text = path.read_text()
    for part in (
        "\\begingroup%\n", r"\pgfpathrectangle{\pgfpointorigin}{\pgfqpoint{2.750000in}", r"run\_2 \#3", r"\alpha_1",
        r"token\_mean(loo=True) \& 50", r"cost in \$ of", "\\endgroup%\n",
    ):  # fmt: skip
        assert part in text
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert not any(word in text for word in ("pgfimage", "setmainfont"))
    assert list(tmp_path.iterdir()) == [path]


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


@pytest.mark.parametrize(
    ("venue", "column", "width"),
    [
        ("icml", "half", 3.25), ("icml", "full", 6.75), ("icml", None, 3.25), ("neurips", None, 5.5),
        ("neurips", "full", 5.5), ("neurips", "half", 2.75), ("iclr", "full", 5.5), ("acl", "half", 3.03),
    ],
)  # fmt: skip
def test_widths(venue, column, width):
    assert style(venue, column)["figure.figsize"][0] == width


@pytest.mark.parametrize("venue", list(VENUES))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_entry_is_an_rcparam(venue, theme):
    before = dict(mpl.rcParams)
    with mpl.rc_context(style(venue, "full", theme=theme)):
        assert mpl.rcParams["pdf.fonttype"] == 42
        assert mpl.rcParams["savefig.bbox"] is None
        assert mpl.rcParams["text.usetex"] is False
    assert dict(mpl.rcParams) == before


def test_height_and_latex_on_request():
    params = style("icml", "half", height=1.5, usetex=True)
    assert (params["figure.figsize"], params["text.usetex"]) == ((3.25, 1.5), True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"venue": "nature"}, "venue='nature' is not known: choose from icml, neurips"),
        ({"column": "third"}, "column='third' is not a width: choose 'half' or 'full'"),
        ({"theme": "sepia"}, "theme='sepia' is not known"),
        ({"height": 0.0}, "height=0.0 must be positive"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        style(**arguments)


def test_contrast_is_that_of_wcag():
    assert contrast((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)) == pytest.approx(21.0)
    grey = (119 / 255,) * 3  # the published example: #777777 on white has 4.48
    assert contrast(grey, (1.0, 1.0, 1.0)) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_can_be_seen_on_the_paper(theme):
    with mpl.rc_context(plots.style("slide", theme=theme)):
        assert all(contrast(color, paper()) >= LEAST_CONTRAST[theme] for color in palette())
        assert len(set(palette())) == 10
        assert [muted(0.0), muted(1.0)] == [pytest.approx(paper()), pytest.approx(ink())]
        assert (sum(paper()) > sum(ink())) == (theme == "light")
        assert mpl.rcParams["savefig.facecolor"] == mpl.rcParams["figure.facecolor"]


def test_lines_grow_with_the_text():
    with mpl.rc_context(plots.style("slide")):
        assert stroke(1.0) == pytest.approx(18 / 8)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_dim_on_a_dark_slide(name):
    plot, frame = CASES[name]
    with mpl.rc_context(plots.style("slide", theme="dark")):
        plot(frame("ordinary"))
        for ax in plt.gcf().axes:
            for line in ax.lines:
                has_line, has_marker = line.get_linestyle() != "None", line.get_marker() not in ("None", "")
                colors = [*([line.get_color()] * has_line), *([line.get_markeredgecolor()] * has_marker)]
                assert all(contrast(to_rgb(color), paper()) > 3.0 for color in colors), line
        assert contrast(to_rgb(edge()["markeredgecolor"]), paper()) > 7.0
