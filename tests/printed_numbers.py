"""Numbers as they are printed, read back."""

from __future__ import annotations

#: A number, also with a power of ten, as a regular expression.
NUMBER = r"−?[\d,]*\d(?:\.\d+)?(?:·10[⁻⁰¹²³⁴-⁹]+)?"
_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-", ",")


def as_number(text):
    return float(text.replace("·10", "e").translate(_DIGITS))
