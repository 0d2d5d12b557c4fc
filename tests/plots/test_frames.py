"""What every figure requires of its table."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from gradstats.plots.marks import as_frame, draw_nothing, quantity_to_draw, require_columns
from gradstats.stats.variance.quantities import QUANTITIES

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_a_result_gives_its_frame_and_a_frame_is_taken_as_it_is():
    frame = pd.DataFrame({"a": [1]})

    class Result:
        def to_frame(self):
            return frame

    assert as_frame(frame) is frame
    assert as_frame(Result()) is frame


def test_missing_columns_are_listed_with_the_remedy():
    frame = pd.DataFrame({"b": [1]})
    require_columns(frame, ["b"], "give b")
    with pytest.raises(ValueError, match=r"^the table lacks the column\(s\) a, c: give all three$"):
        require_columns(frame, ["c", "b", "a"], "give all three")


def test_a_quantity_is_found_among_those_that_a_figure_draws():
    drawn = [QUANTITIES[name] for name in ("trace_cov", "cosine")]
    assert quantity_to_draw("cosine", drawn) is QUANTITIES["cosine"]
    with pytest.raises(ValueError, match=r"^value='ratio' cannot be drawn: choose from trace_cov, cosine$"):
        quantity_to_draw("ratio", drawn)


def test_empty_axes_say_why_in_their_middle():
    figure, ax = plt.subplots()
    draw_nothing(ax, "no tokens")
    figure.canvas.draw()
    box, (text,) = ax.get_window_extent(), ax.texts
    assert text.get_text() == "no tokens"
    extent = text.get_window_extent()
    assert (extent.x0 + extent.x1) / 2 == pytest.approx((box.x0 + box.x1) / 2, abs=1.5)
    assert (extent.y0 + extent.y1) / 2 == pytest.approx((box.y0 + box.y1) / 2, abs=3)
