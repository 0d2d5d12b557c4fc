"""Figure style: a venue and a column → matplotlib rcParams."""

from typing import NamedTuple


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

ASPECT = {"half": 0.75, "full": 0.5}
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

    Args:
        venue: one of ``VENUES``.
        column: ``"half"`` or ``"full"`` width; None is one column of the venue: half where a page is set in
            two columns (ICML 3.25 in), full otherwise (NeurIPS 5.5 in).
        height: figure height in inches; None takes 0.75 of the width for half and 0.5 for full.
        theme: ``"light"`` or ``"dark"`` (for slides).
        usetex: set text with LaTeX, which must be installed.

    Returns:
        A dictionary of rcParams.

    Raises:
        ValueError: for an unknown venue, column or theme, or a height that is not positive.

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
    height = width * ASPECT[column] if height is None else height
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
