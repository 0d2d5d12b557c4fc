"""One fixed colour and marker per estimator name, in every figure."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gradstats.estimators.display_names import uses_own_sample
from gradstats.plots.theme import palette

# Left- and right-pointing triangles are left out: they mark intervals that run off an axis.
MARKERS = "osD^vPXp*d"
# Order is appearance: a name keeps its place, and new names are added at the end.
KNOWN = (
    "rloo",
    "reinforce",
    "group_mean",
    "grpo",
    "token_mean",
    "length_weighted",
    "norm_weighted",
    "constant",
    "dr_grpo",
    "otb",
    "batch_mean",
    "asymmetric",
    "kimi",
    "james_stein",
    "remax",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "pass_at_k",
    "max_rl",
    "gae",
    "vine",
    "otb_turns",
    "causal_optimal",
    "recipe:grpo",
    "recipe:dr_grpo",
    "recipe:dapo",
    "recipe:gspo",
    "recipe:cispo",
    "recipe:ppo",
    "recipe:kimi_k15",
    "recipe:rloo_is",
    "recipe:gmpo",
    "recipe:delta_l",
    "recipe:dapo_top_entropy",
    "discounted",
)

# Places kept for names to come, so that adding one does not move the unknown ones.
RESERVED = 40


# Estimators of one name in a figure, in turn: their lines, and how their markers are filled. Those whose baseline
# includes the completion itself have lines and fillings of their own.
_LINES = ("-", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)))
_FILLS = ("full", "left", "top", "right")
_OWN_LINES = ("--", (0, (1, 1)), (0, (4, 1, 4, 3)), (0, (2, 3)))
OWN_FILL = "bottom"


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
    pairs = len(colors) * len(MARKERS)
    unknown = RESERVED + zlib.crc32(name.encode()) % (pairs - RESERVED)
    place = KNOWN.index(name) if name in KNOWN else unknown
    # Shifting the marker by one each round of the palette keeps every (colour, marker) pair distinct.
    marker = MARKERS[(place + place // len(colors)) % len(MARKERS)]
    return Appearance(color=colors[place % len(colors)], marker=marker)


def variants(labels: Sequence[str]) -> list[Variant]:
    """Return how estimators in one figure are drawn, so that those of one name differ without colour.

    The first of a name has a solid line and a full marker. An estimator whose baseline includes the completion's own
    reward has a broken line and a marker whose upper half is empty, everywhere.

    Args:
        labels: of the estimators, in the order of the figure.
    """
    found, seen = [], Counter[tuple[str, bool]]()
    for label in labels:
        name = label.partition("(")[0].strip()
        own = uses_own_sample(label)
        at = seen[name, own] % len(_LINES)
        seen[name, own] += 1
        found.append(Variant(_OWN_LINES[at], OWN_FILL) if own else Variant(_LINES[at], _FILLS[at]))
    return found


def estimator_fill(label: str) -> str:
    """Return how the marker of an estimator is filled in a row of its own: half where it uses its own sample."""
    return OWN_FILL if uses_own_sample(label) else _FILLS[0]
