"""How many prompts and completions a figure rests on, at the top right of every figure."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from gradstats.plots.names import CHARACTER, widening, wrapped

# Inches of a line of 7-point text, with the space that keeps it off the axes.
_LINE = 0.125
_SPACE = 0.08


def sample_size(n_prompts: int, n_completions: int, group_size: int | None = None) -> str:
    """Return prompts × completions in words; the total of completions where prompts have different numbers of them.

    Args:
        n_prompts: prompts.
        n_completions: of all prompts together.
        group_size: completions of a group, where a prompt's completions form several groups.

    Example:
        >>> sample_size(96, 768)
        '96 prompts × 8 completions'
        >>> sample_size(96, 768, group_size=4)
        '96 prompts × 8 completions, in groups of 4'
        >>> sample_size(1, 5), sample_size(3, 7)
        ('1 prompt × 5 completions', '3 prompts, 7 completions')
    """
    prompts, (each, over) = _counted(n_prompts, "prompt"), divmod(n_completions, max(n_prompts, 1))
    if over or not n_prompts:
        return f"{prompts}, {_counted(n_completions, 'completion')}"
    groups = "" if group_size is None or group_size == each else f", in groups of {group_size}"
    return f"{prompts} × {_counted(each, 'completion')}{groups}"


def sample_size_of(frame: pd.DataFrame) -> str:
    """Return prompts × completions of a comparison's frame, or of each cell of a sweep; "" where it states neither.

    Args:
        frame: with ``n_prompts`` and ``n_groups`` in its ``.attrs`` and one ``group_size``, as
            :func:`gradstats.compare` gives; or with columns ``cell``, ``n_prompts`` and ``n_completions``.
    """
    if {"cell", "n_prompts", "n_completions"} <= set(frame):
        sizes = frame[["n_prompts", "n_completions"]].dropna().drop_duplicates().astype(int).to_numpy()
        texts = [sample_size(int(prompts), int(completions)) for prompts, completions in sizes]
        if not texts:
            return ""
        if len(set(texts)) == 1:
            return f"{texts[0]} in each cell"
        ranges = zip(sizes.min(0), sizes.max(0), strict=True)
        ends = [f"{low}–{high}" if low < high else f"{low}" for low, high in ranges]
        return f"{ends[0]} prompts and {ends[1]} completions in each cell"
    n_prompts, n_groups = frame.attrs.get("n_prompts"), frame.attrs.get("n_groups")
    sizes = set(frame["group_size"].dropna()) if "group_size" in frame else set()
    if not n_prompts or not n_groups or len(sizes) != 1:
        return ""
    (group_size,) = sizes
    return sample_size(int(n_prompts), int(n_groups) * int(group_size), int(group_size))


def write_sample_size(figure: Figure, text: str) -> None:
    """Write how many prompts and completions a figure rests on at its top right, and make it higher by the lines.

    Args:
        figure: with all that is drawn; its layout must be constrained.
        text: such as :func:`sample_size` gives; an empty one changes nothing.
    """
    if not text:
        return
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    width, height = figure.get_size_inches()
    lines = wrapped(text, int(0.95 * width / CHARACTER * 8.0 / font_size / widening()))
    figure.set_size_inches(width, height + (_LINE * len(lines) + _SPACE) * font_size / 7.0)
    figure.suptitle("\n".join(lines), x=0.99, ha="right", fontsize=font_size)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
