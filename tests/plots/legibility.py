"""What makes the texts of a figure legible: nothing is clipped, nothing overlaps."""

from __future__ import annotations

import itertools

import matplotlib as mpl


def texts(figure):
    """Every text that is drawn, with its position."""
    ticks, drawn = set(), set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                ticks |= {tick.label1, tick.label2}
            # Ticks beyond the ends of an axis exist too; these are the ones that are drawn.
            drawn |= {tick.label1 for tick in axis._update_ticks() if ax.axison}
    shown = [text for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]
    return [(text, text.get_window_extent()) for text in shown if text in drawn or text not in ticks]


def assert_legible(figure):
    """No text of a figure that has been drawn leaves the page, is tiny, or overlaps another."""
    page = figure.bbox
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
