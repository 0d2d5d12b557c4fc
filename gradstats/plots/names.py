"""Estimators in figures: names in lines that fit, looks, and a sentence on those left out by their unit."""

from __future__ import annotations

import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gradstats.estimators.display_names import distinct_names, uses_own_sample
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.recipes.named import unit_of_label
from gradstats.plots.style import palette
from gradstats.stats.variance.quantities import Quantity
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def group_size_of(frame: pd.DataFrame) -> int | None:
    """Return the group size of all rows of a frame; None where they have several, or none."""
    sizes = set(frame["group_size"].dropna()) if "group_size" in frame else set()
    return int(next(iter(sizes))) if len(sizes) == 1 else None


def reference_name(frame: pd.DataFrame, reference: str | None = None) -> str:
    """Return what the axes of a frame call the reference of its ratios."""
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
    return 1.0 if mpl.rcParams["font.family"][0] == _SERIF else _WIDER


def figure_inches() -> float:
    """Return the width of figures in inches, as if their text were 8-point in the serif font of papers."""
    return mpl.rcParams["figure.figsize"][0] * 8.0 / mpl.rcParams["font.size"] / widening()


def longest_title(n_panels: int) -> int:
    """Return how many characters of a title fit above each of several panels, in one line."""
    return int(PANEL_SHARE * figure_inches() / n_panels / CHARACTER)


def wrapped_to_axis(text: str, share: float = PANEL_SHARE) -> str:
    """Break each line of an axis label that is longer than a share of the figure's width."""
    inches = figure_inches()
    return "\n".join(line for part in text.split("\n") for line in wrapped(part, int(share * inches / CHARACTER)))


# Left- and right-pointing triangles are left out: they mark intervals that run off an axis.
_MARKERS = "osD^vPXp*d"
# Order is appearance: a name keeps its place, and new names are added at the end.
KNOWN = (
    "rloo", "reinforce", "group_mean", "grpo", "token_mean", "length_weighted", "norm_weighted", "constant",
    "dr_grpo", "otb", "batch_mean", "asymmetric", "kimi", "james_stein", "remax", "reinforce_pp",
    "reinforce_pp_baseline", "pass_at_k", "max_rl", "gae", "vine", "otb_turns", "causal_optimal", "recipe:grpo",
    "recipe:dr_grpo", "recipe:dapo", "recipe:gspo", "recipe:cispo", "recipe:ppo", "recipe:kimi_k15",
    "recipe:rloo_is", "recipe:gmpo", "recipe:delta_l", "recipe:dapo_top_entropy", "discounted", "quantile", "ebpo",
    "gdpo", "reward_ema", "beta_tracker", "kalman", "arca",
)  # fmt: skip
# Places kept for names to come, so that adding one does not move the unknown ones.
_RESERVED = 40
# Estimators of one name in a figure, in turn: their lines, and how their markers are filled. Those whose baseline
# includes the completion itself have lines and fillings of their own.
_LINES = ("-", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)))
_FILLS = ("full", "left", "top", "right")
_OWN_LINES = ("--", (0, (1, 1)), (0, (4, 1, 4, 3)), (0, (2, 3)))
_OWN_FILL = "bottom"


class Variant(NamedTuple):
    """What tells estimators of one name apart, which share colour and marker: a line and a filling of the marker."""

    linestyle: str | tuple[int, tuple[int, ...]]
    fillstyle: str


class Appearance(NamedTuple):
    """A colour (red, green, blue from 0 to 1) and a matplotlib marker."""

    color: tuple[float, float, float]
    marker: str


def estimator_appearance(label: str) -> Appearance:
    """Return the colour and marker of an estimator, from its label.

    The name, up to the first parenthesis, decides: parameters do not change it. Known names have their own
    pair of colour and marker; an unknown name is given one of the others, the same one every time.

    Args:
        label: an estimator's label or name, such as ``"length_weighted(alpha=0.8)"``.
    """
    colors = palette()
    name = label.partition("(")[0].strip()
    pairs = len(colors) * len(_MARKERS)
    unknown = max(_RESERVED + zlib.crc32(name.encode()) % (pairs - _RESERVED), len(KNOWN))
    place = KNOWN.index(name) if name in KNOWN else unknown
    # Shifting the marker by one each round of the palette keeps every (colour, marker) pair distinct.
    marker = _MARKERS[(place + place // len(colors)) % len(_MARKERS)]
    return Appearance(color=colors[place % len(colors)], marker=marker)


def variants(labels: Sequence[str]) -> list[Variant]:
    """Return how estimators in one figure are drawn, so that those of one name differ without colour.

    The first of a name has a solid line and a full marker. An estimator whose baseline includes the completion's own
    reward has a broken line and a marker whose upper half is empty, everywhere.
    """
    found, seen = [], Counter[tuple[str, bool]]()
    for label in labels:
        name = label.partition("(")[0].strip()
        own = uses_own_sample(label)
        at = seen[name, own] % len(_LINES)
        seen[name, own] += 1
        found.append(Variant(_OWN_LINES[at], _OWN_FILL) if own else Variant(_LINES[at], _FILLS[at]))
    return found


def estimator_fill(label: str) -> str:
    """Return how the marker of an estimator is filled in a row of its own: half where it uses its own sample."""
    return _OWN_FILL if uses_own_sample(label) else _FILLS[0]


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


# Inches that a character of a sentence takes at 8-point text, and a line its height.
_CHARACTER, _LINE = 0.064, 0.135


def sentence_height(sentence: str) -> float:
    """Return inches that a sentence above a figure of the current width takes."""
    return _LINE * len(_lines(sentence)) * mpl.rcParams["font.size"] / 8.0


def write_sentence(ax: Axes, sentence: str) -> None:
    """Write a sentence above axes, over the full width of the figure; an empty one changes nothing."""
    if sentence:
        ax.set_title(in_mathematics("\n".join(_lines(sentence))), loc="right", fontsize="small")


def _lines(sentence: str) -> list[str]:
    return wrapped(sentence, int(figure_inches() / _CHARACTER))
