"""A sweep's figure: panels, lines of further settings, settings that are not numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gradstats.plots import plot_sweep, varying_settings
from gradstats.plots.sweep import training_steps

NOISE = ["matched_ratio", "matched_ratio_low", "matched_ratio_high"]


def frame_of(cells):
    """A joined frame with two estimators a cell."""
    rows = []
    for at, settings in enumerate(cells):
        for estimator, ratio in (("rloo", 1.0), ("grpo", 1.2 + 0.1 * at)):
            row = {"cell": f"c{at}", **settings, "estimator": estimator}
            numbers = {
                "alpha": 0.5 + at,
                "mean_length": 50.0 + at,
                "mean_reward": 0.5 + 0.01 * at,
                "matched_ratio": ratio,
            }
            for name, value in numbers.items():
                row |= {name: value, f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
            rows.append(row)
    frame = pd.DataFrame(rows)
    frame.attrs = {"reference": "rloo"}
    return frame


def heights(ax):
    return [
        line.get_ydata().tolist() for line in ax.get_lines() if len(line.get_ydata()) and line.get_marker() != "None"
    ]


def titles(axes):
    return [ax.get_title(loc="left") for ax in axes]


def legend_of(axes):
    return [text.get_text() for text in axes[0].get_figure().legends[0].get_texts()]


def test_panels_stand_at_the_values_of_the_setting():
    frame = frame_of([{"sampling.temperature": 1.0}, {"sampling.temperature": 0.6}])
    axes = plot_sweep(frame, "sampling.temperature", varied=["sampling.temperature"])
    assert titles(axes) == [r"$\alpha$", "mean length (tokens)", "mean reward", "relative noise (RLOO = 1)"]
    assert heights(axes[0]) == [[1.5, 0.5]]  # from the lower temperature to the higher
    assert heights(axes[3]) == [[1.3, 1.2]]  # the reference is not drawn
    assert axes[3].get_yscale() == "log"
    assert axes[0].get_xlabel().split() == ["sampling", "temperature"]
    same = frame.assign(mean_length=50.0, mean_reward=0.5)  # what is equal in all cells has no panel
    assert titles(plot_sweep(same, "sampling.temperature")) == [r"$\alpha$", "relative noise (RLOO = 1)"]


def test_settings_of_different_magnitude_stand_on_a_log_scale_and_names_side_by_side():
    ax = plot_sweep(frame_of([{"cap": cap} for cap in (50, 100, 400)]), "cap")[0]
    (line,) = [line for line in ax.get_lines() if len(line.get_xdata()) == 3]
    assert np.diff(line.get_xdata()) == pytest.approx([np.log(2), np.log(4)])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["50", "100", "400"]
    axes = plot_sweep(frame_of([{"policy.name": name} for name in ("late", "early")]), "policy.name")
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["late", "early"]


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["runs/a/checkpoint-50", "checkpoint-7"], [50, 7]),
        (["step-50", "main"], None),
        (["my-step-50"], None),
    ],
)
def test_names_of_checkpoints_state_their_steps(names, steps):
    assert training_steps(names) == steps


def test_further_settings_are_lines_of_their_own():
    cells = [{"a.x": x, "b.y": y} for x in (1, 2) for y in ("p", "q")]
    axes = plot_sweep(frame_of(cells), "a.x", varied=["a.x", "b.y"])
    assert heights(axes[0]) == [[0.5, 2.5], [1.5, 3.5]]
    assert legend_of(axes) == ["b y p", "b y q", "GRPO advantage"]


@pytest.mark.parametrize(
    ("cells", "varied", "varying"),
    [
        ([{"a.x": x, "b.x": x, "c.z": 3} for x in (1, 2)], ["a.x", "b.x", "c.z"], ["a.x"]),
        # The second moments follow from the metric.
        ([{"metric": one, "moments": of} for one, of in zip("eab", (None, "m", "m"), strict=True)], None, ["metric"]),
        ([{"dtype": "b", "revision": None}, {"dtype": None, "revision": "r"}], ["dtype", "revision"], ["cell"]),
        ([{"dtype": "b"}, {"name": "a"}, {"name": "b"}, {"revision": "r"}], ["dtype", "name", "revision"], ["cell"]),
        ([{"a.x": x, "b.y": y} for x in (1, 2) for y in (1, 2)], ["a.x", "b.y"], ["a.x", "b.y"]),
    ],
)
def test_settings_that_others_decide_are_none_of_their_own(cells, varied, varying):
    assert varying_settings(frame_of(cells), varied or ["moments", "metric"]) == varying


def visible_ticks(ax):
    low, high = ax.get_ylim()
    return [tick for tick in ax.get_yticks() if low <= tick <= high]


@pytest.mark.parametrize(
    ("noise", "most"), [([[2.0, 0.6, 3.4], [0.8, 0.7, 1.1]], 4), ([[1e-9, 0.9e-9, 1.1e-9]] * 2, 6)]
)
def test_a_panel_has_few_ticks_over_any_range(noise, most):
    frame = frame_of([{"a.x": 1}, {"a.x": 2}])
    frame.loc[frame["estimator"] == "grpo", NOISE] = noise
    ax = plot_sweep(frame, "a.x")[3]
    ax.figure.canvas.draw()
    assert 2 <= len(visible_ticks(ax)) <= most


def test_estimators_may_be_chosen_and_unresolved_numbers_are_left_out():
    frame = frame_of([{"a.x": 1}, {"a.x": 2}])
    frame.loc[frame["estimator"] == "grpo", NOISE] = np.nan
    assert heights(plot_sweep(frame, "a.x", estimators=["grpo", "rloo"])[3])[1] == [1.0, 1.0]
    frame.loc[frame["estimator"] == "grpo", NOISE] = [[1.2, 1e-4, 1.3], [1.3, 1.2, 1.4]]
    axes = plot_sweep(frame, "a.x")
    np.testing.assert_array_equal(heights(axes[3])[0], [np.nan, 1.3])  # the first may be anything
    assert "".join(legend_of(axes)[-1].split()) == "notdrawn:notknownwithinafactorof1,000"
    with pytest.raises(ValueError, match="no cell has a row of 'grop': choose from rloo, grpo"):
        plot_sweep(frame, "a.x", estimators=["grop"])
    with pytest.raises(ValueError, match=r"lacks the column\(s\) a\.z"):
        plot_sweep(frame, "a.z")


def test_checkpoints_stand_at_their_training_steps():
    frame = frame_of([{"policy.revision": f"step-{step:06d}"} for step in range(0, 800, 100)])
    for end in ("", "_low", "_high"):
        frame[f"trace_cov{end}"] = 3.0
        frame[f"noise_to_signal{end}"] = np.where(frame["estimator"] == "rloo", 40.0, 50.0)
    frame.loc[frame["cell"] == "c1", ["noise_to_signal", "noise_to_signal_high"]] = [np.nan, np.inf]  # not resolved
    axes = plot_sweep(frame, "policy.revision", varied=["policy.revision"])
    assert titles(axes)[3:] == ["tr Cov of RLOO", "critical batch of RLOO", *titles(axes)[5:]]
    (line,) = [line for line in axes[0].get_lines() if len(line.get_xdata()) == 8]
    assert line.get_xdata().tolist() == list(range(0, 800, 100))  # linear, from the first to the last
    assert heights(axes[3]) == [[3.0] * 8]  # of the reference alone
    (critical, below) = [heights for heights in heights(axes[4]) if heights]
    np.testing.assert_array_equal(critical, [40.0, np.nan, *[40.0] * 6])
    assert below == [40.0]  # a triangle at the lower end
    assert axes[0].get_xlabel() == "training step"
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["0", "200", "400", "600"]


def test_intervals_beyond_every_scale_are_drawn_like_open_ones():
    frame = frame_of([{"a.x": 1}, {"a.x": 2}])
    frame.loc[frame.index[-1], ["matched_ratio_low", "matched_ratio_high"]] = 1e-260, 1e252
    axes = plot_sweep(frame, "a.x")
    axes[0].figure.canvas.draw()
    assert axes[3].get_ylim()[1] < 10


def test_a_setting_that_a_cell_does_not_state_joins_its_line():
    cells = [{"t": value, "moments": np.nan} for value in (0.6, 1.0)] + [{"t": 1.0, "moments": "embedded"}]
    assert len(heights(plot_sweep(frame_of(cells), "t", varied=["t", "moments"])[0])) == 2


def test_cells_that_differ_in_several_settings_stand_side_by_side_under_numbers():
    # Drawn and scored, drawn and scored, drawn at one and scored at another: no two cells differ in one setting only.
    arms = [{"t": 0.6, "p": 0.95, "s": 1.0}, {"t": 1.0, "p": 1.0, "s": 1.0}, {"t": 0.6, "p": 1.0, "s": 0.6}]
    frame = frame_of(arms)
    assert varying_settings(frame, ["t", "p", "s"]) == ["cell"]
    axes = plot_sweep(frame, "cell", varied=["t", "p", "s"])
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["1", "2", "3"]
    assert heights(axes[0]) == [[0.5, 1.5, 2.5]]
    assert {line.get_linestyle() for line in axes[0].get_lines() if len(line.get_ydata()) == 3} == {"None"}
    assert legend_of(axes)[-3:] == ["1: c0", "2: c1", "3: c2"]
    # One pair that differs in a single setting is enough for an axis of its values.
    assert varying_settings(frame_of([*arms, {"t": 0.6, "p": 1.0, "s": 1.0}]), ["t", "p", "s"]) != ["cell"]
