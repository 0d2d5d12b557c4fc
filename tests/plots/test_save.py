"""Saved figures: complete files of exact size, byte-identical when repeated, with their table."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from gradstats.plots import save_figure, style


@pytest.fixture
def figure():
    with mpl.rc_context(style("icml", "half")):
        fig, ax = plt.subplots()
        ax.plot([1, 2, 3], [1, 4, 2], label=r"$\alpha$ = 0.79")
        ax.legend()
        yield fig
        plt.close(fig)


def test_writes_each_format_and_the_table(figure, tmp_path):
    table = pd.DataFrame({"x": [1, 2]})
    paths = save_figure(figure, tmp_path / "deep" / "figure.v1", ("pdf", "png", "svg"), source=table)
    assert [p.name for p in paths] == ["figure.v1.pdf", "figure.v1.png", "figure.v1.svg", "figure.v1.csv"]
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == sorted(p.name for p in paths)
    pd.testing.assert_frame_equal(pd.read_csv(paths[-1]), table)


def test_two_builds_are_byte_identical(tmp_path):
    builds = []
    for name in ("one", "two"):
        with mpl.rc_context(style("icml", "half")):
            fig, ax = plt.subplots()
            ax.plot([1, 2, 3], [1, 4, 2])
            ax.fill_between([1, 2, 3], [0, 1, 2], [2, 4, 6], alpha=0.2)
            ax.set_xlabel(r"$\Vert S\Vert^2$")
            paths = save_figure(fig, tmp_path / name / "figure", ("pdf", "png", "svg", "pgf"))
            plt.close(fig)
        builds.append([path.read_bytes() for path in paths])
    assert builds[0] == builds[1]


def test_width_is_exact_and_fonts_are_truetype(figure, tmp_path):
    pdf, png = save_figure(figure, tmp_path / "figure")
    content = pdf.read_bytes()
    assert b"/MediaBox [ 0 0 234 " in content  # 3.25 inches of 72 points
    assert b"/Type3" not in content
    assert b"/CreationDate" not in content
    image = plt.imread(png)
    assert image.shape[1] == int(3.25 * 300)


def test_takes_a_result_as_source(figure, tmp_path):
    class Result:
        def to_frame(self):
            return pd.DataFrame({"alpha": [0.5]})

    assert save_figure(figure, tmp_path / "f", (), source=Result())[0].read_text() == "alpha\n0.5\n"


def test_unknown_format(figure, tmp_path):
    with pytest.raises(ValueError, match="formats holds 'bmp': choose from pdf, svg, png, pgf"):
        save_figure(figure, tmp_path / "f", ("pdf", "bmp"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(figure, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="figures cannot be written to .*file/figures .*: choose another folder"):
        save_figure(figure, tmp_path / "file" / "figures" / "f")
