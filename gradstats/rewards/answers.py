r"""Where the answer of a completion stands, and one notation for what graders read differently from how it is written.

Nothing here decides whether answers are equal. A text is brought into a notation that math-verify reads as a person
does ("2 2/3" as ``(2+2/3)``, "1 000" as ``1000``, "−3" as ``-3``), where it has only one plain reading; what has none
("12:30", "2 hours 30 minutes") is found by :func:`has_no_plain_reading`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from gradstats.prompts.problem import last_number

_OPEN, _CLOSE = "<answer>", "</answer>"
_THINKING = re.compile(r"(?i)(<|\[)(/?)(?:think|thinking|thought|reasoning)(?:>|\])")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{|\w?)")
# A backslash before a brace makes it a character.
_BRACE = re.compile(
    r"(?P<box>\\(?:boxed|fbox)(?![A-Za-z])\s*(?:\{|(?P<bare>\w)))|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL
)
_PERCENT = re.compile(r"[\s$]*(?:\\?%|\\text\{\s*percent\s*\}|(?:percent|pct)\b)")
# Between the boxes of one answer in several parts.
_LISTED = re.compile(r"(?:[\s$,;&]|\\[,;: ]|\\q?quad|\\\(|\\\)|and|or|\\text\{\s*,?\s*(?:and|or)\s*\})*")


class Box(NamedTuple):
    r"""A ``\boxed{}`` or ``\fbox{}`` that is closed."""

    start: int
    end: int
    content: str


def spoken(completion: str) -> str | None:
    """Return the completion after its thinking; None where it was cut inside it."""
    tags = list(_THINKING.finditer(completion))
    if not tags:
        return completion
    return completion[tags[-1].end() :] if tags[-1][2] else None


def boxes(text: str) -> list[Box] | None:
    r"""Return the outermost boxes that are not empty; None where the last one is left open: the text was cut there."""
    found: list[tuple[int, int, int, int]] = []  # where a box and its content begin, and where they end
    # Where the braces begin that are open, and the content of those that are a box's.
    opened: list[tuple[int, int | None]] = []
    for token in _BRACE.finditer(text):
        if token["bare"]:
            found.append((token.start(), token.start("bare"), token.end(), token.end()))
        elif token["box"]:
            opened.append((token.start(), token.end()))
        elif token["open"]:
            opened.append((token.start(), None))
        elif token["close"] and opened:
            start, content = opened.pop()
            if content is not None:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, content, token.start(), token.end()))
    last_open = max((start for start, content in opened if content is not None), default=-1)
    if found and last_open < found[-1][0]:
        last_open = -1
    return None if last_open >= 0 else [box for box in (_box(text, *places) for places in found) if box.content]


def _box(text: str, start: int, begins: int, ends: int, end: int) -> Box:
    content = _BOX.sub(r"\1", text[begins:ends]).strip()
    return Box(start, end, content + r"\%" if content and _PERCENT.match(text, end) else content)


def boxed_answers(found: list[Box], text: str) -> list[str]:
    """Return the last box, and where it ends a list of boxes ("1 and 2") that list as well."""
    last = [found[-1]]
    for box in reversed(found[:-1]):
        if not _LISTED.fullmatch(text, box.end, last[0].start):
            break
        last.insert(0, box)
    contents = list(dict.fromkeys(box.content for box in last))
    return [last[-1].content, *(["; ".join(contents)] if len(contents) > 1 else [])]


def final_answer(completion: str) -> str:
    r"""Find the answer: in the last ``<answer>`` tags, else the last ``\boxed{}``, else the last number.

    A completion without any of these is itself the answer, stripped. One that was cut while it was thinking, or inside
    its last box, has none: an empty text.
    """
    text = spoken(completion)
    if text is None:
        return ""
    tagged = tagged_answer(text)
    if tagged is not None:
        return tagged
    found = boxes(text)
    if found is None:
        return ""
    return found[-1].content if found else last_number(text) or text.strip()


def tagged_answer(text: str) -> str | None:
    """Return the text in the last pair of ``<answer>`` tags, in one pass: a completion may hold megabytes of them."""
    answer, place = None, 0
    while (start := text.find(_OPEN, place)) >= 0 and (end := text.find(_CLOSE, start)) >= 0:
        answer, place = text[start + len(_OPEN) : end].strip(), end + len(_CLOSE)
    return answer


# Full-width forms become ASCII; signs that look like a minus become one.
_CHARACTERS = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    **dict.fromkeys(map(ord, "−‐‑﹣－⁻"), "-"),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\u2002\u2003\u2005\u2006\u200a\u3000"), " "),
    **dict.fromkeys(map(ord, "\u200b\u2060\ufeff"), None),
    ord("⁄"): "/", ord("∕"): "/", ord("÷"): "/", ord("’"): "'", ord("‘"): "'", ord("′"): "'",
    ord("⋅"): "·", ord("∙"): "·", ord("✕"): "×", ord("∗"): "*",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
# After a digit, a bracket or a lone letter; "5 m²" is a unit.
_RAISED = re.compile(r"((?<=[\d)\]}π])|(?<=[A-Za-z])(?<![A-Za-z]{2})(?<!\d\s[A-Za-z])(?<!\dm))([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅐": "1/7", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅑": "1/9", "⅒": "1/10",
}  # fmt: skip
_VULGAR_SIGN = re.compile(f"(\\d?) ?([{''.join(_VULGAR)}])")
_ROOT = re.compile(r"([√∛])\s*(\d+(?:\.\d+)?|[A-Za-z]|\(([^()]*)\))")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]"}
_COMMANDS = {
    "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "≠": r"\ne ",
}  # fmt: skip
_CURRENCY = re.compile(r"[€£¥₹₩₽]\s?(?=\d)|(?<=\d)\s?[€£¥₹₩₽]")

# A number begins where no other number or name goes on.
_BEGIN = r"(?<![\w.,/^}\\])"
# Groups of three digits with the same separator between all of them.
_SEPARATED = re.compile(
    r"(?<![\w.,/^\\])(?<!\d[ '_])(\d{1,3})((?: |'|_|~|\\[,;: ]|\{,\}|\{\\,\}|,\\!\s?)(?=\d{3}(?!\d)))"
    r"(\d{3}(?:\2\d{3})*)(?!\d|['_,]\d{3}|,\\!)(?:,(\d+)(?!\d))?"
)
_DOTTED = re.compile(
    r"(?<![\w.,])(\d{1,3}(?:\.\d{3}){2,})(?!\d|\.\d)(?:,(\d+))?|(?<![\w.,])(\d{1,3}\.\d{3}),(\d{1,2})(?!\d)"
)
# Groups after commas that cannot be entries of a list, since one begins with 0: "1,000", "10,00,000".
_WITH_ZEROS = re.compile(r"(?<![\w.,])(?=[\d,]*,0\d)(\d{1,3}(?:,\d{2,3})*,\d{3})(?!\d|,\d)")
# Decimals behind a comma that cannot be entries of a list either: "100,00".
_COMMA_ZEROS = re.compile(r"(?<![\w.,])(\d+),(0\d?|0\d{3,})(?![\w,]|\.\d)")
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_E_NOTATION = re.compile(rf"{_BEGIN}(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{{1,3}})(?![\w^]|\.\d)")
_POWER_OF_TEN = re.compile(
    rf"{_BEGIN}(\d+(?:\.\d+)?|\.\d+)\s*(?:\\times|\\cdot|[×·xX*])\s*10\s*(?:\^|\*\*)\s*"
    r"(?:\{\s*([+-]?\d{1,3})\s*\}|\(\s*([+-]?\d{1,3})\s*\)|([+-]?\d{1,3}))(?!\d|\.\d|\s*[\^!])"
)
# ``**`` between what can be base and exponent; elsewhere it makes text bold.
_STARS = re.compile(r"(?<=[\w)])(?:\*\*|\s\*\*\s)(?=-?\d|[a-z]\b|\(-?\d)")
_RAISED_NUMBER = re.compile(r"(?<=[\w)])\s*\^\s*(?:\{\s*(-?\d+)\s*\}|(-\d+))")
_MIXED = re.compile(r"(?<![\w.,/^}\\])(?<!\d[ ])(\d+)[ ]+(\d+)[ ]*/[ ]*(\d+)(\s*\\?%)?(?![\w^]|\.\d|\s*/\s*\d)")
_MIXED_LATEX = re.compile(r"(?<=\d)(?:~|\\[,;: ])+(?=\\[dtc]?frac)")
# math-verify takes the last letter for a unit and drops it: "3x+2t", "2ab".
_LAST_VARIABLE = re.compile(
    r"(?:(?<=[\d}])|(?<=[\d}A-Za-z)]\s))(?<![A-Za-z]{2}\s)([a-z])(?=\s*$)|(?<=\da)(b)(?=\s*$)|(?<=\db)(c)(?=\s*$)"
)
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_UNIT = re.compile(
    r"(?<=\d)(\s*(?:[kcm]m|ft|in|yd)(?=\s*\^)|\s+m(?=\s*\^)|\s+[A-Za-z]{1,5}\s*/\s*[A-Za-z]{1,4})(\s*\^\s*[23])?(?=\s*$)"
)
_AFTER_IS = re.compile(r"(?:(?<=\bis )|(?<=\bare )|(?<== ))- (?=[\d.])")
_EN_DASH = re.compile(r"(?<![\w)\]}.])(?<![\d)\]}]\s)–\s?(?=[\d.])")


def plain_notation(text: str) -> str:
    r"""Rewrite numbers that have one plain reading so that math-verify reads them.

    Unicode's minus signs, spaces, superscripts, fractions and roots; thousands separated by spaces, apostrophes,
    underscores or dots; mixed numbers; ``1e3``, ``2 × 10³`` and ``2**10``. Everything else stays as it is.

    Example:
        >>> plain_notation("−2 2/3"), plain_notation("1 000 000"), plain_notation("1.5 × 10⁻³"), plain_notation("2**10")
        ('-(2+2/3)', '1000000', '0.0015', '2^10')
    """
    if not text.isascii():
        text = _RAISED.sub(lambda found: "^" + _exponent(found[2].translate(_SUPERSCRIPTS)), text)
        text = _EN_DASH.sub("-", text.translate(_CHARACTERS))
        text = _VULGAR_SIGN.sub(
            lambda found: f"{found[1]} {_VULGAR[found[2]]}" if found[1] else _VULGAR[found[2]], text
        )
        text = _ROOT.sub(lambda found: rf"{_ROOTS[found[1]]}{{{found[3] or found[2]}}}", text)
        text = _CURRENCY.sub("", text)
        for sign, command in _COMMANDS.items():
            text = text.replace(sign, command)
    text = _SEPARATED.sub(_joined, text)
    text = _DOTTED.sub(_undotted, text)
    text = _WITH_ZEROS.sub(lambda found: found[1].replace(",", ""), text)
    text = _COMMA_ZEROS.sub(r"\1.\2", text)
    text = _PI.sub(r"\\pi ", text)
    text = _E_NOTATION.sub(lambda found: _decimal(found[1], found[2]), text)
    text = _POWER_OF_TEN.sub(lambda found: _decimal(found[1], found[2] or found[3] or found[4]), text)
    text = _STARS.sub("^", text)
    text = _RAISED_NUMBER.sub(lambda found: "^" + _exponent(found[1] or found[2]), text)
    text = _MIXED_LATEX.sub(" ", text)
    text = _MIXED.sub(_mixed, text)
    text = _UNIT.sub(lambda found: rf"\text{{{found[1]}}}{found[2] or ''}", text)
    if last := _LAST_VARIABLE.search(text):
        term = re.split(r"[=,;<>]", _COMMAND.sub(" ", text[: last.start()]))[-1]
        if _VARIABLE.search(term):
            text = f"{text[: last.start()]}{{{last[0]}}}"
    return _AFTER_IS.sub("-", text)


def _exponent(number: str) -> str:
    return number if number.isdigit() else f"({number})"


def _joined(found: re.Match[str]) -> str:
    whole = found[1] + re.sub(r"\D", "", found[3])
    return whole if found[4] is None else f"{whole}.{found[4]}"


def _undotted(found: re.Match[str]) -> str:
    whole, decimals = (found[1], found[2]) if found[1] else (found[3], found[4])
    return whole.replace(".", "") + (f".{decimals}" if decimals else "")


def _decimal(mantissa: str, exponent: str) -> str:
    if abs(int(exponent)) > _LARGEST_EXPONENT:
        return f"{mantissa}*10^({int(exponent)})"
    return format(Decimal(f"{mantissa}e{exponent}"), "f")


_LARGEST_EXPONENT = 60


# Denominators of mixed numbers that are written as decimals before a percent sign.
_HALVED = (2, 4, 5, 8, 10)


def _mixed(found: re.Match[str]) -> str:
    whole, above, below, percent = found.groups()
    if percent and int(below) in _HALVED:
        return f"{int(whole) + int(above) / int(below)}\\%"
    return f"({whole}+{above}/{below}){percent or ''}" if int(above) < int(below) else found[0]


# What is written as mathematics, with the words that it may hold; the rest of a reference is text.
_TEXT_COMMAND = re.compile(
    r"\\(?:text|mbox|textbf|textit|mathrm|operatorname|begin|end)\s*\{[^{}]*\}(?:\s*\^\s*\{?\d\}?)?"
)
_COMMAND = re.compile(r"\\[A-Za-z]+|\\.")
_MATHEMATICAL_WORDS = re.compile(
    r"\b(?:and|or|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|sqrt|mod|max|min|pi|inf|infinity|percent|pct)\b"
)
_WORD = re.compile(r"[A-Za-z]{3,}")
_BASE = re.compile(r"_\s*(?:\{\d+\}|\d+)")
_IN_BASE, _LARGEST_BASE = re.compile(r"(\d+)_\s*\{?(\d+)\}?"), 36
_WITHOUT_PLAIN_READING = re.compile(
    r"""
    \d\s+\d                                    # 12 34
    | \d\s*(?:'|''|"|°|\^\{?\\circ\}?)\s*\d    # 5'3", 30°15'
    | \b\d{1,2}:[0-5]\d\b                      # 12:30
    | \d\s*:\s*\d+\s*:\s*\d                    # 1:2:3
    | \d-\d+-\d | \d/\d+/\d | \d\.\d+\.\d      # 2024-01-05, 1/2/3, 1.2.3
    | ^\s*\d+[-–]\d+\s*$                       # 10-15
    | \d[A-Za-z]\d | \b[A-Za-z]\d | \d\s*[A-Za-z]\s+\d     # 0x1F, B2, 5 r 2
    | \d\s*(?!and\b|or\b|mod\b)[A-Za-z]{2,}[.,]?\s*\d      # 5 ft 3 in
    | \d\s*(?:,?\s*and|&|\\text\{\s*and\s*\})\s*(?:\d+\s*/\s*\d|\\[dtc]?frac)  # 2 and 1/2
    | ^\s*\d+-\d+/\d+\s*$                      # 1-1/2
    | ^\s*\d+,\d+\s*[A-Za-z%]                # 1,5 kg
    | \d\s[A-Za-z]+\s*×\s*\d                 # 100 m × 50 m
    | \$\s?[\d.,]+\s?[kKMB]\b                # $5M
    | (?i:\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)[a-z]*\.?\s+\d)  # June 5
    | ^\s*\([A-Z]\)\s*\S                       # (A) 5
    | (?<![\d,])\d{1,2}(?:,\d{2})+,\d{3}(?!\d|,\d)  # 12,34,567
    """,
    re.VERBOSE,
)


def has_no_plain_reading(reference: str) -> bool:
    """Return whether a reference, in plain notation, may be read in more than one way, or in none that is a value."""
    bases = ((found[1], int(found[2])) for found in _IN_BASE.finditer(reference))
    return bool(_WITHOUT_PLAIN_READING.search(_BASE.sub("", reference))) or any(
        not 2 <= base <= _LARGEST_BASE or max(map(int, digits)) >= base for digits, base in bases
    )


def words_of(reference: str) -> list[str]:
    """Return the words of three letters and more outside of commands, which mathematics reads as products."""
    return _WORD.findall(_MATHEMATICAL_WORDS.sub(" ", _COMMAND.sub(" ", _TEXT_COMMAND.sub(" ", reference))))


def numbers_of(text: str) -> list[list[Decimal]]:
    """Return the numbers in a text, without signs, each with the entries that it may be instead: 1,234 may be a pair.

    The base of "1010_2" and the exponent of a unit are left out.
    """
    found = _NUMBER.findall(_BASE.sub("", _TEXT_COMMAND.sub(" ", text)))
    return [
        [Decimal(re.sub(r"[^\d.]", "", one)), *map(Decimal, one.split(",") if "\\" not in one else ())] for one in found
    ]


_NUMBER = re.compile(r"\d{1,3}(?:,(?:\\!\s?)?\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
