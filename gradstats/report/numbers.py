"""How estimated numbers are written with their intervals, in tables and reports alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

Triple = tuple[float, float, float]

UNRESOLVED = "–"


def number_with_interval(value: float, low: float, high: float, *, exponent: int = 0, markup: str = "plain") -> str:
    """Return a number with its interval, to two significant digits of the longer side.

    Symmetric intervals read ``0.79 ± 0.31``, others ``1.30 +0.29 −0.24`` (LaTeX and HTML stack the two), a bound known
    on one side ``> 1200``, a range without a value ``0.2 to 1.0``, a number without interval stands alone, and what is
    not resolved is a dash. An estimate outside of its interval, which was cut to what is possible (a negative share, a
    cosine above 1), is given as the bound.

    Args:
        value: the estimate, or NaN.
        low: lower end, NaN or −∞ where unknown.
        high: upper end, NaN or ∞ where unknown.
        exponent: the number is given in units of 10**exponent.
        markup: ``"plain"``, ``"markdown"`` (as plain), ``"latex"`` or ``"html"``.
    """
    value, low, high = (number / 10.0**exponent for number in (value, low, high))
    latex = markup == "latex"
    if math.isnan(value) and math.isfinite(low) and math.isfinite(high):
        ends = [_fixed(end, _decimals(high - low) if high > low else 2, latex) for end in (low, high)]
        return rf"${ends[0]}$ to ${ends[1]}$" if latex else " to ".join(ends)
    # An estimate outside of what is possible, such as a negative share: its interval is cut, and says what is known.
    nearest = min(max(value, low), high)
    if abs(value - nearest) <= 1e-9 * abs(nearest):  # outside by rounding only
        value = nearest
    if value < low or value > high:
        if low == high:
            return _mathematics(_alone(low), latex)
        value, low, high = (math.nan, math.nan, high) if value < low else (math.nan, low, math.nan)
    if math.isnan(value):
        bound = _bound(low, high, markup)
        return ("--" if latex else UNRESOLVED) if bound is None else bound
    below, above = value - low, high - value
    sides = [side for side in (below, above) if math.isfinite(side)]
    # A quantity known exactly has an interval of rounding errors, which is left out.
    if not sides or max(sides) <= 1e-9 * abs(value):
        return _mathematics(_alone(value), latex)
    digits = _decimals(max(sides))
    centre = _fixed(value, digits, latex)
    down, up = _fixed(below, digits, latex), _fixed(above, digits, latex)
    # Sides that differ by less than a tenth are written as one.
    if len(sides) == 2 and abs(above - below) <= 0.1 * max(above, below):
        half = _fixed((above + below) / 2.0, digits, latex)
        return rf"${centre} \pm {half}$" if latex else f"{centre} ± {half}"
    pieces = [("+", "^", up, above), ("−", "_", down, below)]
    known = [(sign, script, text) for sign, script, text, side in pieces if not math.isnan(side)]
    if latex:
        return (
            f"${centre}" + "".join(f"{script}{{{sign.replace('−', '-')}{text}}}" for sign, script, text in known) + "$"
        )
    if markup == "html":
        stacked = " ".join(f"<span>{sign}{text}</span>" for sign, _, text in known)
        return f'{centre} <span class="sides">{stacked}</span>'
    return " ".join([centre, *(f"{sign}{text}" for sign, _, text in known)])


def common_exponent(triples: Iterable[Triple]) -> int:
    """Return the power of ten that most of a column's numbers are best given in; 0 where plain digits are readable.

    The median decides, so that one row without a sensible value does not make the others unreadable.
    """
    sizes = [abs(number) for triple in triples for number in triple if math.isfinite(number) and number != 0]
    if not sizes:
        return 0
    usual = math.floor(math.log10(median(sizes)))
    return usual if usual >= 5 or usual <= -3 else 0


def _bound(low: float, high: float, markup: str) -> str | None:
    for end, sign, entity in ((low, ">", "&gt;"), (high, "<", "&lt;")):
        if math.isfinite(end):
            if markup == "latex":
                return _mathematics(f"{sign} {_alone(end)}", True)
            return f"{entity if markup == 'html' else sign} {_alone(end)}"
    return None


def _decimals(side: float) -> int:
    """Return the decimals that show two significant digits of a margin."""
    return max(0, 1 - math.floor(math.log10(side)))


def _fixed(number: float, digits: int, latex: bool) -> str:
    if not math.isfinite(number):
        return r"\infty" if latex else "∞"
    text = f"{number:.{min(digits, 12)}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text if latex else text.replace("-", "−")


def _alone(number: float) -> str:
    """Return a number without interval: a count in full, others to three significant digits."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "−∞"
    if number == int(number) and abs(number) < 1e9:
        return f"{int(number)}".replace("-", "−")
    return f"{number:.3g}".replace("-", "−")


def _mathematics(text: str, latex: bool) -> str:
    if not latex:
        return text
    return f"${text.replace('−', '-').replace('∞', chr(92) + 'infty')}$"
