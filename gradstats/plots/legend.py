"""Legends placed outside the data, whatever the number and length of their entries."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gradstats.plots.names import in_mathematics, widening, wrapped

# Inches at 7-point text: the width of a character and of a handle, and the height of a row.
_CHARACTER, _HANDLE, ROW = 0.058, 0.4, 0.145
# Inches above and below a legend.
SPACE = 0.1


def legend_text(label: str, width: float, font_size: float) -> str:
    """Break a label into lines that fit a width in inches."""
    longest = int((width * 7.0 / font_size - _HANDLE) / (_CHARACTER * widening()))
    if len(label) <= longest:
        return label
    name, opened, parameters = label.partition("(")
    lines = [line for part in (name, opened + parameters) for line in wrapped(part, longest)]
    return "\n".join(lines)


def legend_columns(labels: list[str], width: float, font_size: float) -> int:
    """Return how many columns of entries fit a width in inches."""
    scale = font_size / 7.0
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), int(width / (scale * (longest * _CHARACTER * widening() + _HANDLE)))))


def legend_height(labels: list[str], width: float, font_size: float) -> float:
    """Return inches that a legend below the axes takes."""
    rows = -(-len(labels) // legend_columns(labels, width, font_size))
    broken = sum(legend_text(label, width, font_size).count("\n") for label in labels)
    return ((rows + broken) * ROW + (SPACE if labels else 0.0)) * font_size / 7.0


def legend_below(ax: Axes, font_size: float, more: Sequence[Line2D] = ()) -> None:
    """Put the legend of what was labelled, and of more lines, under the axes, in as many columns as fit the figure."""
    handles = [*ax.get_legend_handles_labels()[0], *more]
    labels = [*ax.get_legend_handles_labels()[1], *(str(line.get_label()) for line in more)]
    if not labels:
        return
    figure = ax.get_figure()
    assert figure is not None
    width = figure.bbox.width / figure.dpi
    figure.legend(
        handles,
        [in_mathematics(legend_text(label, width, font_size)) for label in labels],
        loc="outside lower center",
        ncols=legend_columns(labels, width, font_size),
        fontsize=font_size,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
