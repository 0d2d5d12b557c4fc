"""How estimated numbers are written with their intervals, in tables and reports alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from statistics import median

import pandas as pd

Triple = tuple[float, float, float]

UNRESOLVED = "–"

#: Share of a value below which an interval, or one side of it, holds nothing but the rounding of float32.
ROUNDING = 1e-7
#: An end that is so many times farther from a value than the value and its other end is as good as infinite.
_BOUNDLESS = 1e9


def triples_of(frame: pd.DataFrame, name: str) -> list[Triple]:
    """Return the estimates of a column with the ends of their intervals, from the columns NAME_low and NAME_high."""
    values = frame[[name, f"{name}_low", f"{name}_high"]].to_numpy(dtype=float)
    return [(float(value), float(low), float(high)) for value, low, high in values]


def number_with_interval(
    value: float, low: float, high: float, *, exponent: int = 0, markup: str = "plain", narrow: bool = False
) -> str:
    """Return a number with its interval, to two significant digits of the longer side.

    Symmetric intervals read ``0.79 ± 0.31``, others ``1.30 +0.29 −0.24`` (LaTeX and HTML stack the two), a bound known
    on one side ``> 1200``, a range without a value ``0.2 to 1.0``, a number without interval stands alone, and what is
    not resolved is a dash. An estimate outside of its interval, which was cut to what is possible (a negative share, a
    cosine above 1), is given as the bound, which is rounded outwards. An end 10⁹ times as far away as the rest is
    infinite. LaTeX gives very small and very large numbers in a power of ten of their own.
    """
    value, low, high = _within_bounds(*(number / 10.0**exponent for number in (value, low, high)))
    latex = markup == "latex"
    own = _own_exponent(value, low, high) if latex and exponent == 0 else 0
    if own:
        # A range in brackets is one formula, which a power of ten can follow.
        text = number_with_interval(value, low, high, exponent=own, markup=markup, narrow=narrow or math.isnan(value))
        return _in_own_power(text, own)
    if math.isnan(value) and math.isfinite(low) and math.isfinite(high):
        ends = [_fixed(end, _decimals(high - low) if high > low else 2, latex) for end in (low, high)]
        if latex and narrow:
            return f"$[{ends[0]}, {ends[1]}]$"
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
    if not sides or max(sides) <= ROUNDING * abs(value):
        return _mathematics(_alone(value), latex)
    digits = _decimals(max(sides))
    centre = _fixed(value, digits, latex)
    down, up = _fixed(below, digits, latex), _fixed(above, digits, latex)
    shorter = min((side for side in sides if side > ROUNDING * max(sides)), default=0.0)
    if shorter < 0.5 * 10.0**-digits:
        # The longer side has no digits in which value and shorter side would not be 0.
        centre = _fixed(value, _decimals(shorter), latex)
        down, up = (_fixed(side, _decimals(side), latex) if side > 0 else "0" for side in (below, above))
    # Sides that differ by less than a tenth are written as one.
    if len(sides) == 2 and abs(above - below) <= 0.1 * max(above, below):
        half = _fixed((above + below) / 2.0, digits, latex)
        if latex and narrow:
            return rf"${centre}_{{\pm {half}}}$"
        return rf"${centre} \pm {half}$" if latex else f"{centre} ± {half}"
    # An interval that ends at the value, as that of a share of 1 does.
    down, up = ("0" if side <= ROUNDING * max(sides) else text for side, text in ((below, down), (above, up)))
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


def _within_bounds(value: float, low: float, high: float) -> Triple:
    """Replace an end that is out of all proportion, as that of a ratio over a variance near 0, by infinity."""
    below, above = value - low, high - value
    if value != 0 and below >= 0 and above >= 0:
        if above > _BOUNDLESS * max(abs(value), below if math.isfinite(below) else 0.0):
            high = math.inf
        elif below > _BOUNDLESS * max(abs(value), above if math.isfinite(above) else 0.0):
            low = -math.inf
    return value, low, high


def _bound(low: float, high: float, markup: str) -> str | None:
    for end, sign, entity, away in ((low, ">", "&gt;", ROUND_FLOOR), (high, "<", "&lt;", ROUND_CEILING)):
        if math.isfinite(end):
            # Rounded to the nearest, the lower end 0.9998 of a cosine would read "> 1".
            text = _alone(_rounded(end, away))
            if markup == "latex":
                return _mathematics(f"{sign} {text}", True)
            return f"{entity if markup == 'html' else sign} {text}"
    return None


def _rounded(number: float, direction: str) -> float:
    """Round to three significant digits in a direction of :mod:`decimal`; the last digits of a float do not count."""
    exact = Decimal(f"{number:.12g}")
    return float(exact if exact == int(exact) else exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), direction))


def _own_exponent(value: float, low: float, high: float) -> int:
    """Return the power of ten in which a number is readable by itself: 0 where it is as it stands."""
    widest = max((abs(number) for number in (value, low, high) if math.isfinite(number)), default=0.0)
    size = abs(value) if math.isfinite(value) else widest
    if 0 < widest < 1e-3:
        return math.floor(math.log10(widest))
    return math.floor(math.log10(size)) if size >= 1e6 else 0


def _in_own_power(text: str, exponent: int) -> str:
    r"""Put a power of ten behind a number in LaTeX: ``$1.2 \pm 0.3$`` → ``$(1.2 \pm 0.3) \cdot 10^{-5}$``."""
    if not text.startswith("$"):
        return text
    inner, power = text.strip("$"), f"10^{{{exponent}}}"
    if inner.endswith(("> 1", "< 1")) or inner == "1":
        return f"${inner[:-1]}{power}$"
    return rf"$({inner}) \cdot {power}$" if r" \pm " in inner else rf"${inner} \cdot {power}$"


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
    rounded = f"{number:.3g}"
    return (f"{float(rounded):.0f}" if 1e3 <= abs(number) < 1e6 else rounded).replace("-", "−")


def _mathematics(text: str, latex: bool) -> str:
    if not latex:
        return text
    return f"${text.replace('−', '-').replace('∞', chr(92) + 'infty')}$"
