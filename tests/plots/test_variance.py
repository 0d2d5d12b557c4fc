"""The forest figure draws every row of the table."""

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fixture_frames import variance

from gradstats.estimators.display_names import in_words
from gradstats.plots import estimator_appearance, plot_variance, plot_variance_of_runs, plot_variance_panels, style
from gradstats.plots.names import in_mathematics
from gradstats.stats.variance.quantities import COMPARED, QUANTITIES

VALUES = tuple(quantity.name for quantity in COMPARED)


def words(frame):
    """The names of the rows as they are written in a figure."""
    return [in_mathematics(in_words(label)) for label in frame["estimator"]]


def table(n=4, reference="rloo"):
    names = [
        "rloo",
        "reinforce",
        "length_weighted(alpha=0.8, loo=True)",
        "dr_grpo",
        *[f"mine_{i}" for i in range(30)],
    ]
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"estimator": names[:n], "group_size": 4})
    for value in VALUES:
        centre = np.exp(rng.normal(0, 0.5, n))
        frame[value], frame[f"{value}_low"], frame[f"{value}_high"] = centre, 0.8 * centre, 1.3 * centre
    frame.attrs["reference"] = reference
    return frame


@pytest.fixture(autouse=True)
def paper_style():
    with mpl.rc_context(style("icml", "half")):
        yield
    plt.close("all")


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


def test_reference_line_and_label():
    ax = plot_variance(table(reference="dr_grpo"), value="ratio")
    assert ax.get_xlabel() == "variance relative to Dr. GRPO\nbaseline"
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ax.lines)
    assert plot_variance(table(), value="ratio", reference="OPO").get_xlabel() == "variance relative to OPO"


def test_at_matched_signal_unless_asked_otherwise():
    frame = table()
    ax = plot_variance(frame)
    assert ax.get_xlabel() == "variance relative to RLOO,\nat matched signal"
    points = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
    np.testing.assert_array_equal(points, frame["matched_ratio"])


def with_verdict(n=4):
    """A table with simultaneous intervals and a best set; the last row was not judged, the third is a ray."""
    frame = table(n)
    frame["matched_ratio_simultaneous_low"] = 0.7 * frame["matched_ratio"]
    frame["matched_ratio_simultaneous_high"] = 1.5 * frame["matched_ratio"]
    frame.loc[2, ["matched_ratio", "matched_ratio_high"]] = [np.nan, np.inf]
    frame.loc[2, "matched_ratio_simultaneous_high"] = np.inf
    frame.loc[3, "matched_ratio_simultaneous_low"] = frame.loc[3, "matched_ratio_simultaneous_high"] = np.nan
    frame["in_best_set"] = [True, False, False, None]
    return frame


def test_single_and_simultaneous_intervals_are_bars_of_two_widths():
    frame = with_verdict()
    ax = plot_variance(frame)
    (thin,) = ax.collections
    ends = frame[["matched_ratio_simultaneous_low", "matched_ratio_simultaneous_high"]].to_numpy()[:3]
    ends[2, 1] = ax.get_xlim()[1]
    np.testing.assert_allclose([path[:, 0] for path in thin.get_segments()], ends)
    places = ax.get_yticks()
    np.testing.assert_allclose([path[0, 1] for path in thin.get_segments()], places[:3])
    wide = [line for line in ax.lines if list(line.get_ydata()) == [0, 0]]
    assert wide[0].get_linewidth() > 1.5 * thin.get_linewidths()[0]
    np.testing.assert_array_equal(thin.get_edgecolor()[0][:3], mpl.colors.to_rgb(wide[0].get_color()))
    left, right = ax.get_xlim()
    assert left < ends[:, 0].min()
    assert right > ends[:2].max()


def test_the_best_set_is_bold_where_it_is_judged():
    frame = with_verdict()
    for ax in (plot_variance(frame), plot_variance_panels(frame, sort=False)[0]):
        assert [label.get_fontweight() == "bold" for label in ax.get_yticklabels()] == [True, False, False, False]
    weights = {label.get_fontweight() for label in plot_variance(frame, value="cosine").get_yticklabels()}
    assert "bold" not in weights
    assert plot_variance(frame, sort=True).get_yticklabels()[-1].get_fontweight() != "bold"


def test_takes_a_result():
    class Result:
        def to_frame(self):
            return table(2)

    assert row_labels(plot_variance(Result())) == ["RLOO", "REINFORCE"]


def test_unresolved_and_one_sided_rows_are_drawn():
    frame = table()
    frame.loc[0, ["noise_to_signal", "noise_to_signal_low", "noise_to_signal_high"]] = np.nan
    frame.loc[1, ["noise_to_signal", "noise_to_signal_high"]] = [np.nan, np.inf]
    ax = plot_variance(frame, value="noise_to_signal")
    assert [text.get_text() for text in ax.texts] == ["not resolved"]
    assert sum(line.get_marker() == ">" for line in ax.lines) == 1
    frame["ratio"] = frame["ratio_low"] = frame["ratio_high"] = np.nan
    assert len(plot_variance(frame, value="ratio").texts) == 4


def test_unbounded_below():
    frame = table()
    frame.loc[1, "bias_share_low"] = -np.inf
    ax = plot_variance(frame, value="bias_share")
    assert sum(line.get_marker() == "<" for line in ax.lines) == 1


def test_group_sizes_are_told_apart():
    frame = pd.concat([table(1), table(1).assign(group_size=8)])
    assert row_labels(plot_variance(frame)) == ["RLOO, N=4", "RLOO, N=8"]


@pytest.mark.parametrize("n", [0, 1, 4, 30])
def test_any_number_of_rows_fits_the_page(n):
    fig = plot_variance(table(n)).figure
    fig.canvas.draw()
    assert fig.get_size_inches()[0] == pytest.approx(3.25)
    ax = fig.axes[0]
    boxes = [label.get_window_extent() for label in ax.get_yticklabels() if label.get_text()]
    for box in boxes:
        assert box.x0 >= 0
    for upper, lower in itertools.pairwise(boxes):
        assert lower.y1 <= upper.y0 + 1.0
    ticks = [t.get_window_extent() for t in ax.get_xticklabels() if t.get_text()]
    ticks = [t for t in ticks if ax.bbox.x0 - 1 <= (t.x0 + t.x1) / 2 <= ax.bbox.x1 + 1]
    for left, right in itertools.pairwise(ticks):
        assert left.x1 < right.x0
    assert ax.xaxis.label.get_window_extent().x1 <= fig.bbox.x1


@pytest.mark.parametrize("span", [0.01, 0.2, 1.0, 5.0, 20.0])
def test_log_ticks_are_plain_and_apart_at_any_range(span):
    frame = table(2)
    frame["trace_cov"] = frame["trace_cov_low"] = [300.0, 300.0 * np.exp(span)]
    frame["trace_cov_high"] = frame["trace_cov"]
    ax = plot_variance(frame, value="trace_cov")
    ax.figure.canvas.draw()
    left, right = ax.get_xlim()
    ticks = [t.get_window_extent() for t in ax.get_xticklabels() if left <= t.get_position()[0] <= right]
    assert len(ticks) >= 2
    for first, second in itertools.pairwise(ticks):
        assert first.x1 < second.x0


def test_bad_input():
    with pytest.raises(ValueError, match="value='variance' cannot be drawn: choose from trace_cov, signal_sq"):
        plot_variance(table(), value="variance")
    with pytest.raises(ValueError, match=r"lacks the column.* matched_ratio_high"):
        plot_variance(table().drop(columns="matched_ratio_high"))


def test_panels_are_sorted_alike_and_labelled_once():
    frame = variance("ordinary")
    axes = plot_variance_panels(frame)
    shown = [label.get_text() for label in axes[0].get_yticklabels()]
    assert shown == words(frame.sort_values("matched_ratio"))
    cosines = [line.get_xdata()[0] for line in axes[1].lines if line.get_linestyle() == "None"]
    np.testing.assert_array_equal(cosines, frame.sort_values("matched_ratio")["cosine"])
    with pytest.raises(ValueError, match="axes holds 1 axes for 3 values"):
        plot_variance_panels(frame, axes=axes[:1])


def test_sorting_puts_unresolved_rows_last():
    frame = variance("ordinary")
    frame.loc[0, "matched_ratio"] = np.nan
    ax = plot_variance(frame, sort=True)
    assert ax.get_yticklabels()[-1].get_text() == words(frame)[0]


def two_runs():
    frame = pd.concat([table(3).assign(run="on-policy"), table(3).assign(run="stale")], ignore_index=True)
    return frame.sort_values("estimator", kind="stable", ignore_index=True)


def test_an_estimator_of_one_run_only_keeps_its_letter():
    rows = [("rloo", "one"), ("rloo", "two"), ("grpo", "two")]
    frame = pd.DataFrame(rows, columns=["estimator", "run"]).assign(
        matched_ratio=1.0, matched_ratio_low=0.9, matched_ratio_high=1.1, in_best_set=True
    )
    ax = plot_variance(frame)
    assert [label.get_text() for label in ax.get_yticklabels(minor=True)] == ["a", "b", "b"]
    assert [label.get_fontweight() for label in ax.get_yticklabels(minor=True)] == ["bold"] * 3


def test_rows_of_several_runs_share_a_name_and_have_a_letter_each():
    frame = two_runs().assign(in_best_set=[True, False, False, False, False, True])
    axes = plot_variance_panels(frame, sort=False)
    for ax in (plot_variance(frame), axes[0]):
        names = [label.get_text() for label in ax.get_yticklabels()]
        assert [name.partition(",")[0] for name in names] == ["length-weighted", "REINFORCE", "RLOO"]
        assert list(ax.get_yticks()) == [0.5, 2.5, 4.5]
        letters = ax.get_yticklabels(minor=True)
        assert [letter.get_text() for letter in letters] == ["a", "b"] * 3
        assert [letter.get_fontweight() == "bold" for letter in letters] == [True, *[False] * 4, True]
    assert not any(label.get_visible() for label in axes[1].get_yticklabels(minor=True))


def test_runs_side_by_side_share_names_and_axis():
    frame = two_runs().assign(in_best_set=[True, True, False, False, False, True], kept_share=1.0)
    frame.loc[frame["run"] == "stale", "matched_ratio_high"] *= 9.0
    frame = frame.drop(index=3)  # "reinforce" of the stale run
    first, second = plot_variance_of_runs(frame)
    assert [ax.get_title() for ax in (first, second)] == ["on-policy", "stale"]
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    names = first.get_yticklabels()
    assert [name.get_text().partition(",")[0] for name in names] == ["length-weighted", "REINFORCE", "RLOO"]
    assert [name.get_fontweight() == "bold" for name in names] == [True, False, False]
    assert not any(label.get_visible() for label in second.get_yticklabels())
    assert [[text.get_text() for text in ax.texts] for ax in (first, second)] == [[], ["not measured"]]
    for ax, run in ((first, "on-policy"), (second, "stale")):
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


def test_a_row_without_any_number_was_not_measured():
    frame = table(3)
    frame.loc[1:, [f"matched_ratio{end}" for end in ("", "_low", "_high")]] = np.nan
    frame.loc[2, "kept_share"] = np.nan
    texts = [text.get_text() for text in plot_variance(frame).texts]
    assert texts == ["not resolved", "not measured"]
