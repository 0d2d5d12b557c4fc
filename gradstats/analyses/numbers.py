"""How numbers are written for people, with their intervals: in terminal and notebooks, tables, figures and reports.

Half the width of an interval decides the digits of a number and of its ends: two of its significant digits are shown.
What is printed beside an interval lies within it. An estimate without bias may lie outside of what is possible (a
cosine of 1.1, a share of −0.3); files keep it, and readers see what its interval says instead: ``≥ 0.928``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from statistics import median

from gradstats.stats.variance.quantities import NO_LIMITS, Limits, digits_for

Triple = tuple[float, float, float]
UNRESOLVED = "–"
_NOT_BOUNDED = "not bounded"

#: Share of a value below which an interval, or one side of it, holds nothing but the rounding of float32.
ROUNDING = 1e-7
# Share of an end by which a value is outside of its interval through rounding only.
_OUTSIDE_BY_ROUNDING = 1e-9
# What lies farther from an interval without a width was cut off by the limits, and is not known exactly.
_CUT_OFF = 1e-6
# What is known exactly and lies below this is 0.
_NOTHING = 1e-12
# An end that is so many times farther from a value than the value and its other end is as good as infinite.
_BOUNDLESS = 1e9
# Numbers outside of these are written with a power of ten.
_SMALL, _LARGE = 1e-4, 1e9
_SMALL_IN_LATEX, _LARGE_IN_LATEX = 1e-3, 1e6
# Share of the other end of an interval below which an end is as good as 0.
_AS_GOOD_AS_NOTHING = 1e-4
# Ends of one sign of which one is so many times the other need digits of their own.
_DECADE = 10.0
# Sides of an interval that differ by less than this share are one.
_ONE_SIDE = 1e-2


def displayable_interval(value: float, low: float, high: float, limits: Limits = NO_LIMITS) -> Triple:
    """Return what readers see of an estimate and of its interval: NaN for what says nothing.

    A value outside of its interval, or outside of what is possible, is left out. Without a value, an end at the limit
    of what is possible is left out too, since it holds for every value. Nothing is left where all of an interval is
    impossible.

    >>> displayable_interval(1.1, 0.928, 1.0, (-1.0, 1.0)), displayable_interval(0.7, 0.6, 0.8)
    ((nan, 0.928, nan), (0.7, 0.6, 0.8))
    >>> displayable_interval(1.01, 1.0, 1.0, (-1.0, 1.0)), displayable_interval(0.9, -1.0, 1.0, (-1.0, 1.0))
    ((nan, nan, nan), (nan, nan, nan))
    """
    below, above = value - low, high - value
    if value != 0 and below >= 0 and above >= 0:
        # An end out of all proportion, as that of a ratio over a variance near 0.
        if above > _BOUNDLESS * max(abs(value), below if math.isfinite(below) else 0.0):
            high = math.inf
        elif below > _BOUNDLESS * max(abs(value), above if math.isfinite(above) else 0.0):
            low = -math.inf
    least, greatest = limits
    of_ratio = least == 0.0 and math.isinf(greatest) and 0.0 < low < value < high
    if of_ratio and high / value > math.sqrt(_BOUNDLESS):  # not known to any power of ten, or bounded from below alone
        low, high = least if value / low > math.sqrt(_BOUNDLESS) else low, greatest
    low, high = low if math.isnan(low) else max(low, least), high if math.isnan(high) else min(high, greatest)
    if low == high:  # known exactly, as what a row saves against itself: 0 but for rounding
        if abs(value - low) > _CUT_OFF * max(1.0, abs(low)):  # the whole interval lay outside of what is possible
            return math.nan, math.nan, math.nan
        exact = 0.0 if abs(low) < _NOTHING else low
        return exact, exact, exact
    for end in (low, high):
        if math.isfinite(end) and abs(value - end) <= _OUTSIDE_BY_ROUNDING * abs(end):
            value = end
    if value < low:
        value, low = math.nan, math.nan if math.isinf(least) else low
    elif value > high:
        value, high = math.nan, math.nan if math.isinf(greatest) else high
    elif not least <= value <= greatest or (
        low == least and high == greatest and (least < 0.0 or math.isinf(greatest))
    ):
        value = math.nan  # an interval of all that is possible says nothing of a noise or a cosine
    if math.isnan(value):
        low = math.nan if math.isclose(low, least, rel_tol=ROUNDING, abs_tol=0.0) else low
        high = math.nan if math.isclose(high, greatest, rel_tol=ROUNDING, abs_tol=0.0) else high
    return value, low, high


def format_estimate(
    value: float,
    low: float,
    high: float,
    *,
    limits: Limits = NO_LIMITS,
    exponent: int = 0,
    markup: str = "plain",
    narrow: bool = False,
) -> str:
    r"""Return a number with its interval, to two significant digits of half its width.

    ``0.79 [0.47, 1.10]``, and in LaTeX :math:`0.79 \pm 0.31` or, where the sides differ,
    :math:`1.30^{+0.30}_{-0.23}`, with the same ends, and in brackets where these have digits of their own. A bound
    known on one side reads ``≥ 620``, beside a number ``800 [≥ 620]``; an interval without a number ``[0.2, 1.0]``;
    what is known exactly, or has no interval, stands alone; and what is not resolved is a dash. Bounds are rounded
    outwards.

    Args:
        value: the estimate; NaN for an interval alone.
        low: lower end; NaN or infinite where there is none.
        high: upper end; likewise.
        limits: the least and the greatest value that are possible, see :func:`displayable_interval`.
        exponent: power of ten, written in the heading, in which the number is given.
        markup: ``"plain"`` (text and Markdown), ``"html"`` or ``"latex"``.
        narrow: put an error behind ± below the line, in LaTeX.

    >>> format_estimate(0.7887, 0.4751, 1.1024), format_estimate(1.1, 0.928, 1.0, limits=(-1, 1))
    ('0.79 [0.48, 1.10]', '≥ 0.928')
    """
    ends = [end for end in (max(low, limits[0]), min(high, limits[1])) if math.isfinite(end)]
    margin = (ends[1] - ends[0]) / 2.0 if len(ends) == 2 else 0.0  # of a bound, whose other end is not shown
    value, low, high, margin = (
        one / 10.0**exponent for one in (*displayable_interval(value, low, high, limits), margin)
    )
    if markup == "latex":
        limits = limits[0] / 10.0**exponent, limits[1] / 10.0**exponent
        return _in_latex(value, low, high, margin, limits, own_power=exponent == 0, narrow=narrow)
    sizes = [abs(number) for number in (value, low, high) if math.isfinite(number)]
    widest = max(sizes, default=0.0)
    own = math.floor(math.log10(widest)) if 0 < widest < _SMALL or widest >= _LARGE else 0
    value, low, high, margin = (one / 10.0**own for one in (value, low, high, margin))
    number, interval = _in_brackets(value, low, high, margin, power=f"·{power_of_ten(own)}" if own else "")
    if markup == "html" and number and interval:
        interval = f'<span class="ends">{interval}</span>'
    return " ".join(part for part in (number, interval) if part)


def _in_brackets(value: float, low: float, high: float, margin: float, power: str = "") -> tuple[str, str]:
    """Return a number and its interval as text, of which one may be empty; a power of ten follows every number."""

    def written(number: float, digits: int) -> str:
        return _fixed(number, digits) + (power if number else "")

    if math.isnan(value):
        if math.isfinite(low) and math.isfinite(high):
            whole = low == int(low) and high == int(high)  # as the ends of bins
            first, last = (written(end, 0 if whole else _kept_digits(end, low, high)) for end in (low, high))
            return "", f"[{first}, {last}]"
        for end, sign, away in ((low, "≥", ROUND_FLOOR), (high, "≤", ROUND_CEILING)):
            if math.isfinite(end):
                return "", f"{sign} {written(*_outwards(end, away, margin))}"
        return UNRESOLVED, ""
    ends = [end for end in (low, high) if math.isfinite(end)]
    # What is known exactly has an interval of rounding errors, which is left out.
    if all(abs(value - end) <= ROUNDING * abs(value) for end in ends):
        return (format_number(value) if not power else written(value, 2)), ""
    if len(ends) == 1:
        (end,), digits = ends, digits_for(abs(value - ends[0]))
        sign, away = ("≥", ROUND_FLOOR) if end == low else ("≤", ROUND_CEILING)
        of_end = _kept_digits(end, *sorted((value, end))) if value * end > 0 else digits
        return written(value, digits), f"[{sign} {written(float(_quantized(end, of_end, away)), of_end)}]"
    number, first, last = (written(one, _kept_digits(one, low, high)) for one in (value, low, high))
    return number, f"[{first}, {last}]"


def _kept_digits(number: float, low: float, high: float) -> int:
    """Return the decimals of a value or an end: those of the half-width, and of far-apart ends two digits at least.

    An end that is a ten-thousandth of the other, or less, is as good as 0. An estimate above an end of 0 is not
    written as 0.
    """
    digits = digits_for((high - low) / 2.0)
    hidden = low * high == 0 and abs(number) < 0.5 * 10.0**-digits
    if not (_far_apart(low, high) or hidden) or abs(number) <= _AS_GOOD_AS_NOTHING * max(abs(low), abs(high)):
        return digits
    return max(digits, digits_for(abs(number)))


def _far_apart(low: float, high: float) -> bool:
    """Return whether the ends of an interval share no digit."""
    return bool(low * high > 0 and max(abs(low), abs(high)) > _DECADE * min(abs(low), abs(high)))


def _in_latex(
    value: float, low: float, high: float, margin: float, limits: Limits, *, own_power: bool, narrow: bool
) -> str:
    sizes = [abs(number) for number in (value, low, high) if math.isfinite(number)]
    own = 0
    if own_power and sizes:
        size = abs(value) if math.isfinite(value) else max(sizes)
        if 0 < max(sizes) < _SMALL_IN_LATEX:
            own = math.floor(math.log10(max(sizes)))
        elif size >= _LARGE_IN_LATEX:
            own = math.floor(math.log10(size))
    value, low, high, margin = (one / 10.0**own for one in (value, low, high, margin))
    text = _formula(value, low, high, margin, (limits[0] / 10.0**own, limits[1] / 10.0**own), narrow)
    if text is None:
        return "--"
    return f"${_in_power(text, own)}$"


def _formula(value: float, low: float, high: float, margin: float, limits: Limits, narrow: bool) -> str | None:
    """Return the mathematics of a number with its interval; None where nothing is known.

    Errors lead to the ends that other markups print, but for one unit of the last digit behind ±.
    """
    known = [end for end in (low, high) if math.isfinite(end)]
    exact = all(abs(value - end) <= ROUNDING * abs(value) for end in known)
    digits, *others = {_kept_digits(one, low, high) for one in (value, low, high)} if len(known) == 2 else {0}
    if math.isnan(value) or len(known) == 1 or (others and not exact):
        number, interval = _in_brackets(value, low, high, margin)
        if number == UNRESOLVED:
            return None
        return _in_mathematics(r"\ ".join(part for part in (number, interval) if part))
    if exact:
        return _in_mathematics(format_number(value))
    centre, first, last, half = (round(one, digits) for one in (value, low, high, (high - low) / 2.0))
    down, up, both = (_fixed(side, digits) for side in (centre - first, last - centre, half))
    symmetric = math.isclose(high - value, value - low, rel_tol=_ONE_SIDE)
    if symmetric and limits[0] <= centre - half and centre + half <= limits[1]:
        down = up = both
    centred, down, up = (_in_mathematics(text) for text in (_fixed(value, digits), down, up))
    if down == up:
        return rf"{centred}_{{\pm {up}}}" if narrow else rf"{centred} \pm {up}"
    return f"{centred}^{{+{up}}}_{{-{down}}}"


def _in_power(formula: str, exponent: int) -> str:
    r"""Put a power of ten behind a formula: ``1.2 \pm 0.3`` → ``(1.2 \pm 0.3) \cdot 10^{-5}``."""
    if not exponent:
        return formula
    power = f"10^{{{exponent}}}"
    if formula == "1" or formula.endswith(" 1"):
        return f"{formula[:-1]}{power}"
    return rf"({formula}) \cdot {power}" if r" \pm " in formula or r"\ [" in formula else rf"{formula} \cdot {power}"


def _in_mathematics(text: str) -> str:
    for sign, command in (("−", "-"), ("≥", r"\geq"), ("≤", r"\leq"), (_NOT_BOUNDED, r"\infty")):
        text = text.replace(sign, command)
    return re.sub(r"(?<=\d),(?=\d)", "{,}", text)  # a comma between digits would be followed by a space


def common_exponent(cells: Iterable[Triple | str]) -> int:
    """Return the power of ten that most of a column's numbers are best given in; 0 where plain digits are readable.

    The median decides, so that one row without a sensible value does not make the others unreadable.
    """
    triples = [cell for cell in cells if not isinstance(cell, str)]
    sizes = [abs(number) for triple in triples for number in triple if math.isfinite(number) and number != 0]
    if not sizes:
        return 0
    usual = math.floor(math.log10(median(sizes)))
    return usual if usual >= 5 or usual <= -3 else 0


def percentage(share: float, low: float, high: float) -> str:
    """Write a share and its interval in whole per cent.

    >>> percentage(0.438, 0.355, 0.533), percentage(-0.01, -0.05, 0.03)
    ('44% [36, 53]', '−1% [−5, 3]')
    """
    return f"{share:.0%} [{100 * low:.0f}, {100 * high:.0f}]".replace("-", "−")


def percentage_at_most(share: float, digits: int = 0) -> str:
    """Write an upper bound of a share in per cent, rounded up.

    >>> percentage_at_most(0.7815), percentage_at_most(0.78), percentage_at_most(0.0312, 1)
    ('79%', '78%', '3.2%')
    """
    exact = Decimal(f"{100.0 * share:.12g}")  # without the last digits of a float
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING):f}%"


def minimiser_with_interval(value: float, low: float, high: float, values: Iterable[float]) -> str:
    """Write a minimiser with its interval, with ≤ or ≥ at an end where it was cut to the values of a curve.

    Example:
        >>> from gradstats.analyses.numbers import minimiser_with_interval
        >>> minimiser_with_interval(-0.5, -1.0, 0.25, [-1.0, 0.0, 1.0])
        '−0.5 [≤ −1, 0.25]'
    """
    tried = list(values)
    below = "≤ " if math.isfinite(low) and low <= min(tried) else ""
    above = "≥ " if math.isfinite(high) and high >= max(tried) else ""
    interval = "" if low == high else f" [{below}{low:.2g}, {above}{high:.2g}]"
    return f"{value:.2g}{interval}".replace("-", "−")


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(exponent: int) -> str:
    """Write a power of ten in text.

    >>> power_of_ten(-11)
    '10⁻¹¹'
    """
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def format_number(number: float, digits: int = 3) -> str:
    """Return a number without interval: a count in full, others to so many significant digits.

    >>> format_number(0.87123), format_number(12345.6), format_number(96.0), format_number(2.31e-11)
    ('0.871', '12,300', '96', '2.31·10⁻¹¹')
    """
    if math.isnan(number):
        return UNRESOLVED
    if math.isinf(number):
        return _NOT_BOUNDED
    nearest = round(number)
    if abs(number - nearest) <= ROUNDING * abs(nearest) and abs(number) < _LARGE:
        return _fixed(float(nearest), 0)
    size = math.floor(math.log10(abs(number)))
    if not _SMALL <= abs(number) < _LARGE:
        return f"{_trimmed(_fixed(number / 10.0**size, digits - 1))}·{power_of_ten(size)}"
    return _trimmed(_fixed(number, digits - 1 - size))


def percent(level: float) -> str:
    """Return a level of intervals.

    >>> percent(0.95), percent(0.995)
    ('95%', '99.5%')
    """
    return f"{100.0 * level:.4g}%"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _outwards(number: float, direction: str, margin: float) -> tuple[float, int]:
    """Round a bound in a direction of :mod:`decimal`; return it with its decimals.

    It has two significant digits of a margin, or of itself without one. The last digits of a float do not count.
    """
    exact = Decimal(f"{number:.12g}")
    if exact == int(exact) and abs(exact) < 1000:
        return float(exact), 0
    rounded = _quantized(number, digits_for(margin or abs(number)), direction).normalize()
    return float(rounded), max(0, -int(rounded.as_tuple().exponent))


def _quantized(number: float, digits: int, direction: str) -> Decimal:
    """Round to so many decimals in a direction of :mod:`decimal`; the last digits of a float do not count."""
    return Decimal(f"{number:.12g}").quantize(Decimal(1).scaleb(-digits), direction)


def _fixed(number: float, digits: int) -> str:
    """Return a number with so many decimals, and thousands apart; tens, hundreds and so on for a negative number."""
    text = f"{round(number, digits):,.{min(max(digits, 0), 12)}f}" if number else "0"
    if not text.strip("-0."):
        text = text.lstrip("-")
    return text.replace("-", "−")
