"""Variance within and between prompts."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from fixture_frames import prompt_parts

from gradstats import plots

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_both_parts_are_drawn_where_they_are():
    frame = prompt_parts("ordinary").query("estimator != 'grpo'")  # which is in another unit
    ax = plots.plot_prompt_parts(frame)
    at = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
    np.testing.assert_allclose(at, frame[["within_prompt", "between_prompt"]].to_numpy().ravel())


def test_an_estimator_with_neither_component_says_so_once():
    frame = prompt_parts("one row")
    frame[[column for column in frame if "prompt" in column]] = np.nan
    ax = plots.plot_prompt_parts(frame)
    assert [text.get_text() for text in ax.texts] == ["not resolved"]


def test_points_within_prompts_are_filled_and_between_prompts_open():
    ax = plots.plot_prompt_parts(prompt_parts("one row"))
    within, between = (line for line in ax.lines if line.get_linestyle() == "None")
    assert within.get_markerfacecolor() == within.get_color()
    assert between.get_markerfacecolor() == ax.get_facecolor()
    assert within.get_ydata()[0] < between.get_ydata()[0]
    keys = [text.get_text() for text in ax.get_figure().legends[0].get_texts()]
    assert keys == ["within prompts", "between prompts"]
    assert ax.get_xlabel() == "component of tr Cov"
