"""The names of estimators in a figure, and lines of text that hold names and mathematics."""

from __future__ import annotations

import re
import textwrap

import matplotlib.pyplot as plt
import pandas as pd

from gradstats.estimators.display_names import distinct_names

#: Entry of a frame's ``.attrs``: label of an estimator → what the figure calls it.
LABELS = "labels"

_LETTERS = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "Δ": "Delta", "ε": "varepsilon", "λ": "lambda", "τ": "tau",
}  # fmt: skip
_FORMULA = re.compile(r"(?<!\\)(\$[^$]*\$)")
# A value stays on the line of its parameter, and a formula is not broken.
_KEPT = re.compile(r"(?<=\S) [=×] (?=\S)|\$[^$]*\$")
_JOINED = "\u00a0"
# Inches that a character takes at 8-point text, in the serif font of papers.
CHARACTER = 0.06
#: Share of the width of a figure that its axes and their labels may take.
PANEL_SHARE = 0.7
_SERIF, _WIDER = "STIXGeneral", 1.2


def names_in(frame: pd.DataFrame) -> dict[str, str]:
    """Return label → name of every estimator of a frame, in words, or as ``.attrs["labels"]`` says.

    Two estimators never share a name; the reference (``.attrs["reference"]``) has one too.
    """
    labels = dict.fromkeys(map(str, frame["estimator"])) if "estimator" in frame else {}
    reference = frame.attrs.get("reference")
    more = {} if reference is None else {str(reference): None}
    return distinct_names([*labels, *more], frame.attrs.get(LABELS))


def reference_name(frame: pd.DataFrame, reference: str | None = None) -> str:
    """Return what the axes of a frame call the reference of its ratios.

    Args:
        frame: of a comparison.
        reference: its label, if it is not that in ``frame.attrs``.
    """
    label = frame.attrs.get("reference") if reference is None else reference
    return "the reference" if label is None else names_in(frame).get(str(label), str(label))


def in_mathematics(text: str) -> str:
    r"""Set Greek letters as mathematics, outside of formulas that are there.

    >>> in_mathematics("length-weighted, α = 0.8")
    'length-weighted, $\\alpha$ = 0.8'
    """
    parts = _FORMULA.split(text)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub("[" + "".join(_LETTERS) + "]", lambda found: rf"$\{_LETTERS[found[0]]}$", parts[at])
    return "".join(parts)


def wrapped(text: str, longest: int) -> list[str]:
    """Break a text into lines at its spaces, but not between a parameter and its value."""
    joined = _KEPT.sub(lambda found: found[0].replace(" ", _JOINED), text)
    # A long name may be cut, a formula may not.
    lines = textwrap.wrap(joined, longest, break_on_hyphens=False, break_long_words="$" not in text)
    return [line.replace(_JOINED, " ") for line in lines]


def widening() -> float:
    """Return how much wider letters of the current font are than those of the serif font of papers."""
    return 1.0 if plt.rcParams["font.family"][0] == _SERIF else _WIDER


def figure_inches() -> float:
    """Return the width of figures in inches, as if their text were 8-point in the serif font of papers."""
    return plt.rcParams["figure.figsize"][0] * 8.0 / plt.rcParams["font.size"] / widening()


def longest_title(n_panels: int) -> int:
    """Return how many characters of a title fit above each of several panels, in one line."""
    return int(PANEL_SHARE * figure_inches() / n_panels / CHARACTER)


def wrapped_to_axis(text: str, share: float = PANEL_SHARE) -> str:
    """Break each line of an axis label that is longer than a share of the figure's width."""
    inches = figure_inches()
    return "\n".join(line for part in text.split("\n") for line in wrapped(part, int(share * inches / CHARACTER)))
