"""The standard problems of the embedded policy: running totals of signed terms, generated from a seed.

A problem lists labelled terms and asks for the total under the next label: ``a17 b+8 c-5 d?`` has the answer
20. Every running total stays between 0 and 99, so that difficulty is the number of terms and nothing else.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

MAX_TERMS = 24
LABELS = "abcdefghijklmnopqrstuvwxyz"
_LARGEST_TERM = 9
_LARGEST_TOTAL = 99
_ANSWER = re.compile(r"answer (-?\d+)\.")
_MAX_REDRAWS = 1000

Split = Literal["test", "train"]


@dataclass(frozen=True)
class EmbeddedProblem:
    """One running-total problem with its verifiable answer.

    Attributes:
        prompt_id: A digest of the problem's text: the same problem has the same id in every call.
        prompt: The text of the user's message.
        answer: The total, in decimal digits.
        difficulty: The number of terms.
    """

    prompt_id: str
    prompt: str
    answer: str
    difficulty: int


def generate_problems(
    n: int,
    *,
    rng: int | np.random.Generator | None = 0,
    split: Split = "test",
    terms: int | tuple[int, int] | None = None,
) -> list[EmbeddedProblem]:
    """Generate distinct problems with their answers.

    The two splits are disjoint by construction: a digest of the problem's text decides to which one it
    belongs (one problem in eight is held out), and a draw that falls into the other split is drawn again.

    Args:
        n: The number of problems.
        rng: Seed or generator; the same seed gives the same problems.
        split: ``"test"`` for held-out problems, ``"train"`` for those the embedded policy was trained on.
        terms: The number of terms: one number, an inclusive range ``(low, high)`` drawn uniformly, or
            ``None`` for the standard mix (2 to 24 terms, short problems more often).

    Returns:
        ``n`` distinct problems.

    Raises:
        ValueError: If ``n`` is not positive, ``split`` is unknown, ``terms`` is outside 2 to 24, or there
            are fewer than ``n`` distinct problems of that kind to be found.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}: ask for one problem or more.")
    if split not in ("test", "train"):
        raise ValueError(f"split must be 'test' or 'train', got {split!r}.")
    sizes = _term_range(terms)
    generator = np.random.default_rng(rng)
    problems: dict[str, EmbeddedProblem] = {}
    redraws = 0
    while len(problems) < n:
        problem = _draw_problem(generator, sizes)
        if problem.prompt in problems or split_of(problem.prompt) != split:
            redraws += 1
            if redraws > _MAX_REDRAWS:
                raise ValueError(
                    f"Only {len(problems)} distinct {split} problems were found for n={n}, terms={terms}: "
                    "ask for fewer problems or for more terms."
                )
            continue
        redraws = 0
        problems[problem.prompt] = problem
    return list(problems.values())


def extract_answer(text: str) -> str | None:
    """Return the final answer of a completion, or ``None`` if it gives none.

    An answer is written ``answer 20.``; the full stop belongs to it, so that a number cut off at the length
    cap is not taken for an answer. Of several answers the last one counts. Leading zeros are dropped.
    """
    answers = _ANSWER.findall(text)
    return str(int(answers[-1])) if answers else None


def split_of(prompt: str) -> Split:
    """Return the split a problem belongs to, decided by a digest of its text."""
    return "test" if hashlib.sha256(prompt.encode()).digest()[-1] % 8 == 0 else "train"


def parse_problem(prompt: str) -> list[int]:
    """Return the signed terms of a problem, the starting value first.

    Raises:
        ValueError: If the text is not a problem of this kind.
    """
    words = prompt.split(" ")
    labels = "".join(word[:1] for word in words)
    if labels != LABELS[: len(words)] or not re.fullmatch(r"\w\d+( \w[+-]\d+)* \w\?", prompt):
        raise ValueError(f"prompt must look like 'a17 b+8 c-5 d?', got {prompt!r}.")
    return [int(word[1:]) for word in words[:-1]]


def _term_range(terms: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if terms is None:
        return None
    low, high = (terms, terms) if isinstance(terms, int) else terms
    if not 2 <= low <= high <= MAX_TERMS:
        raise ValueError(f"terms must lie between 2 and {MAX_TERMS}, low end first, got {terms}.")
    return low, high


def _draw_problem(generator: np.random.Generator, sizes: tuple[int, int] | None) -> EmbeddedProblem:
    if sizes is None:  # one minus a uniform draw's root: the density falls linearly with the number of terms
        size = 2 + int((MAX_TERMS - 1) * (1 - np.sqrt(generator.random())))
    else:
        size = int(generator.integers(sizes[0], sizes[1] + 1))
    total = int(generator.integers(1, _LARGEST_TOTAL + 1))
    words = [f"a{total}"]
    for label in LABELS[1:size]:
        term = int(generator.integers(1, _LARGEST_TERM + 1))
        if generator.random() < 0.5:
            term = -term
        if not 0 <= total + term <= _LARGEST_TOTAL:
            term = -term
        total += term
        words.append(f"{label}{term:+d}")
    prompt = " ".join([*words, f"{LABELS[size]}?"])
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return EmbeddedProblem(f"embedded-{digest[:16]}", prompt, str(total), size)
