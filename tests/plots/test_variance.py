"""The forest figure draws every row of the table."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fixture_frames import variance, with_intervals

from gradstats.analyses import registry
from gradstats.estimators.display_names import in_words
from gradstats.plots import estimator_appearance, plot_variance, plot_variance_of_runs, plot_variance_panels
from gradstats.plots.names import in_mathematics
from gradstats.plots.variance import (
    draw_row,
    forest_height,
    forest_limits,
    plain_ticks,
    rows_of_own_height,
    short_rows,
    wrap_label,
)
from gradstats.stats.variance.quantities import COMPARED, QUANTITIES

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("values", "logarithmic", "landmark", "limits"),
    [
        ([2.0, 4.0], False, None, (2.0 - 0.12, 4.0 + 0.12)),  # 6% of the span on each side
        ([2.0, 4.0, NAN, INF], False, 0.0, (-0.24, 4.24)),
        ([1.0, 100.0, -5.0], True, None, (100.0**-0.06, 100.0**1.06)),
        ([3.0, 3.0], False, None, (2.7, 3.3)),  # a single value: a tenth of it
        ([NAN], False, None, (0.0, 1.0)),
        ([-1.0], True, None, (0.1, 10.0)),
    ],
)
def test_limits_show_every_finite_value_and_the_landmark(values, logarithmic, landmark, limits):
    assert forest_limits(np.array(values), logarithmic, landmark) == pytest.approx(limits)


@pytest.mark.parametrize(
    ("estimate", "markers", "interval"),
    [
        ((0.5, 0.2, 0.7), ["o"], (0.2, 0.7)),
        ((NAN, 0.2, 0.4), ["|"], (0.2, 0.4)),
        ((0.5, 0.2, INF), [">", "o"], (0.2, 1.0)),
        ((0.5, -INF, 0.7), ["<", "o"], (0.0, 0.7)),
        ((NAN, 0.2, INF), [">", "|"], (0.2, 1.0)),
    ],
)
def test_an_interval_without_an_end_runs_off_the_axis_with_an_arrow(estimate, markers, interval):
    _, ax = plt.subplots()
    ax.set_xlim(0.0, 1.0)
    draw_row(ax, 0.0, estimate, "k", "o")
    assert sorted(line.get_marker() for line in ax.lines if line.get_marker() != "None") == sorted(markers)
    assert tuple(next(line for line in ax.lines if line.get_marker() == "None").get_xdata()) == interval


def test_a_value_without_interval_is_a_cross_and_an_interval_without_value_is_dashed():
    _, ax = plt.subplots()
    ax.set_xlim(0.0, 1.0)
    draw_row(ax, 0.0, (0.5, NAN, NAN), "k", "o")
    (bare,) = ax.lines
    assert (bare.get_marker(), bare.get_linestyle()) == ("x", "None")
    draw_row(ax, 2.0, (NAN, 0.2, 0.4), "k", "o")
    assert ax.lines[-2].get_linestyle() == "--"
    draw_row(ax, 0.0, (0.5, 0.4, 0.6), "k", "o", fill="bottom")  # a half-filled marker has an empty half
    assert (ax.lines[-1].get_marker(), ax.lines[-1].get_fillstyle()) == ("o", "bottom")
    assert ax.lines[-1].get_markerfacecoloralt() == ax.get_facecolor()


@pytest.mark.parametrize(
    ("label", "longest", "broken"),
    [
        ("group_mean(loo=True)", None, "group_mean(loo=True)"),
        ("length_weighted(alpha=0.8)", None, "length_weighted\n(alpha=0.8)"),
        ("mine(one_of_mine=0.123456, second=0.654321)", 30, "mine\n(one_of_mine=0.123456,\nsecond=0.654321)"),
        ("norm-weighted, α = 0.8, leave-one-out", 26, "norm-weighted, α = 0.8,\nleave-one-out"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 30, "deepseek-ai/DeepSeek-R1-\nDistill-Qwen-1.5B"),
    ],
)
def test_labels_break_before_and_between_their_parameters(label, longest, broken):
    assert wrap_label(label, longest) == broken


def test_lines_of_labels_take_height():
    size = plt.rcParams["font.size"] / 8.0
    assert forest_height(["a", "b", "c"]) == pytest.approx((3 * 0.2 + 0.5) * size)
    assert forest_height(["a\nb", "c"]) == pytest.approx((2 * 0.29 + 0.5) * size)
    assert forest_height(["a", "b"], rows_each=2) == pytest.approx((4 * 1.5 * 0.09 + 0.5) * size)
    centres, height = rows_of_own_height(["one", "two\nlines", "one", "one"])
    assert [0.0, *np.diff(centres)] == pytest.approx([centres[0], 1.225, 1.225, 1.0])
    assert rows_of_own_height(["one", "three\nlines\nhere", "one", "one"])[1] - height == pytest.approx(0.09 * size)
    for count, each in ((10, 0.2), (30, 0.15)):  # many rows are lower
        one_more = rows_of_own_height(["a"] * count)[1] - rows_of_own_height(["a"] * (count - 1))[1]
        assert one_more == pytest.approx(each * size)


@pytest.mark.parametrize(
    ("limits", "most", "ticks"),
    [
        ((0.9, 21.0), 5, ["1", "2", "5", "10", "20"]),
        ((0.9, 50.0), 5, ["1", "3", "10", "30"]),
        ((0.9, 1.35), 5, ["0.9", "1", "1.1", "1.2", "1.3"]),
        ((0.5, 5000.0), 5, ["1", "10", "100", "1000"]),
        ((25.0, 110.0), 3, ["30", "50", "70", "100"]),  # 50 and 100 alone would look like a linear axis
        ((300.0, 300.0 * np.exp(0.01)), 5, None),
        ((300.0, 300.0 * np.exp(20.0)), 5, None),
    ],
)
def test_ticks_of_a_log_axis_are_plain_numbers_apart_from_each_other(limits, most, ticks):
    figure, ax = plt.subplots()
    ax.set_xscale("log")
    ax.set_xlim(*limits)
    plain_ticks(ax, logarithmic=True, most=most)
    figure.canvas.draw()
    shown = [label for label in ax.get_xticklabels() if limits[0] <= label.get_position()[0] <= limits[1]]
    assert ticks is None or [label.get_text() for label in shown] == ticks
    assert len(shown) >= 2
    for first, second in itertools.pairwise(label.get_window_extent() for label in shown):
        assert first.x1 < second.x0


VALUES = tuple(quantity.name for quantity in COMPARED)


def words(frame):
    """The names of the rows as they are written in a figure."""
    return [in_mathematics(in_words(label)) for label in frame["estimator"]]


def table(n=4, reference="rloo"):
    names = ["rloo", "reinforce", "length_weighted(alpha=0.8, loo=True)", "dr_grpo"]
    frame = with_intervals(pd.DataFrame({"estimator": names[:n], "group_size": 4}), VALUES, "ordinary")
    frame.attrs["reference"] = reference
    return frame


def matched(estimators, values, low=None, high=None, reference="rloo"):
    """A frame of relative noises alone."""
    columns = {"matched_ratio": values, "matched_ratio_low": low or values, "matched_ratio_high": high or values}
    frame = pd.DataFrame({"estimator": estimators, **columns})
    frame.attrs["reference"] = reference
    return frame


def row_labels(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


@pytest.mark.parametrize("value", VALUES)
def test_every_row_in_order_with_its_interval(value):
    frame = table()
    ax = plot_variance(frame, value=value)
    assert [label.replace("\n", " ") for label in row_labels(ax)] == words(frame)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    bars = [line for line in ax.lines if len(line.get_xdata()) == 2 and len(set(line.get_ydata())) == 1]
    np.testing.assert_allclose([bar.get_xdata() for bar in bars], frame[[f"{value}_low", f"{value}_high"]])
    points = [line for line in ax.lines if line.get_linestyle() == "None"]
    for point, (_, row) in zip(points, frame.iterrows(), strict=True):
        assert point.get_xdata()[0] == row[value]
        assert (point.get_color(), point.get_marker()) == estimator_appearance(row["estimator"])
    assert ax.get_xscale() == ("log" if QUANTITIES[value].logarithmic else "linear")


def test_the_axis_names_the_quantity_and_the_reference():
    ax = plot_variance(table(reference="dr_grpo"), value="ratio")
    assert ax.get_xlabel() == "variance relative to Dr. GRPO\nbaseline"
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ax.lines)
    assert plot_variance(table(), value="ratio", reference="OPO").get_xlabel() == "variance relative to OPO"
    assert plot_variance(table()).get_xlabel() == "samples needed for equal noise,\nrelative to RLOO"


def with_verdict(n=4):
    """A table with simultaneous intervals, the first below 1; the last row was not judged, the third is a ray."""
    frame = table(n)
    columns = ["matched_ratio_simultaneous_low", "matched_ratio_simultaneous_high"]
    frame[columns] = np.outer(frame["matched_ratio"], [0.7, 1.5])
    frame.loc[2, ["matched_ratio", "matched_ratio_high", columns[1]]] = [np.nan, np.inf, np.inf]
    frame.loc[3, columns] = np.nan
    frame.loc[0, ["matched_ratio", *columns]] = [0.8, 0.7, 0.9]
    return frame


def test_single_and_simultaneous_intervals_are_bars_of_two_widths():
    frame = with_verdict()
    ax = plot_variance(frame)
    left, right = ax.get_xlim()
    (thin,) = ax.collections
    ends = frame[["matched_ratio_simultaneous_low", "matched_ratio_simultaneous_high"]].to_numpy()[:3]
    assert left < ends[:, 0].min()
    assert right > ends[:2].max()
    ends[2, 1] = right  # that of a ray
    np.testing.assert_allclose([path[:, 0] for path in thin.get_segments()], ends)
    np.testing.assert_allclose([path[0, 1] for path in thin.get_segments()], ax.get_yticks()[:3])
    wide = next(line for line in ax.lines if list(line.get_ydata()) == [0, 0])
    assert wide.get_linewidth() > 1.5 * thin.get_linewidths()[0]
    np.testing.assert_array_equal(thin.get_edgecolor()[0][:3], mpl.colors.to_rgb(wide.get_color()))


def test_a_row_is_bold_where_it_is_shown_to_be_below_the_reference():
    frame = with_verdict()
    for ax in (plot_variance(frame), plot_variance_panels(frame, sort=False)[0]):
        assert [label.get_fontweight() == "bold" for label in ax.get_yticklabels()] == [True, False, False, False]
    assert "bold" not in {label.get_fontweight() for label in plot_variance(frame, value="cosine").get_yticklabels()}


def test_unresolved_and_one_sided_rows_are_drawn():
    frame = table()
    frame.loc[0, ["noise_to_signal", "noise_to_signal_low", "noise_to_signal_high"]] = np.nan
    frame.loc[1, ["noise_to_signal", "noise_to_signal_high"]] = [np.nan, np.inf]
    frame["ratio"] = frame["ratio_low"] = frame["ratio_high"] = np.nan
    frame.loc[2, "kept_share"] = np.nan  # a row without any number was not measured
    ax = plot_variance(frame, value="noise_to_signal")
    assert [text.get_text() for text in ax.texts] == ["not resolved"]
    assert sum(line.get_marker() == ">" for line in ax.lines) == 1
    texts = [text.get_text() for text in plot_variance(frame, value="ratio").texts]
    assert texts == ["not resolved", "not resolved", "not measured", "not resolved"]


def test_bad_input():
    with pytest.raises(ValueError, match="value='variance' cannot be drawn: choose from trace_cov, signal_sq"):
        plot_variance(table(), value="variance")
    with pytest.raises(ValueError, match=r"lacks the column.* matched_ratio_high"):
        plot_variance(table().drop(columns="matched_ratio_high"))


def test_panels_are_sorted_alike_and_labelled_once_with_unresolved_rows_last():
    frame = variance("ordinary")
    frame.loc[0, "matched_ratio"] = np.nan
    axes = plot_variance_panels(frame)
    ordered = frame.sort_values("matched_ratio", na_position="last")
    assert [label.get_text() for label in axes[0].get_yticklabels()] == words(ordered)
    cosines = [line.get_xdata()[0] for line in axes[1].lines if line.get_linestyle() == "None"]
    np.testing.assert_array_equal(cosines, ordered["cosine"])
    with pytest.raises(ValueError, match="axes holds 1 axes for 3 values"):
        plot_variance_panels(frame, axes=axes[:1])


def with_ends(highs):
    """The rows of two runs with simultaneous intervals of these upper ends."""
    return two_runs().assign(matched_ratio_simultaneous_low=0.5, matched_ratio_simultaneous_high=highs)


def two_runs():
    frame = pd.concat([table(3).assign(run="on-policy"), table(3).assign(run="stale")], ignore_index=True)
    return frame.sort_values("estimator", kind="stable", ignore_index=True)


def test_rows_of_several_runs_share_a_name_and_have_a_letter_each():
    frame = with_ends([0.9, *[1.1] * 4, 0.9])
    axes = plot_variance_panels(frame, sort=False)
    for ax in (plot_variance(frame), axes[0]):
        names = [label.get_text() for label in ax.get_yticklabels()]
        assert [name.partition(",")[0] for name in names] == ["length-weighted", "REINFORCE", "RLOO"]
        assert list(ax.get_yticks()) == [0.5, 2.5, 4.5]
        letters = ax.get_yticklabels(minor=True)
        assert [letter.get_text() for letter in letters] == ["a", "b"] * 3
        assert [letter.get_fontweight() == "bold" for letter in letters] == [True, *[False] * 4, True]
    assert not any(label.get_visible() for label in axes[1].get_yticklabels(minor=True))
    letters = plot_variance(frame.drop(index=2)).get_yticklabels(minor=True)  # an estimator of one run keeps its letter
    assert [letter.get_text() for letter in letters] == ["a", "b", "b", "a", "b"]


def test_runs_side_by_side_share_names_and_axis():
    frame = with_ends([0.9, 0.9, *[1.1] * 3, 0.9]).assign(kept_share=1.0)
    frame.loc[frame["run"] == "stale", "matched_ratio_high"] *= 9.0
    frame = frame.drop(index=3)  # "reinforce" of the stale run
    first, second = plot_variance_of_runs(frame)
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    names = first.get_yticklabels()
    assert [name.get_text().partition(",")[0] for name in names] == ["length-weighted", "REINFORCE", "RLOO"]
    assert [name.get_fontweight() == "bold" for name in names] == [True, False, False]
    assert not any(label.get_visible() for label in second.get_yticklabels())
    for ax, run, texts in ((first, "on-policy", []), (second, "stale", ["not measured"])):
        assert (ax.get_title(), [text.get_text() for text in ax.texts]) == (run, texts)
        drawn = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
        assert drawn == frame.loc[frame["run"] == run, "matched_ratio"].tolist()
    with pytest.raises(ValueError, match="axes holds 1 axes for 2 runs"):
        plot_variance_of_runs(frame, axes=[first])
    with pytest.raises(ValueError, match="draw the tables of several runs"):
        plot_variance_of_runs(table(3))


def test_a_row_of_which_one_end_is_known_does_not_stretch_the_axis():
    frame = table(3)
    frame.loc[2, ["matched_ratio", "matched_ratio_low", "matched_ratio_high"]] = np.nan, 1e3, np.inf
    ax = plot_variance(frame)
    assert ax.get_xlim()[1] < 10
    assert [line.get_marker() for line in ax.lines if line.get_xdata()[0] == ax.get_xlim()[1]].count(">") == 1


def test_a_short_figure_shares_rows_that_are_equal_and_names_what_is_not_resolved():
    labels = ["reinforce", "group_mean", "rloo", "grpo"]
    frame = matched(labels, [2.0, 1.0, 1.0, np.nan], [1.5, 1.0, 1.0, np.nan], [2.5, 1.0, 1.0, np.nan])
    ax = plot_variance(frame, sort=True, short=True)
    rows = [" ".join(label.split()) for label in row_labels(ax)]
    assert rows == ["RLOO = group mean", "REINFORCE"]
    assert ax.get_title(loc="right") == "Not resolved: GRPO advantage."


def test_rows_of_several_sizes_are_named_with_their_size_where_they_are_left_out():
    frame = matched(["rloo", "grpo", "rloo", "grpo"], [1.0, np.nan, 1.0, 1.2]).assign(group_size=[2, 2, 4, 4])
    assert short_rows(frame, "matched_ratio").unresolved == ["GRPO advantage, N=2"]
    assert row_labels(plot_variance(frame.iloc[1:], short=True)) == ["RLOO, N=4", "GRPO advantage, N=4"]
    assert "not resolved: GRPO advantage, N=2." in registry.get("variance").figures[0].caption_of(frame)
    many = pd.concat([frame.assign(group_size=frame["group_size"] + 4 * at).iloc[[0, 2, 3]] for at in range(4)])
    many["matched_ratio"] += np.linspace(0.0, 0.1, len(many))
    many.attrs = frame.attrs
    between = short_rows(many, "matched_ratio").between
    assert len(between) == len(set(between)) == len(many) - 8


def test_of_many_rows_the_outer_ones_and_the_reference_are_drawn():
    labels = [f"length_weighted(alpha=0.{at})" for at in range(1, 10)]
    chosen = short_rows(matched([*labels, "rloo"], [*np.linspace(0.5, 1.4, 9), 1.01]), "matched_ratio")
    assert len(chosen.drawn) == 8
    assert "rloo" in set(chosen.drawn["estimator"])
    assert chosen.between == [in_words(labels[at]) for at in (3, 4)]
    assert chosen.sentence == "2 more rows in between."


def test_a_row_that_nothing_compares_with_is_drawn_beside_the_unresolved_ones():
    frame = matched(["reinforce", "rloo"], [1.0, np.nan], [1.0, 0.4], [1.0, np.inf], reference="reinforce")
    ax = plot_variance(frame, sort=True, short=True)
    assert row_labels(ax) == ["REINFORCE", "RLOO"]
    assert ax.get_title(loc="right") == ""
