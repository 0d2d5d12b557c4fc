"""Colours of the light and the dark theme."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import seaborn as sns
from fixture_frames import CASES
from matplotlib.colors import to_rgb

from gradstats import plots
from gradstats.plots.style import LEAST_CONTRAST, contrast, edge, ink, muted, palette, paper, stroke

mpl.use("Agg")


def test_contrast_is_that_of_wcag():
    assert contrast((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)) == pytest.approx(21.0)
    grey = (119 / 255,) * 3  # the published example: #777777 on white has 4.48
    assert contrast(grey, (1.0, 1.0, 1.0)) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_can_be_seen_on_the_paper(theme):
    with mpl.rc_context(plots.style("slide", theme=theme)):
        assert all(contrast(color, paper()) >= LEAST_CONTRAST[theme] for color in palette())
        assert len(set(palette())) == 10
        for share in (0.0, 1.0):
            assert muted(share) == pytest.approx([paper(), ink()][int(share)])


def test_colours_that_can_be_seen_stay_as_they_are():
    with mpl.rc_context(plots.style()):
        kept = [
            one == pytest.approx(other) for one, other in zip(palette(), sns.color_palette("colorblind"), strict=True)
        ]
        assert kept.count(False) <= 2  # yellow, and pink


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
        plt.close("all")


def test_greys_of_the_light_theme_are_grey():
    with mpl.rc_context(plots.style()):
        assert np.ptp(muted(0.3)) == 0.0


def test_lines_grow_with_the_text():
    with mpl.rc_context(plots.style("slide")):
        assert stroke(1.0) == pytest.approx(18 / 8)
        ax = plots.plot_shares(CASES["shares"][1]("ordinary"))
        assert {line.get_linewidth() for line in ax.lines if line.get_label() == "RLOO"} == {18 / 8}
        plt.close("all")
