"""PGF pictures without a LaTeX installation: text is measured with the figure's own fonts."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_pgf import RendererPgf
from matplotlib.figure import Figure


class _OwnFontsRenderer(RendererPgf):
    """matplotlib's PGF renderer, which otherwise asks a running LaTeX for the size of every text."""

    def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, **options: Any) -> None:
        super().draw_text(gc, x, y, escaped(s), prop, angle, **options)

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        return RendererBase.get_text_width_height_descent(self, s, prop, ismath)


def escaped(text: str) -> str:
    r"""Escape TeX's own characters outside of formulas; matplotlib does so for ``^`` and ``%`` alone."""
    parts = re.split(r"(?<!\\)(\$[^$]*\$)", text)
    return "".join(part if at % 2 else re.sub(r"(?<!\\)([_#&{}])", r"\\\1", part) for at, part in enumerate(parts))


def pgf_picture(fig: Figure) -> str:
    r"""Return a figure as a PGF picture for ``\input``, with its texts set in the document's fonts.

    Nothing is rasterised, so that a picture is one file.
    """
    body = io.StringIO()
    with mpl.rc_context({"pgf.rcfonts": False}):
        fig.draw(_OwnFontsRenderer(fig, body))
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
