"""Texts for LaTeX: escaped, with places where a line may break, and about how wide they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from matplotlib.mathtext import MathTextParser

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "α": r"$\alpha$", "∝": r"$\propto$", "∇": r"$\nabla$",
    "‖": r"$\Vert$", "π": r"$\pi$", "δ": r"$\delta$", "τ": r"$\tau$", "γ": r"$\gamma$", "λ": r"$\lambda$",
    "²": r"$^2$", "·": r"$\cdot$", "×": r"$\times$", "−": r"$-$", "–": "--", "|": r"$|$", "<": r"$<$", ">": r"$>$",
    "ε": r"$\varepsilon$", "ĝ": r"$\hat g$", "χ": r"$\chi$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "Σ": r"$\Sigma$",
    "β": r"$\beta$", "σ": r"$\sigma$", "μ": r"$\mu$", "∞": r"$\infty$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$",
    "\u00a0": "~",
}  # fmt: skip

# Of 8 pt Computer Modern, the widest of the usual text faces, in ems.
_NARROW, _USUAL, _CAPITAL, _WIDE, _DIGIT = 0.36, 0.56, 0.76, 0.9, 0.532
# Digits at 6 pt are wider for their size.
_SCRIPT = 0.865
_SYMBOL = 1.3  # with the space around it
# Letters of a word that may be broken.
_LONG = 12
_SCRIPTS = re.compile(r"(?:[\^_]\{[^{}]*\})+")
_FORMULA = re.compile(r"(\$[^$]+\$)")
# A value stays on the line of its parameter.
_VALUE = re.compile(r"(?<=[^\s=]) = (?=[^\s=])")


def latex_escape(text: str) -> str:
    r"""Escape a text for LaTeX, except for formulas between dollar signs, as figures set them.

    >>> latex_escape("50%, at $x_1$")
    '50\\%, at $x_1$'
    """
    parts = _FORMULA.split(text)
    return "".join(
        part if at % 2 and _is_formula(part) else "".join(_LATEX.get(character, character) for character in part)
        for at, part in enumerate(parts)
    )


def breakable(text: str) -> str:
    r"""Escape a text for LaTeX, with a possible line break inside of labels, and none before a parameter's value.

    >>> breakable("length_weighted(loo=True)")
    'length\\_\\allowbreak{}weighted(\\allowbreak{}loo=\\allowbreak{}True)'
    >>> breakable("length-weighted, α = 0.8")
    'length-weighted, $\\alpha$~=~0.8'
    """
    return " ".join(r"\allowbreak{}".join(map(latex_escape, _parts(word))) for word in _words(text))


def unbreakable(text: str) -> list[str]:
    """Return the pieces between the places where :func:`breakable` lets a line break."""
    return [part for word in _words(text) for part in _parts(word)] or [""]


def wrapped(text: str, width: float) -> list[str]:
    """Break a text into lines of at most a width in ems where that is possible."""
    lines: list[str] = []
    for at, word in enumerate(_words(text)):
        for first, part in enumerate(_parts(word)):
            joint = " " if at and first == 0 else ""
            if lines and text_width(lines[-1] + joint + part) <= width:
                lines[-1] += joint + part
            else:
                lines.append(part)
    return lines or [""]


def text_width(text: str) -> float:
    """Estimate how wide a text is set, in ems, from above."""
    parts = _FORMULA.split(text)
    return sum(
        formula_width(part) if at % 2 else sum(_letter_width(letter) for letter in part)
        for at, part in enumerate(parts)
    )


def formula_width(cell: str) -> float:
    """Estimate how wide a number with its interval is set in LaTeX, in ems, from above."""
    inner = cell.replace("$", "")
    stacked = (match.group() for match in _SCRIPTS.finditer(inner))
    scripts = sum(max(map(_row_width, re.findall(r"\{([^{}]*)\}", script))) * _SCRIPT for script in stacked)
    return _row_width(_SCRIPTS.sub("", inner)) + scripts


def _words(text: str) -> list[str]:
    """Return the words of a text; a parameter and its value are one, and so is a formula."""
    formulas = iter(_FORMULA.findall(text))
    words = _VALUE.sub("\u00a0=\u00a0", _FORMULA.sub("$$", text)).split(" ")
    return [re.sub(r"\$\$", lambda _: next(formulas), word) for word in words if word]


@cache
def _is_formula(text: str) -> bool:
    """Return whether figures can set a text as a formula; what else LaTeX would do with it, is not let through."""
    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def _parts(word: str) -> list[str]:
    """Return the parts of a word that may stand on different lines; a short one, or one with its value, stays whole."""
    parts = re.split(r"(?<=[_(=,/:])", word) if len(word) > _LONG and not set(word) & {"\u00a0", "$"} else [word]
    return [part for part in parts if part] or [""]


def _row_width(text: str) -> float:
    commands = re.findall(r"\\[a-z]+", text)
    rest = re.sub(r"\\[a-z]+", "", text).replace(" ", "")
    return _SYMBOL * (len(commands) + _count(rest, "<>")) + sum(
        0.83 if letter in "+-" else _letter_width(letter) for letter in rest if letter not in "<>"
    )


def _letter_width(letter: str) -> float:
    if letter.isdigit():
        return _DIGIT
    if letter in " \u00a0.,:;!|()[]'ijltfr-":
        return _NARROW
    if letter in "mwMW%@—∞<>=+−×±":
        return _WIDE
    return _CAPITAL if letter.isupper() or not letter.isascii() else _USUAL


def _count(text: str, letters: Iterable[str]) -> int:
    return sum(text.count(letter) for letter in letters)
