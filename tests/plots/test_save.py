"""Saved figures: complete files of exact size, byte-identical when repeated, with their table."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from fixture_frames import variance

from gradstats.plots import save_figure, style
from gradstats.plots.save import sample_size, sample_size_of


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((96, 768), "96 prompts × 8 completions"),
        ((96, 769), "96 prompts, 769 completions"),
        ((96, 768, 8), "96 prompts × 8 completions"),
        ((96, 768, 2), "96 prompts × 8 completions, in groups of 2"),
    ],
)
def test_prompts_of_different_sizes_state_totals(sizes, text):
    assert sample_size(*sizes) == text


def test_a_frame_states_what_it_measured():
    frame = variance("ordinary")
    assert sample_size_of(frame) == ""
    frame.attrs |= {"n_prompts": 48, "n_completions": 384}
    assert sample_size_of(frame) == "48 prompts × 8 completions, in groups of 4"
    several = pd.concat([frame, frame.assign(group_size=8)])
    several.attrs = frame.attrs
    assert sample_size_of(several) == "48 prompts × 8 completions"
    cells = pd.DataFrame({"cell": ["a", "b"], "n_prompts": [64, 64], "n_completions": [512, 512]})
    assert sample_size_of(cells) == "64 prompts × 8 completions in each cell"
    cells["n_completions"] = [256, 512]
    assert sample_size_of(cells) == "64 prompts and 256–512 completions in each cell"


@pytest.fixture
def figure():
    with mpl.rc_context(style("icml", "half")):
        fig, ax = plt.subplots()
        ax.plot([1, 2, 3], [1, 4, 2], label=r"$\alpha$ = 0.79")
        ax.legend()
        yield fig


def test_writes_each_format_and_the_table(figure, tmp_path):
    table = pd.DataFrame({"x": [1, 2]})
    paths = save_figure(figure, tmp_path / "deep" / "figure.v1", ("pdf", "png", "svg"), source=table)
    assert [p.name for p in paths] == ["figure.v1.pdf", "figure.v1.png", "figure.v1.svg", "figure.v1.csv"]
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == sorted(p.name for p in paths)
    pd.testing.assert_frame_equal(pd.read_csv(paths[-1]), table)
    content = paths[0].read_bytes()
    assert b"/MediaBox [ 0 0 234 " in content  # 3.25 inches of 72 points
    assert not any(entry in content for entry in (b"/Type3", b"/CreationDate"))  # fonts are TrueType
    assert plt.imread(paths[1]).shape[1] == int(3.25 * 300)


def test_a_figure_is_laid_out_once_whatever_formats_it_is_written_in(figure, tmp_path, monkeypatch):
    engine, layouts = figure.get_layout_engine(), []
    execute = type(engine).execute
    monkeypatch.setattr(type(engine), "execute", lambda self, fig: (layouts.append(fig.dpi), execute(self, fig)))
    several = save_figure(figure, tmp_path / "several", ("pdf", "png", "svg", "pgf"))
    assert layouts == [300]  # as in print
    assert figure.get_layout_engine() is engine
    assert figure.dpi == 150
    for path in several:
        (alone,) = save_figure(figure, tmp_path / "alone", (path.suffix[1:],))
        assert alone.read_bytes() == path.read_bytes()


def test_two_builds_are_byte_identical(tmp_path):
    builds = []
    for name in ("one", "two"):
        with mpl.rc_context(style("icml", "half")):
            fig, ax = plt.subplots()
            ax.plot([1, 2, 3], [1, 4, 2])
            ax.fill_between([1, 2, 3], [0, 1, 2], [2, 4, 6], alpha=0.2)
            ax.set_xlabel(r"$\Vert S\Vert^2$")
            paths = save_figure(fig, tmp_path / name / "figure", ("pdf", "png", "svg", "pgf"))
        builds.append([path.read_bytes() for path in paths])
    assert builds[0] == builds[1]


def test_what_cannot_be_written_is_said(figure, tmp_path):
    with pytest.raises(ValueError, match="formats holds 'bmp': choose from pdf, svg, png, pgf"):
        save_figure(figure, tmp_path / "f", ("pdf", "bmp"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="figures cannot be written to .*file/figures .*: choose another folder"):
        save_figure(figure, tmp_path / "file" / "figures" / "f")
