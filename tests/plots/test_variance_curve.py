"""Variance, cosine and bias along a parameter."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from fixture_frames import curves
from matplotlib.colors import to_rgb

from gradstats import analyses


def test_the_line_the_bands_and_the_marks_are_those_of_the_frame():
    frame = curves("ordinary")
    ax = analyses.plot_variance_curve(frame)
    by_label = {line.get_label(): line for line in ax.lines}
    curve = by_label["length-weighted, leave-one-out"]
    np.testing.assert_allclose(curve.get_xydata(), frame[["value", "matched_ratio"]])
    heights = [tuple(line.get_ydata()) for line in ax.lines]
    for end in ("low", "high"):
        assert tuple(frame[f"matched_ratio_simultaneous_{end}"]) in heights
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(frame["matched_ratio_low"].min())
    assert band.max() == pytest.approx(frame["matched_ratio_high"].max())
    assert by_label["lowest: 0.8 [0.5, 1.3]"].get_xdata()[0] == 0.8
    assert by_label["α within prompts: 1.75"].get_xdata()[0] == 1.75
    np.testing.assert_allclose(by_label["without matching (no interval)"].get_ydata(), frame["ratio"])
    assert all(len(set(to_rgb(line.get_color()))) == 1 for line in ax.lines)  # grey: lines differ in dashes
    fits = [str(line._unscaled_dash_pattern) for line in ax.lines if line.get_label().startswith("α")]
    assert len(set(fits)) == len(fits) == 3


def test_an_end_of_the_interval_that_is_cut_has_an_arrow():
    frame = curves("ordinary")
    assert not {"<", ">"} & {line.get_marker() for line in analyses.plot_variance_curve(frame).lines}
    frame.attrs["minimiser_low"] = 0.0
    lines = analyses.plot_variance_curve(frame).lines
    (arrow,) = [line for line in lines if line.get_marker() in ("<", ">")]
    assert (arrow.get_marker(), *arrow.get_xdata()) == ("<", 0.0)
    assert "lowest: 0.8 [≤ 0, 1.3]" in [line.get_label() for line in lines]


def test_the_panels_share_the_parameter_and_one_legend():
    axes = analyses.plot_variance_curve_panels(curves("ordinary"))
    assert [ax.get_ylabel() for ax in axes] == ["relative\nnoise\n(RLOO = 1)", "cosine\n(on-policy)", "bias"]
    assert axes[-1].get_xlabel() == r"exponent $\alpha$"
    (legend,) = plt.gcf().legends
    assert len(legend.get_texts()) == 6
