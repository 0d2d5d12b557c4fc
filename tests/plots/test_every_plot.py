"""Every plot function, on every shape of frame, at the narrowest width: nothing is clipped, nothing overlaps."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fixture_frames import CASES, SHAPES, blocks, completions, group_sizes, prompt_parts, proxies, variance

from gradstats import plots
from gradstats.plots import estimator_appearance, style

mpl.use("Agg")


@pytest.fixture(autouse=True)
def paper_style():
    with mpl.rc_context(style("neurips", "half")):
        yield
    plt.close("all")


def texts(figure):
    """Every text that is drawn, with its position."""
    ticks, drawn = set(), set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                ticks |= {tick.label1, tick.label2}
            # Ticks beyond the ends of an axis exist too; these are the ones that are drawn.
            drawn |= {tick.label1 for tick in axis._update_ticks() if ax.axison}
    found = [text for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]
    return [(text, text.get_window_extent()) for text in found if text in drawn or text not in ticks]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_clipped_and_no_texts_overlap(name, shape):
    plot, frame = CASES[name]
    plot(frame(shape))
    figure = plt.gcf()
    figure.canvas.draw()
    assert figure.get_size_inches()[0] == 2.75
    page = figure.bbox
    assert_legible(figure, page)


def assert_legible(figure, page):
    boxes = texts(figure)
    for text, box in boxes:
        assert box.x0 >= page.x0 - 1, text
        assert box.x1 <= page.x1 + 1, text
        assert box.y0 >= page.y0 - 1, text
        assert box.y1 <= page.y1 + 1, text
        assert text.get_fontsize() >= 5.9, text
    for (text, box), (other, beside) in itertools.combinations(boxes, 2):
        width = min(box.x1, beside.x1) - max(box.x0, beside.x0)
        height = min(box.y1, beside.y1) - max(box.y0, beside.y0)
        # A pixel or two of line spacing is no overlap.
        assert width <= 2 or height <= 3, (text, other)


def test_bins_of_short_completions_do_not_crowd_the_axis():
    edges = {"length_low": [3, 11, 12, 19], "length_high": [10, 11, 18, 183]}
    ends = {f"noise_to_signal{end}": [10.0, 20.0, 30.0, 40.0] for end in ("", "_low", "_high")}
    plots.plot_length_bins(pd.DataFrame(edges | ends))
    figure = plt.gcf()
    figure.canvas.draw()
    assert_legible(figure, figure.bbox)


@pytest.mark.parametrize("name", [name for name in CASES if name != "variance_panels"])
def test_draws_on_the_axes_it_is_given(name):
    plot, frame = CASES[name]
    _, ax = plt.subplots()
    assert plot(frame("ordinary"), ax=ax) is ax


def test_missing_columns_are_named():
    for plot, frame in CASES.values():
        with pytest.raises(ValueError, match=r"the table lacks the column\(s\) "):
            plot(frame("ordinary").iloc[:, :0])


def test_panels_are_sorted_alike_and_labelled_once():
    frame = variance("ordinary")
    axes = plots.plot_variance_panels(frame)
    shown = [label.get_text() for label in axes[0].get_yticklabels()]
    assert shown == list(frame.sort_values("matched_ratio")["estimator"])
    cosines = [line.get_xdata()[0] for line in axes[1].lines if line.get_linestyle() == "None"]
    np.testing.assert_array_equal(cosines, frame.sort_values("matched_ratio")["cosine"])
    with pytest.raises(ValueError, match="axes holds 1 axes for 3 values"):
        plots.plot_variance_panels(frame, axes=axes[:1])


def test_sorting_puts_unresolved_rows_last():
    frame = variance("ordinary")
    frame.loc[0, "matched_ratio"] = np.nan
    ax = plots.plot_variance(frame, sort=True)
    assert ax.get_yticklabels()[-1].get_text() == frame["estimator"][0]


def test_group_sizes_are_drawn_at_equal_completions():
    frame = group_sizes("ordinary")
    ax = plots.plot_group_size(frame)
    first = ax.lines[0]
    rows = frame[frame["estimator"] == "rloo"]
    np.testing.assert_allclose(first.get_ydata(), rows["trace_cov"] * rows["group_size"])
    assert (first.get_color(), first.get_marker()) == estimator_appearance("rloo")
    plain = plots.plot_group_size(frame, per_completion=False)
    np.testing.assert_allclose(plain.lines[0].get_ydata(), rows["trace_cov"])


def test_equivalence_is_a_line_to_the_size_of_rloo():
    frame = group_sizes("ordinary").rename(columns=lambda name: name.replace("trace_cov", "within_prompt"))
    row = {"estimator": "reinforce", "group_size": 4, "equivalent_group_size": 5.5}
    ax = plots.plot_group_size(frame, value="within_prompt", equivalence=pd.DataFrame([row]))
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in dotted] == [[4, 5.5]]
    legend = {text.get_text() for text in ax.get_figure().legends[0].get_texts()}
    assert "reinforce (at 4: RLOO at 5.5)" in legend
    unbounded = pd.DataFrame([row | {"equivalent_group_size": np.inf}])
    ax = plots.plot_group_size(frame, value="within_prompt", equivalence=unbounded)
    assert not [line for line in ax.lines if line.get_linestyle() == ":"]
    assert "reinforce (at 4: RLOO at $\\infty$)" in {text.get_text() for text in ax.get_figure().legends[0].get_texts()}
    with pytest.raises(ValueError, match="equivalence compares within-prompt variance at equal completions"):
        plots.plot_group_size(group_sizes("ordinary"), equivalence=pd.DataFrame([row]))


def test_both_parts_are_drawn_where_they_are():
    frame = prompt_parts("ordinary").query("estimator != 'grpo'")  # which is in another unit
    ax = plots.plot_prompt_parts(frame)
    at = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
    np.testing.assert_allclose(at, frame[["within_prompt", "between_prompt"]].to_numpy().ravel())


def test_the_map_puts_each_block_in_its_cell():
    frame = pd.DataFrame(
        {
            "block": [
                "model.embed_tokens.weight",
                "model.layers.0.mlp.up.weight",
                "model.layers.1.mlp.up.weight",
                "total",
            ],
            "share_of_sq_norm": [0.5, 0.2, 0.3, 1.0],
        }
    )
    ax = plots.plot_block_heatmap(frame)
    drawn = np.ma.filled(ax.collections[0].get_array(), np.nan)
    np.testing.assert_array_equal(drawn, [[0.5, np.nan, np.nan], [np.nan, 0.2, 0.3]])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["–", "0", "1"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["embed_tokens", "up"]
    with pytest.raises(ValueError, match="value='norm' cannot be drawn: choose from share_of_sq_norm, alpha"):
        plots.plot_block_heatmap(frame, value="norm")


def test_blocks_with_the_same_ending_stay_apart():
    labels = [label.get_text() for label in plots.plot_alpha_by_block(blocks("long names")).get_yticklabels()]
    assert len(set(labels)) == 3


def test_reward_and_length_are_relative_to_their_prompt():
    frame = completions("ordinary")
    ax = plots.plot_length_reward(frame)
    at = np.asarray(ax.collections[0].get_offsets())
    means = frame.groupby("prompt_id")[["length", "reward"]].transform("mean")
    np.testing.assert_allclose(at, frame[["length", "reward"]] - means)


def test_points_that_a_log_axis_cannot_show_are_counted():
    assert plots.plot_proxy(proxies("nan intervals")).get_title(loc="left").endswith("4 not positive, not shown")


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="value='spread' cannot be drawn: choose from trace_cov"):
        plots.plot_group_size(group_sizes("ordinary"), value="spread")
