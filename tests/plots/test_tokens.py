"""Energy along traces, and proxies against what they stand for."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fixture_frames import proxies, tokens

from gradstats import plots

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_each_trace_is_drawn_in_the_order_of_positions():
    frame = tokens("ordinary")
    shuffled = frame.sample(frac=1.0, random_state=0)
    lines = {line.get_label(): line for line in plots.plot_token_energy(shuffled).lines}
    assert set(lines) == {"a", "b", "c"}
    for name, line in lines.items():
        np.testing.assert_array_equal(line.get_xdata(), np.arange(120))
        np.testing.assert_array_equal(line.get_ydata(), frame.loc[frame["sequence"] == name, "energy"])


def test_more_traces_than_a_legend_can_hold_are_pale_and_without_names():
    ax = plots.plot_token_energy(tokens("thirty"))
    assert {line.get_alpha() for line in ax.lines} == {8 / 30}
    assert ax.get_figure().legends == []


def test_points_that_a_log_axis_cannot_show_are_counted():
    assert plots.plot_proxy(proxies("nan intervals")).get_title(loc="left").endswith("4 not positive, not shown")


def test_a_proxy_stands_beside_its_rank_correlation_and_the_diagonal():
    frame = proxies("ordinary")
    ax = plots.plot_proxy(frame)
    assert ax.get_title(loc="left") == "rank correlation 0.93"
    np.testing.assert_allclose(ax.collections[0].get_offsets(), frame[["truth", "proxy"]])
    assert [(line.get_xy1(), line.get_xy2()) for line in ax.lines] == [((1.0, 1.0), (2.0, 2.0))]
    plain = plots.plot_proxy(pd.DataFrame({"proxy": [1.0, 2.0], "truth": [1.0, 3.0]}))
    assert plain.get_title(loc="left") == ""
    assert (plain.get_xlabel(), plain.get_ylabel()) == ("truth", "proxy")
