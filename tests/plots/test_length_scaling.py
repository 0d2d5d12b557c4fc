"""The length-scaling figure shows the numbers of the fit."""

from __future__ import annotations

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fixture_frames import length_bins
from legibility import assert_legible

from gradstats import plots
from gradstats.plots import plot_length_scaling, style
from gradstats.stats import fit_length_scaling


def test_bins_of_short_completions_do_not_crowd_the_axis():
    edges = {"length_low": [3, 11, 12, 19], "length_high": [10, 11, 18, 183]}
    ends = {f"noise_to_signal{end}": [10.0, 20.0, 30.0, 40.0] for end in ("", "_low", "_high")}
    plots.plot_length_bins(pd.DataFrame(edges | ends))
    figure = plt.gcf()
    figure.canvas.draw()
    assert_legible(figure)


def test_a_bin_known_from_below_alone_is_a_triangle_at_its_bound():
    frame = length_bins("ordinary")
    ax = plots.plot_length_bins(frame)
    (triangle,) = [line for line in ax.lines if line.get_marker() == "^" and len(line.get_xdata())]
    np.testing.assert_array_equal(triangle.get_ydata(), frame["noise_to_signal_low"][:1])
    assert [text.get_text() for text in ax.get_figure().legends[0].get_texts()][-1] == "at least"
    one = frame.iloc[1:5].assign(estimator="token_mean(loo=True)")  # bins of one estimator name it
    assert plots.plot_length_bins(one.drop(columns="estimator")).get_figure().legends == []
    (legend,) = plots.plot_length_bins(one).get_figure().legends
    assert [text.get_text() for text in legend.get_texts()] == ["token mean, leave-one-out"]


@pytest.fixture
def fit():
    rng = np.random.default_rng(0)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.8, 120)))
    norms = np.exp(1.0 + 1.6 * np.log(lengths) + rng.normal(0, 0.8, 120))
    return fit_length_scaling(lengths=lengths, sq_norms=norms, groups=np.repeat(np.arange(30), 4))


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_points_line_band_and_legend_are_those_of_the_fit(fit):
    low, high = fit.confidence_interval(0.9)
    ax = plot_length_scaling(fit, label="mine", confidence_level=0.9)
    assert labels(ax) == [rf"mine: $\alpha$ = {fit.alpha:.2f} [{low:.2f}, {high:.2f}]"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    points, band = ax.collections
    np.testing.assert_allclose(np.asarray(points.get_offsets()), np.column_stack([fit.lengths, fit.sq_norms]))
    x, y = ax.lines[0].get_data()
    frame = fit.predict(x, 0.9)
    np.testing.assert_allclose(y, frame["sq_norm"])
    vertices = band.get_paths()[0].vertices
    assert vertices[:, 1].min() == pytest.approx(frame["sq_norm_low"].min())
    assert vertices[:, 1].max() == pytest.approx(frame["sq_norm_high"].max())


def test_completions_cut_off_at_the_cap_are_marked(fit):
    cut = np.arange(fit.n) < 5
    marked = fit_length_scaling(lengths=fit.lengths, sq_norms=fit.sq_norms, groups=fit.clusters, truncated=cut)
    ax = plot_length_scaling(marked)
    assert labels(ax)[0] == "cut off at the cap"
    assert [len(points.get_offsets()) for points in ax.collections[:2]] == [fit.n - 5, 5]


def test_the_axis_states_a_metric_that_is_not_euclidean(fit):
    assert "P" not in plot_length_scaling(fit).get_ylabel()
    assert r"\Vert P\circ\nabla" in plot_length_scaling(replace(fit, metric="adam(moments=1a)")).get_ylabel()


def test_published_points_have_an_inset_with_their_line(fit):
    ax = plot_length_scaling(fit, published="gloeckle2026")
    assert labels(ax)[0] == r"Gloeckle (2026): $\alpha$ = 0.79 [0.47, 1.10]"
    (inset,) = ax.child_axes
    assert len(inset.collections[0].get_offsets()) == 29
    (line,) = inset.lines
    (x0, y0), (x1, y1) = line.get_xydata()
    assert np.log(y1 / y0) / np.log(x1 / x0) == pytest.approx(2 * 0.79, abs=0.02)
    assert ax.get_xlim() == plot_length_scaling(fit).get_xlim()  # the run's own points keep the axis
    falling = fit_length_scaling(lengths=fit.lengths, sq_norms=1.0 / fit.sq_norms)  # lowest where the inset is
    for drawn, one in ((ax, fit), (plot_length_scaling(falling, published="gloeckle2026"), falling)):
        drawn.figure.canvas.draw()
        points = drawn.transData.transform(np.column_stack([one.lengths, one.sq_norms]))
        assert not drawn.child_axes[0].get_window_extent().count_contains(points)
        assert drawn.bbox.count_contains(points) == len(points)
    own = pd.DataFrame({"length": [3.0], "sq_norm": [9.0]})
    assert labels(plot_length_scaling(fit, published=own))[0] == "published"
    with pytest.raises(ValueError, match=r"published lacks the column.* sq_norm"):
        plot_length_scaling(fit, published=own[["length"]])
    with pytest.raises(KeyError, match=r"no data set is named 'gloeckle'.*did you mean 'gloeckle2026'"):
        plot_length_scaling(fit, published="gloeckle")


def test_several_fits_share_an_axis_in_different_colours(fit):
    ax = plot_length_scaling(fit, label="one")
    assert plot_length_scaling(fit, ax=ax, label="two") is ax
    assert ax.lines[0].get_color() != ax.lines[1].get_color()
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]  # and in grey
    shapes = [points.get_paths()[0].vertices.shape for points in (ax.collections[0], ax.collections[2])]
    assert shapes[0] != shapes[1]
    assert len(labels(ax)) == 2


@pytest.mark.parametrize("venue", ["icml", "acl", "neurips"])
def test_nothing_is_clipped_or_overlaps(fit, venue):
    with mpl.rc_context(style(venue, "half")):
        ax = plot_length_scaling(fit, published="gloeckle2026", label="embedded policy")
        ax.figure.canvas.draw()
        for artist in (ax.xaxis.label, ax.yaxis.label, ax.get_legend()):
            assert ax.figure.bbox.padded(1).count_contains(artist.get_window_extent().corners()) == 4, artist
        legend = ax.get_legend().get_window_extent()
        for points in ax.collections[:2]:
            assert not legend.count_contains(ax.transData.transform(points.get_offsets()))
