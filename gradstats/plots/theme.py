"""Colours of the current theme: ink, greys between ink and paper, and a palette that can be seen on the paper."""

from __future__ import annotations

from typing import TypedDict

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.colors import to_rgb
from matplotlib.typing import ColorType

Color = tuple[float, float, float]

#: Least contrast (WCAG) of a colour to light paper and to dark paper.
LEAST_CONTRAST = {"light": 1.8, "dark": 4.5}
# Shares of ink in a line to compare with, and in a remark.
LINE, REMARK = 0.58, 0.65
_STEPS = 40


class Edge(TypedDict):
    """The outline of markers, which pale colours need on white."""

    markeredgecolor: Color
    markeredgewidth: float


def ink() -> Color:
    """Return the colour of text."""
    return to_rgb(plt.rcParams["text.color"])


def paper() -> Color:
    """Return the colour behind what is drawn."""
    return to_rgb(plt.rcParams["axes.facecolor"])


def muted(share: float = LINE) -> Color:
    """Return the colour with a share of ink on the paper, from 0 for paper to 1 for ink."""
    return _mixed(paper(), ink(), share)


def edge() -> Edge:
    """Return the outline of markers."""
    return {"markeredgecolor": muted(0.87), "markeredgewidth": stroke(0.4)}


def stroke(points: float) -> float:
    """Return the width of a line that has so many points beside 8-point text."""
    return points * plt.rcParams["font.size"] / 8.0


def palette() -> list[Color]:
    """Return seaborn's colour-blind palette, each colour readable on the paper."""
    return [readable(color) for color in sns.color_palette("colorblind")]


def readable(color: ColorType) -> Color:
    """Return a colour with the least contrast to the paper, mixed with black or white where it has less.

    Colours that have enough are returned as they are.
    """
    behind, seen = paper(), to_rgb(color)
    light = _luminance(behind) > 0.5
    least = LEAST_CONTRAST["light" if light else "dark"]
    towards = (0.0, 0.0, 0.0) if light else (1.0, 1.0, 1.0)
    shades = (_mixed(seen, towards, at / _STEPS) for at in range(_STEPS + 1))
    return next((shade for shade in shades if contrast(shade, behind) >= least), towards)


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (WCAG 2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _mixed(one: Color, other: Color, share: float) -> Color:
    red, green, blue = ((1.0 - share) * first + share * second for first, second in zip(one, other, strict=True))
    return red, green, blue
