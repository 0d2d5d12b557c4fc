"""Texts of models as a page may show them: nothing invisible, nothing endless."""

from __future__ import annotations

import unicodedata

# Line ends and tabs are shown as such.
_KEPT = "\n\t"
# Marks that turn the direction of the text after them, up to the end of the page.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROL_PICTURES = 0x2400


def visible(text: str) -> str:
    r"""Return a text with characters that cannot be seen, or that change how others are shown, written out.

    Control characters become their pictures (``␛``, ``␀``), others their code (``\u202e``). Nothing is escaped for
    HTML.

    >>> visible("a\x1b[31m\x00\u202e\n")
    'a␛[31m␀\\u202e\n'
    """
    return "".join(character if _is_shown(character) else _written_out(character) for character in text)


def shortened(text: str, most: int) -> tuple[str, int]:
    r"""Return the beginning and the end of a long text, and how many characters between them are left out.

    Two thirds are the beginning, one third is the end, where answers stand.

    Args:
        text: the text.
        most: characters that are kept.

    >>> shortened("abcdefghi", 6)
    ('abcd\n[… 3 characters left out …]\nhi', 3)
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text, 0
    end = most // 3
    return f"{text[: most - end]}\n[… {left_out} characters left out …]\n{text[len(text) - end :]}", left_out


def _is_shown(character: str) -> bool:
    if character in _KEPT:
        return True
    return character not in _TURNING and unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def _written_out(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}"
