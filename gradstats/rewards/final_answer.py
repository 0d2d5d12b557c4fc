"""The final answer in a completion, for scorers that would mark down the text around it."""

from __future__ import annotations

import re

from gradstats.prompts.columns import last_number

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def final_answer(completion: str) -> str:
    r"""The answer in a completion: in its last ``<answer>`` tags, else its last ``\boxed{}``, else its last number.

    A completion that has none of these is the answer itself, stripped.
    """
    tagged = _TAGGED.findall(completion)
    for found in (tagged[-1].strip() if tagged else None, _last_boxed(completion), last_number(completion)):
        if found is not None:
            return found
    return completion.strip()


def _last_boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{}``, braces inside it included; None where it is not closed."""
    _, marker, inside = text.rpartition("\\boxed{")
    depth = 1
    for position, character in enumerate(inside if marker else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return inside[:position].strip()
    return None
