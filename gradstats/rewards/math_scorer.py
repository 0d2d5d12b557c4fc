"""Scoring with math-verify; imported in the isolated process only, since it brings sympy and may hang."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

from math_verify import parse, verify
from math_verify.errors import TimeoutException

from gradstats.rewards.errors import ReferenceAnswerError, ScoringTimeoutError

# What math-verify is given for one parse or one comparison.
_SECONDS = 5
_WORD = re.compile(r"[A-Za-z]{2,}")


def math_score(completion: str, answer: str) -> float:
    """1 when math-verify finds the completion's final expression equal to the reference answer, else 0.

    Raises:
        ReferenceAnswerError: when math-verify cannot parse the reference answer itself.
        ScoringTimeoutError: when a parse or a comparison ran into math-verify's time limit, and nothing was equal.
    """
    timed_out = False
    for gold, found in itertools.product(_parse_reference(answer), _parse(completion)):
        try:
            if verify(gold, found, timeout_seconds=_SECONDS, raise_on_error=True):
                return 1.0
        except TimeoutException:
            timed_out = True
        except Exception:
            continue
    if timed_out:
        raise ScoringTimeoutError(f"math-verify compared for over {_SECONDS} s")
    return 0.0


def check_reference(answer: str) -> None:
    """Raise unless math-verify can read a reference answer; as :func:`math_score`."""
    _parse_reference(answer)


@functools.lru_cache(maxsize=4096)
def _parse_reference(answer: str) -> tuple[Any, ...]:
    r"""What math-verify reads in a reference answer.

    LaTeX is read as mathematics, since bare ``\left(3, \frac{\pi}{2}\right)`` would be taken for its first number;
    words without LaTeX are read as text first, since "5 apples" in mathematics is a product of letters.
    """
    bare, mathematics = answer, f"${answer}$"
    is_text = "\\" not in answer and "$" not in answer and _WORD.search(answer)
    for text in (bare, mathematics) if is_text else (mathematics, bare):
        if gold := _parse(text):
            return tuple(gold)
    raise ReferenceAnswerError(
        f"math-verify cannot parse the reference answer {answer!r}: use another reward, or mend it"
    )


def _parse(text: str) -> list[Any]:
    try:
        return parse(text, parsing_timeout=_SECONDS, raise_on_error=True)
    except TimeoutException as error:
        raise ScoringTimeoutError(f"math-verify parsed for over {_SECONDS} s") from error
    except Exception:  # what math-verify itself does by default: no expression was found
        return []
