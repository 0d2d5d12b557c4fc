"""Scoring with math-verify, for the isolated worker process only: it imports sympy and may hang."""

from __future__ import annotations

import functools
import itertools
import re

from math_verify import parse, verify
from math_verify.errors import TimeoutException
from sympy import Basic, MatrixBase

from gradstats.rewards.grading import ReferenceAnswerError, ScoringTimeoutError

Expression = Basic | MatrixBase | str

# Time limit of math-verify for one parse or one comparison.
_SECONDS = 5
_WORD = re.compile(r"[A-Za-z]{2,}")


def math_score(completion: str, answer: str) -> float:
    """Return 1 when math-verify finds the completion's final expression equal to the reference answer, else 0."""
    timed_out = False
    for gold, candidate in itertools.product(_parse_reference(answer), _parse(completion)):
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


def check_reference(answer: str) -> None:
    """Raise unless math-verify can parse a reference answer; errors as in :func:`math_score`."""
    _parse_reference(answer)


@functools.lru_cache(maxsize=4096)
def _parse_reference(answer: str) -> tuple[Expression, ...]:
    r"""Parse a reference answer with math-verify.

    LaTeX is parsed as mathematics first, since bare ``\left(3, \frac{\pi}{2}\right)`` would be read as its first
    number; words without LaTeX are parsed as text first, since "5 apples" in mathematics is a product of letters.
    """
    bare, mathematics = answer, f"${answer}$"
    is_text = "\\" not in answer and "$" not in answer and _WORD.search(answer)
    for text in (bare, mathematics) if is_text else (mathematics, bare):
        if gold := _parse(text):
            return tuple(gold)
    raise ReferenceAnswerError(
        f"math-verify cannot parse the reference answer {answer!r}: use another reward, or correct the answer"
    )


def _parse(text: str) -> list[Expression]:
    try:
        return parse(text, parsing_timeout=_SECONDS, raise_on_error=True)
    except TimeoutException as error:
        raise ScoringTimeoutError(f"a parse by math-verify took over {_SECONDS} s") from error
    except Exception:  # what math-verify itself does by default: no expression was found
        return []
