"""Scoring with math-verify, for the isolated worker process only: it imports sympy and may hang."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, parse, verify
from math_verify.errors import TimeoutException
from sympy import Basic, Float, Integer, MatrixBase, Number, Rational, Symbol, multiplicity

from gradstats.rewards.answers import (
    boxed_answers,
    boxes,
    has_no_plain_reading,
    numbers_of,
    plain_notation,
    spoken,
    tagged_answer,
    words_of,
)
from gradstats.rewards.grading import ReferenceAnswerError, ScoringTimeoutError

_Expression = Basic | MatrixBase | str

# Time limit of math-verify for one parse or one comparison.
_SECONDS = 5


class _Reference(NamedTuple):
    """What a reference answer was read as."""

    expressions: tuple[_Expression, ...]
    misread: str | None  # what math-verify reads where that is not what is written


def math_score(completion: str, answer: str) -> float:
    """Return 1 when math-verify finds the completion's final expression equal to the reference answer, else 0.

    A reference that is not read as it is written equals only the same text. A completion that was cut while it was
    thinking, or inside its last box, has no answer.
    """
    reference = _reference(answer)
    text = spoken(completion)
    if text is not None and (tagged := tagged_answer(text)) is not None:
        text = tagged
    found = None if text is None else boxes(text)
    if text is None or found is None:
        return 0.0
    contents = boxed_answers(found, text) if found else []
    if any(_same_text(content, answer) for content in contents):
        return 1.0
    is_text = reference.misread is not None or all(map(_is_words, reference.expressions))
    if is_text and not found and _ends_with(text, answer):
        return 1.0
    written = [rf"\boxed{{{plain_notation(content)}}}" for content in contents] or [_plain_text(text)]
    timed_out = False
    for one in written:
        for gold, candidate in itertools.product(reference.expressions, _parse(one)):
            try:
                if verify(gold, candidate, timeout_seconds=_SECONDS, raise_on_error=True):
                    return 1.0
            except TimeoutException:
                timed_out = True
            except Exception:
                continue
    if timed_out:
        raise ScoringTimeoutError(f"a comparison by math-verify took over {_SECONDS} s")
    return 0.0


def check_reference(answer: str) -> str | None:
    """Return what math-verify reads a reference answer as where that is not what is written, else None.

    It raises where math-verify cannot parse the reference; errors as in :func:`math_score`.
    """
    return _reference(answer).misread


# Without these in a text, what was left out of a number is a unit or other words.
_MEANT = re.compile(
    r"[\d%^*+=<>≤≥≠±√∞π\\:]|(?<![A-Za-z])/|/(?![A-Za-z])|-\s*$|(?i:\b(?:minus|negative|pi|sqrt|dozens?|hundreds?|thousands?|"
    r"millions?|billions?|trillions?|half|halves|thirds?|quarters?|tenths?|hundredths?|thousandths?|score|bn|mn|mio)\b)"
)
# Mathematics with letters is not a number with a unit: "3xy + 1".
_ALGEBRA = re.compile(r"[A-Za-z0-9)]\s*[+^=<>*]|[=<>]")


@functools.lru_cache(maxsize=4096)
def _reference(answer: str) -> _Reference:
    r"""Parse a reference answer with math-verify.

    LaTeX is parsed as mathematics first, since bare ``\left(3, \frac{\pi}{2}\right)`` would be read as its first
    number; words without LaTeX are parsed as text first, since "5 apples" in mathematics is a product of letters.
    """
    written = plain_notation(_bare(answer))
    written = _UNION.sub(r" \\cup ", _LIMIT.sub(r"\1\\infty ", written))
    if _is_name(written):
        written = rf"\text{{{written.strip()}}}"
    is_text = "\\" not in written and "$" not in written and _WORD.search(written)
    if written.isalpha() and len(written) <= _LONGEST_PRODUCT:  # "yes" is a word, "xyz" may be a product
        return _Reference((*_parse(f"${written}$"), *_parse(rf"$\text{{{written}}}$")), None)
    ways = [_as_text, _as_mathematics] if is_text and not _ALGEBRA.search(written) else [_as_mathematics, _as_text]
    misread: list[_Expression] = []
    for way in ways:
        expressions, whole = way(written)
        if expressions and whole and not has_no_plain_reading(written):
            return _Reference(expressions, None)
        misread += expressions[:1]
    if not misread:
        raise ReferenceAnswerError(
            f"math-verify cannot parse the reference answer {answer!r}: use another reward, or correct the answer"
        )
    return _Reference((), str(min(misread, key=lambda one: isinstance(one, str))))


# The limit of an interval, in a reference without LaTeX.
_LIMIT = re.compile(r"((?:[\[(,]\s*|^\s*)[+-]?)(?i:oo|inf|infty|infinity)(?=\s*(?:[,)\]]|$))")
_UNION = re.compile(r"(?<=[)\]])\s*(?:U|u|or)\s*(?=[(\[])")


_LONGEST_PRODUCT = 3


def _bare(answer: str) -> str:
    """Return a reference without a box, bold type or a full stop around it."""
    text = answer.strip()
    found = boxes(text)
    if found and len(found) == 1 and found[0].start == 0 and found[0].end == len(text):
        text = found[0].content
    return re.sub(r"^\*\*(.*)\*\*$", r"\1", re.sub(r"^[~≈]\s*(?=\d)", "", text))


def _is_name(text: str) -> bool:
    """Return whether a text is words alone; a few letters may be a product."""
    longest = max(map(len, re.split(r"[' -]+", text)))
    return bool(re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text.strip())) and longest > _LONGEST_PRODUCT


def _as_text(written: str) -> tuple[tuple[_Expression, ...], bool]:
    """Return what a text is read as, and whether what is left of it means nothing: a unit, or other words."""
    expressions = _parse(written)
    if not expressions:
        return (), False
    extracted, text = str(expressions[-1]), written.replace(",", "")
    before, _, after = text.partition(extracted.replace(",", "").strip())
    if not isinstance(expressions[0], str) and expressions[0].has(Rational(1, 100)):
        after = after.replace("%", "")
    whole = _same_text(extracted, written) or (extracted in text and not _MEANT.search(f"{before} {after}"))
    return tuple(expressions), whole and _is_read(extracted, expressions[0])


def _as_mathematics(written: str) -> tuple[tuple[_Expression, ...], bool]:
    """Return what a text is read as in dollars, and whether each of its numbers and letters was."""
    expressions = _parse(f"${written}$", [LatexExtractionConfig()])
    if not expressions:
        return (), False
    return tuple(expressions), not words_of(written) and _is_read(written, expressions[0])


def _is_read(written: str, expression: _Expression) -> bool:
    """Return whether an expression holds every number of a text; a fraction may have been reduced."""
    if isinstance(expression, str):
        return not numbers_of(written)
    if isinstance(expression, Rational) and not isinstance(expression, Integer):
        return True
    atoms = [part for atom in expression.atoms(Number) for part in _parts(atom)]

    def was_read(number: Decimal) -> bool:
        return any(abs(part - number) <= abs(number) * Decimal("1e-12") for part in atoms)

    return all(was_read(whole) or (bool(parts) and all(map(was_read, parts))) for whole, *parts in numbers_of(written))


def _parts(number: Number) -> list[Decimal]:
    if isinstance(number, Float):
        return [abs(Decimal(str(number)))]
    return [abs(Decimal(int(number.p))), Decimal(int(number.q))] if isinstance(number, Rational) else []


def _is_words(expression: _Expression) -> bool:
    return isinstance(expression, str | Symbol)


_WORD = re.compile(r"[A-Za-z]{2,}")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm)\s*\{([^{}]*)\}")
_MARKUP = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:! $]|[$\s]|\*\*|\.$")


def _same_text(one: str, other: str) -> bool:
    """Return whether two answers are written alike, but for white space, markup, and the case of words."""
    one, other = (_MARKUP.sub("", _TEXT.sub(r"\1", plain_notation(text.strip()))) for text in (one, other))
    return one == other or (bool(_WORD.search(one)) and one.casefold() == other.casefold())


# Characters of a last line that are looked at before the answer.
_MOST_BEFORE = 200


def _ends_with(text: str, answer: str) -> bool:
    """Return whether a text is the answer, or says at its end that this is it."""
    line = text.strip().rpartition("\n")[2][-len(answer) - _MOST_BEFORE :]
    said = re.search(r"(?i:\b(?:is|are|answer:)|=)\s+(?!.*(?i:\b(?:is|are|answer:)|=)\s)(.+)$", line)
    return any(_same_text(one.strip(" *.!"), answer) for one in (text.strip(), line, said[1] if said else ""))


_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_DOLLARS = re.compile(r"(\$\$.{1,2000}?\$\$|(?<!\\)\$[^$\n]+\$|\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\])", re.DOTALL)
# A time of day is no number. math-verify reads mixed numbers and powers before a full stop, and pairs, in dollars only.
_TIME = re.compile(r"(?<![\w.,:$\\])(\d{1,2}:[0-5]\d)(?![\w:])")
_VALUE = re.compile(
    r"(?<![\w.,/^\\)$])(-?\(\d+\+\d+/\d+\)|-?\d+(?:\.\d+)?\^(?:\d+|\(-?\d+\))(?![\w^]|\s?[-+*/^(]|\.\d)"
    r"|[\[(]\s*[-+]?(?:\\infty|[\d./]+)\s*,\s*[-+]?(?:\\infty|[\d./]+)\s*[)\]](?=[\s.!*]*$))"
)


def _plain_text(text: str) -> str:
    """Return a completion without a box in plain notation, with values in dollars that math-verify reads only there."""
    pieces = _DOLLARS.split(plain_notation(_BOLD.sub(r"\1", text)))
    pieces[::2] = [_VALUE.sub(r"$\1$", _TIME.sub(r"$\\text{\1}$", piece)) for piece in pieces[::2]]
    return "".join(pieces)


_ANY = (LatexExtractionConfig(), ExprExtractionConfig())


def _parse(text: str, kinds: Sequence[LatexExtractionConfig | ExprExtractionConfig] = _ANY) -> list[_Expression]:
    try:
        return parse(text, extraction_config=kinds, parsing_timeout=_SECONDS, raise_on_error=True)
    except TimeoutException as error:
        raise ScoringTimeoutError(f"a parse by math-verify took over {_SECONDS} s") from error
    except Exception:  # what math-verify itself does by default: no expression was found
        return []


# A decimal number that was rounded here or further equals the number that it rounds, as 0.333333 equals 1/3.
_LEAST_DECIMALS = 6
_equal_when_rounded = grader.sympy_numeric_eq


def _numerically_equal(gold: Basic, candidate: Basic, float_rounding: int, numeric_precision: int) -> bool:
    """Return math-verify's judgement of numbers, unless they differ by more than rounding explains.

    It rounds to six decimals and drops differences below 1e-15, so that 1e-7 and 2e-7 would be equal.
    """
    return _equal_when_rounded(gold, candidate, float_rounding, numeric_precision) and not _differ(gold, candidate)


# Sets, intervals, matrices and equations are compared with this function of math-verify as well.
grader.sympy_numeric_eq = _numerically_equal


def _differ(gold: Basic, candidate: Basic) -> bool:
    """Return whether two numbers, one of which may be a rounded form of the other, are different."""
    if not (gold.is_number and candidate.is_number):
        return False
    percent = [grader.get_pct_val(one) for one in (gold, candidate)]
    if any(one is not None for one in percent) and not any(one.has(Float) for one in (gold, candidate)):
        return False  # "9%" is accepted for 9
    try:
        evaluated: list[Any] = [grader.safe_sympy_doit(each) for each in (gold, candidate)]
        one, other = evaluated
        apart = abs((one - other).evalf(30))
        size = max(abs(one.evalf(30)), abs(other.evalf(30)))
        if apart <= size * Float("1e-12"):
            return False
        if not (one.has(Float) or other.has(Float)):
            return True
        decimals = [_decimals(each) for each in (one, other)]
        coarser = min((each for each in decimals if each is not None), default=None)
        if coarser is None or (None not in decimals and coarser < _LEAST_DECIMALS):
            return True
        return bool(apart > size * Float("1e-3") or apart > Float(f"5.000001e-{max(coarser, _LEAST_DECIMALS) + 1}"))
    except (TypeError, ValueError, AttributeError, NotImplementedError):  # complex or infinite: math-verify decides
        return False


def _decimals(number: Basic) -> int | None:
    """Return how many decimals a number is written with; None where it has no end, as 1/3."""
    if isinstance(number, Float):
        return max(0, -int(Decimal(repr(float(number))).normalize().as_tuple().exponent))
    if isinstance(number, Rational):
        twos, fives = (multiplicity(prime, number.q) or 0 for prime in (2, 5))
        return max(twos, fives) if 2**twos * 5**fives == number.q else None
    return None
