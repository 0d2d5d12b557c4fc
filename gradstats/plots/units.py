"""Figures of quantities that have a unit: estimators in another unit are left out, and a sentence names them."""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.recipes.lookup import unit_of_label
from gradstats.plots.names import figure_inches, in_mathematics, names_in, wrapped
from gradstats.stats.variance.quantities import Quantity

# Inches that a character takes at 8-point text, and a line its height.
_CHARACTER, _LINE = 0.064, 0.135


def estimator_unit(label: str) -> str:
    """Return the unit of an estimator's gradient, by its entry in the registry.

    Args:
        label: of a baseline, ``"rloo"``, or of a recipe, ``"recipe:grpo"``.

    Returns:
        The aggregation and what advantages are divided by, as in ``"sequence_mean / group_std"``; that of a plain sum,
        ``"sequence_sum"``, for a label under which nothing is registered.
    """
    return unit_of_label(label)


def rows_of_one_unit(frame: pd.DataFrame, quantities: Iterable[Quantity]) -> tuple[pd.DataFrame, str]:
    """Return the rows that can share an axis, and a sentence that names the others.

    Where a quantity has a unit these are the rows in the unit of the reference (``.attrs["reference"]``), or of plain
    sums where the frame names none. A frame without a column ``unit`` is read by its labels.

    Returns:
        The rows, and the sentence, which is empty where none is left out.
    """
    if frame.empty or not any(quantity.has_unit for quantity in quantities):
        return frame, ""
    labels = [str(label) for label in frame["estimator"]]
    recorded: list[object] = list(frame["unit"]) if "unit" in frame else [None] * len(frame)
    units = [
        unit if isinstance(unit, str) else estimator_unit(label) for label, unit in zip(labels, recorded, strict=True)
    ]
    reference = frame.attrs.get("reference")
    by_label = dict(zip(labels, units, strict=True))
    common = SEQUENCE_SUM if reference is None else by_label.get(reference, estimator_unit(str(reference)))
    if common not in units:
        common = units[0]
    kept = frame.loc[[unit == common for unit in units]]
    kept.attrs = frame.attrs
    names = names_in(frame)
    others = dict.fromkeys(label for label, unit in zip(labels, units, strict=True) if unit != common)
    return kept, f"Left out, in another unit: {'; '.join(names[label] for label in others)}." if others else ""


def sentence_height(sentence: str) -> float:
    """Return inches that a sentence above a figure of the current width takes."""
    return _LINE * len(_lines(sentence)) * plt.rcParams["font.size"] / 8.0


def write_sentence(ax: Axes, sentence: str) -> None:
    """Write a sentence above axes, over the full width of the figure; an empty one changes nothing."""
    if sentence:
        ax.set_title(in_mathematics("\n".join(_lines(sentence))), loc="right", fontsize="small")


def _lines(sentence: str) -> list[str]:
    return wrapped(sentence, int(figure_inches() / _CHARACTER))
