"""Which figure shows what a sentence of the report says."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypedDict

#: Figure → what a link to it is called.
FIGURE_WORDS: dict[str, str] = {
    "length_scaling": "figure: norms against length",
    "alpha_by_block": "figure: α by block",
    "alpha_energy": "figure: norms and token energies",
    "variance": "figure: variance",
    "variance_bias": "figure: variance, cosine and bias",
    "length_bins": "figure: noise by length",
    "success_shares": "figure: gradient by success rate",
    "length_shares": "figure: gradient by length",
    "length_reward": "figure: length and reward",
    "ratios": "figure: importance ratios",
    "group_sizes": "figure: group sizes",
    "allocation": "figure: noise by completions per prompt",
    "token_correlation": "figure: correlation of tokens",
}

# What a sentence mentions, as a regular expression → the figure that shows it. The first that was drawn is linked.
_TOPICS: tuple[tuple[str, str], ...] = (
    ("token energ", "alpha_energy"),
    ("block", "alpha_by_block"),
    ("χ²", "ratios"),
    ("importance", "ratios"),
    ("on-policy", "token_correlation"),
    ("between prompts", "length_scaling"),
    ("α = ", "length_scaling"),
    ("moves α", "length_scaling"),
    ("power law", "length_scaling"),
    ("cut off", "length_scaling"),
    ("cosine", "variance_bias"),
    ("bias_share", "variance_bias"),
    (r"\b(matched_)?ratio\b", "variance"),
)


class LinkedSentence(TypedDict):
    """A sentence and the figures that show what it says."""

    text: str
    figures: list[str]


def linked(sentences: Iterable[str], drawn: Collection[str]) -> list[LinkedSentence]:
    """Return sentences with the figure that shows what each says; with none where no figure does.

    Args:
        sentences: of the verdict on α, or the notes of a comparison.
        drawn: names of the figures that are on the page.

    >>> linked(["α is 0.5 within prompts and 0.6 between prompts"], ["length_scaling"])[0]["figures"]
    ['length_scaling']
    """
    return [{"text": sentence, "figures": _figures(sentence, drawn)} for sentence in sentences]


def of_section(names: Iterable[str], drawn: Collection[str]) -> list[str]:
    """Return those figures of a section that are on the page."""
    return [name for name in names if name in drawn]


def _figures(sentence: str, drawn: Collection[str]) -> list[str]:
    return [figure for topic, figure in _TOPICS if re.search(topic, sentence) and figure in drawn][:1]
