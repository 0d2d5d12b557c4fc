"""Energy along traces, and proxies against what they stand for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fixture_frames import concentrations, correlations, proxies, tokens
from legibility import assert_legible

from gradstats import plots


def test_bins_stand_at_their_geometric_mean_and_are_named_by_their_ends():
    frame = correlations("ordinary")
    ax = plots.plot_token_correlation(frame)
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == len(frame) and line.get_marker() == "None"]
    np.testing.assert_allclose(line.get_xdata(), np.sqrt(frame["distance_first"] * frame["distance_last"]))
    np.testing.assert_array_equal(line.get_ydata(), frame["correlation"])
    many = plots.plot_concentration(concentrations("thirty"))  # of which every other one is named
    names = [[label.get_text() for label in one.get_xticklabels()] for one in (ax, many)]
    assert names[0] == ["1", "2", "3–4", "5–8", "9–16", "17–32"]
    assert names[1] == [str(2**power) if power % 2 == 0 else "" for power in range(12)]


def test_bins_without_an_estimate_are_left_out_and_an_unknown_interval_is_a_point():
    ax = plots.plot_concentration(concentrations("nan intervals"))
    assert len(ax.get_xticks()) == 5
    (bars,) = ax.collections
    intervals = bars.get_segments()
    assert len(intervals) == 5
    assert all(low == high for (_, low), (_, high) in intervals)


def test_each_trace_is_drawn_in_the_order_of_positions():
    frame = tokens("ordinary")
    lines = {line.get_label(): line for line in plots.plot_token_energy(frame.sample(frac=1.0, random_state=0)).lines}
    assert set(lines) == {"a", "b", "c"}
    for name, line in lines.items():
        np.testing.assert_array_equal(line.get_xdata(), np.arange(120))
        np.testing.assert_array_equal(line.get_ydata(), frame.loc[frame["sequence"] == name, "energy"])
    many = plots.plot_token_energy(tokens("thirty"))  # more than a legend can hold
    assert {line.get_alpha() for line in many.lines} == {8 / 30}
    assert many.get_figure().legends == []


def test_points_that_a_log_axis_cannot_show_are_counted():
    title = plots.plot_proxy(proxies("nan intervals")).get_title(loc="left")
    assert title.replace("\n", " ").endswith("4 not positive, not shown")


def test_a_proxy_stands_beside_its_rank_correlation_and_the_diagonal():
    frame = proxies("ordinary")
    ax = plots.plot_proxy(frame)
    assert ax.get_title(loc="left") == "rank correlation 0.93"
    np.testing.assert_allclose(ax.collections[0].get_offsets(), frame[["truth", "proxy"]])
    assert [(line.get_xy1(), line.get_xy2()) for line in ax.lines] == [((1.0, 1.0), (2.0, 2.0))]
    plain = plots.plot_proxy(pd.DataFrame({"proxy": [1.0, 2.0], "truth": [1.0, 3.0]}))
    assert plain.get_title(loc="left") == ""
    assert (plain.get_xlabel(), plain.get_ylabel()) == ("truth", "proxy")


@pytest.mark.parametrize(
    ("shape", "panels"), [("ordinary", 3), ("empty", 1), ("one row", 1), ("thirty", 8), ("long names", 2)]
)
def test_each_trace_has_a_panel_of_its_own_on_common_axes(shape, panels):
    frame = tokens(shape)
    axes = plots.plot_token_energy_panels(frame)
    assert len(axes) == panels
    assert len({ax.get_ylim() for ax in axes}) == len({ax.get_xlim() for ax in axes}) == 1
    assert [bool(ax.get_xlabel()) for ax in axes[:-1]] == [False] * (panels - 1)
    figure = axes[0].get_figure()
    figure.canvas.draw()
    assert_legible(figure)
    if shape == "ordinary":
        assert min(ax.get_window_extent().height for ax in axes) > 0.4 * figure.dpi
        for name, ax in zip("abc", axes, strict=True):
            assert ax.get_title(loc="left") == name
            np.testing.assert_array_equal(ax.lines[0].get_ydata(), frame.loc[frame["sequence"] == name, "energy"])


def test_energies_state_a_metric_that_is_not_euclidean():
    frame, points = tokens("ordinary"), proxies("ordinary")
    frame.attrs["metric"] = points.attrs["metric"] = "adam(eps=1e-08, power=0.5, moments=1a)"
    assert "Adam's metric" in plots.plot_token_energy_panels(frame)[0].get_figure().get_supylabel()
    ax = plots.plot_proxy(points)
    assert ["Adam's metric" in label for label in (ax.get_xlabel(), ax.get_ylabel())] == [True, False]
