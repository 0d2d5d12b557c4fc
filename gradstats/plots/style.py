"""The look of figures: widths and fonts of venues, colours that can be seen on the paper, pictures in PGF."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from gradstats.system.lazy_imports import mpl

if TYPE_CHECKING:
    from matplotlib.backends.backend_pgf import RendererPgf
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType


class Venue(NamedTuple):
    """Printed widths in inches and the size of the body text in points."""

    half: float
    full: float
    columns: int
    font_size: float
    family: str


#: Venue → widths in inches and text sizes. Widths are \columnwidth and \textwidth of the venues' own style files; half
#: of a one-column page is half its width.
VENUES = {
    "icml": Venue(half=3.25, full=6.75, columns=2, font_size=8.0, family="STIXGeneral"),
    "neurips": Venue(half=2.75, full=5.5, columns=1, font_size=8.0, family="STIXGeneral"),
    "iclr": Venue(half=2.75, full=5.5, columns=1, font_size=8.0, family="STIXGeneral"),
    "colm": Venue(half=2.75, full=5.5, columns=1, font_size=8.0, family="STIXGeneral"),
    "acl": Venue(half=3.03, full=6.30, columns=2, font_size=8.0, family="STIXGeneral"),
    "jmlr": Venue(half=3.0, full=6.0, columns=1, font_size=8.5, family="STIXGeneral"),
    "slide": Venue(half=6.0, full=12.0, columns=1, font_size=18.0, family="DejaVu Sans"),
}

_ASPECT = {"half": 0.75, "full": 0.5}
# Seaborn's "colorblind"; to import seaborn takes as long as to draw a figure.
_COLORBLIND = (
    "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9",
)  # fmt: skip
INK = {"light": ("#222222", "#ffffff", "#d9d9d9"), "dark": ("#e6e6e6", "#15181c", "#3a3f45")}


def style(
    venue: str = "icml",
    column: str | None = None,
    *,
    height: float | None = None,
    theme: str = "light",
    usetex: bool = False,
) -> dict[str, object]:
    """Return the rcParams of a figure that goes into a paper at its printed size.

    A pure function: it changes nothing. Use it as ``with matplotlib.rc_context(style("icml")): ...``; another
    dictionary of rcParams, such as one of tueplots, goes on top as ``style("icml") | other``. The figure keeps its
    exact width when saved (no tight cropping), fonts are embedded as TrueType (type 42), and all fonts ship with
    matplotlib.

    Example:
        >>> style("icml", "full")["figure.figsize"]
        (6.75, 3.375)
    """
    if venue not in VENUES:
        raise ValueError(f"venue={venue!r} is not known: choose from {', '.join(VENUES)}")
    if column not in (None, "half", "full"):
        raise ValueError(f"column={column!r} is not a width: choose 'half' or 'full'")
    if theme not in INK:
        raise ValueError(f"theme={theme!r} is not known: choose 'light' or 'dark'")
    page = VENUES[venue]
    if column is None:
        column = "half" if page.columns == 2 else "full"
    width = page.half if column == "half" else page.full
    height = width * _ASPECT[column] if height is None else height
    if not height > 0:
        raise ValueError(f"height={height} must be positive, in inches")
    size = page.font_size
    scale = size / 8.0
    ink, paper, grid = INK[theme]
    return {
        "figure.figsize": (width, height),
        "figure.constrained_layout.use": True,
        "figure.dpi": 150,
        "figure.facecolor": paper,
        "savefig.dpi": 300,
        "savefig.bbox": None,
        "savefig.pad_inches": 0.0,
        "savefig.facecolor": paper,
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "svg.fonttype": "path",
        "svg.hashsalt": "gradstats",
        "text.usetex": usetex,
        "text.color": ink,
        "font.family": [page.family],
        "mathtext.fontset": "stix" if page.family == "STIXGeneral" else "dejavusans",
        "font.size": size,
        "axes.labelsize": size,
        "axes.titlesize": size,
        "xtick.labelsize": size - 1.0 * scale,
        "ytick.labelsize": size - 1.0 * scale,
        "legend.fontsize": size - 1.0 * scale,
        "legend.frameon": False,
        "legend.handlelength": 1.6,
        "axes.facecolor": paper,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.linewidth": 0.6 * scale,
        "axes.grid": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": grid,
        "grid.linewidth": 0.5 * scale,
        "xtick.color": ink,
        "ytick.color": ink,
        "xtick.major.width": 0.6 * scale,
        "ytick.major.width": 0.6 * scale,
        "xtick.minor.width": 0.4 * scale,
        "ytick.minor.width": 0.4 * scale,
        "xtick.major.size": 2.5 * scale,
        "ytick.major.size": 2.5 * scale,
        "xtick.minor.size": 1.5 * scale,
        "ytick.minor.size": 1.5 * scale,
        "lines.linewidth": 1.2 * scale,
        "lines.markersize": 3.5 * scale,
    }


Color = tuple[float, float, float]

#: Least contrast (WCAG) of a colour to light paper and to dark paper.
LEAST_CONTRAST = {"light": 1.8, "dark": 4.5}
# Shares of ink in a line to compare with, and in a remark.
_LINE, REMARK = 0.58, 0.65
_STEPS = 40


class Edge(TypedDict):
    """The outline of markers, which pale colours need on white."""

    markeredgecolor: Color
    markeredgewidth: float


def ink() -> Color:
    """Return the colour of text."""
    from matplotlib import colors

    return colors.to_rgb(mpl.rcParams["text.color"])


def paper() -> Color:
    """Return the colour behind what is drawn."""
    from matplotlib import colors

    return colors.to_rgb(mpl.rcParams["axes.facecolor"])


def muted(share: float = _LINE) -> Color:
    """Return the colour with a share of ink on the paper, from 0 for paper to 1 for ink."""
    return _mixed(paper(), ink(), share)


def edge() -> Edge:
    """Return the outline of markers."""
    return {"markeredgecolor": muted(0.87), "markeredgewidth": stroke(0.4)}


def stroke(points: float) -> float:
    """Return the width of a line that has so many points beside 8-point text."""
    return points * mpl.rcParams["font.size"] / 8.0


def palette() -> list[Color]:
    """Return seaborn's colour-blind palette, each colour readable on the paper."""
    return [readable(color) for color in _COLORBLIND]


def readable(color: ColorType) -> Color:
    """Return a colour with the least contrast to the paper, mixed with black or white where it has less.

    Colours that have enough are returned as they are.
    """
    from matplotlib import colors

    behind, seen = paper(), colors.to_rgb(color)
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


def escaped(text: str) -> str:
    r"""Escape TeX's own characters outside of formulas; matplotlib does so for ``^`` and ``%`` alone."""
    parts = re.split(r"(?<!\\)(\$[^$]*\$)", text)
    return "".join(part if at % 2 else re.sub(r"(?<!\\)([_#&{}])", r"\\\1", part) for at, part in enumerate(parts))


def _own_fonts_renderer(fig: Figure, file: io.StringIO) -> RendererPgf:
    """Return matplotlib's PGF renderer, which otherwise asks a running LaTeX for the size of every text."""
    from matplotlib.backend_bases import RendererBase
    from matplotlib.backends.backend_pgf import RendererPgf

    class OwnFontsRenderer(RendererPgf):
        def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, **options: Any) -> None:
            super().draw_text(gc, x, y, escaped(s), prop, angle, **options)

        def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
            return RendererBase.get_text_width_height_descent(self, s, prop, ismath)

    return OwnFontsRenderer(fig, file)


def pgf_picture(fig: Figure) -> str:
    r"""Return a figure as a PGF picture for ``\input``, with its texts set in the document's fonts.

    Nothing is rasterised, so that a picture is one file.
    """
    body = io.StringIO()
    with mpl.rc_context({"pgf.rcfonts": False}):
        fig.draw(_own_fonts_renderer(fig, body))
    width, height = fig.get_size_inches()
    return "\n".join(
        [
            r"% \input this file; it needs \usepackage{pgf}",
            r"\begingroup%",
            r"\makeatletter%",
            # What matplotlib's numbers are set in.
            r"\providecommand{\mathdefault}[1]{#1}%",
            r"\begin{pgfpicture}%",
            rf"\pgfpathrectangle{{\pgfpointorigin}}{{\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}%",
            r"\pgfusepath{use as bounding box, clip}%",
            *(line.rstrip() for line in body.getvalue().splitlines()),
            r"\end{pgfpicture}%",
            r"\makeatother%",
            r"\endgroup%",
            "",
        ]
    )
