"""Extract the final answer of a completion, for scorers that give less credit to an answer inside a longer text."""

from __future__ import annotations

from gradstats.prompts.columns import last_number

_OPEN, _CLOSE = "<answer>", "</answer>"


def final_answer(completion: str) -> str:
    r"""Find the answer: in the last ``<answer>`` tags, else the last ``\boxed{}``, else the last number.

    A completion without any of these is itself the answer, stripped.
    """
    for answer in (_last_tagged(completion), _last_boxed(completion), last_number(completion)):
        if answer is not None:
            return answer
    return completion.strip()


def _last_tagged(text: str) -> str | None:
    """Return the text between the last pair of tags, in one pass, since a completion may hold megabytes of tags."""
    answer, place = None, 0
    while (start := text.find(_OPEN, place)) >= 0 and (end := text.find(_CLOSE, start)) >= 0:
        answer, place = text[start + len(_OPEN) : end].strip(), end + len(_CLOSE)
    return answer


def _last_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{}``, inner braces included; None where none is closed."""
    _, marker, inside = text.rpartition("\\boxed{")
    depth = 1
    for position, character in enumerate(inside if marker else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return inside[:position].strip()
    return None
