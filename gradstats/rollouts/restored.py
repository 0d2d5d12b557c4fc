"""From the text of a completion back to token ids."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """From text to token ids and back."""

    def __call__(self, text: str, *, add_special_tokens: bool = True, **options: bool) -> Mapping[str, Sequence[int]]:
        """Return a mapping with the token ids under ``input_ids``."""
        ...

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of some tokens."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that may have a chat template."""

    chat_template: object

    def apply_chat_template(self, conversation: Sequence[Mapping[str, object]], **options: object) -> Sequence[int]:
        """Return the token ids of messages in the chat template."""
        ...


@dataclass(frozen=True)
class RestoredTokens:
    """Token ids found for a text."""

    tokens: list[int]  # the ids; empty for an empty text
    # "pieces" where the text of each token was given and decides its id; "text" where the whole text was re-tokenised,
    # decodes to the text, and has the stated number and texts of tokens; else "mismatch"
    source: str


def restore_tokens(
    tokenizer: Tokenizer,
    text: str,
    *,
    pieces: Sequence[str] | None = None,
    counts: Sequence[int] | None = None,
    spelled: bool = False,
) -> RestoredTokens:
    """Return the token ids of a completion of which only the text is known.

    A text has many tokenisations and a sampler may have drawn any of them, while a tokenizer gives one, which is
    usually the one that was drawn. Where it decodes to another text, or has another number of tokens than were drawn,
    it certainly is not, and the source says so. ``spelled``: the text of a special token in it was written letter by
    letter, as where the text was decoded without special tokens.
    """
    options = {"split_special_tokens": True} if spelled else {}
    tokens = [int(token) for token in tokenizer(text, add_special_tokens=False, **options)["input_ids"]]
    if pieces is not None and (drawn := _from_pieces(tokenizer, pieces)) is not None:
        return RestoredTokens(drawn, "pieces")
    same = tokenizer.decode(tokens) == text and (counts is None or len(tokens) in counts)
    same = same and (pieces is None or _are_pieces(tokenizer, tokens, pieces))
    return RestoredTokens(tokens, "text" if same else "mismatch")


def is_text_of(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> bool:
    """Whether tokens decode to a text, with or without special tokens and a last token that ended the completion.

    White space and letters that are cut off inside are not compared: servers decode token by token. An empty text is
    that of any tokens: some servers do not decode.
    """
    given = _compared(text)
    possible = [(list(some), skip) for some in (tokens, tokens[:-1]) for skip in (True, False)]
    candidates = (tokenizer.decode(some, skip_special_tokens=skip) for some, skip in possible)
    return not given or any(_compared(candidate) == given for candidate in candidates)


def _compared(text: str) -> str:
    return "".join(text.split()).replace("\ufffd", "")


def _from_pieces(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int] | None:
    """Return the ids whose texts are ``pieces``; None where one is the text of several, such as a part of a letter."""
    known = [_ids_by_text(tokenizer).get(piece, ()) for piece in pieces]
    return [ids[0] for ids in known] if all(len(ids) == 1 for ids in known) else None


def _are_pieces(tokenizer: Tokenizer, tokens: Sequence[int], pieces: Sequence[str]) -> bool:
    """Whether tokens may have the texts ``pieces``, to which that of a token that ended the completion may be added."""
    known = _ids_by_text(tokenizer)
    if len(pieces) < len(tokens) or any(piece and len(known.get(piece, ())) != 1 for piece in pieces[len(tokens) :]):
        return False
    return all(is_text_of(tokenizer, [token], piece) for token, piece in zip(tokens, pieces, strict=False))


@functools.lru_cache(maxsize=4)
def _ids_by_text(tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
    ids: defaultdict[str, list[int]] = defaultdict(list)
    for token in range(len(tokenizer)):
        ids[tokenizer.decode([token])].append(token)
    return {text: tuple(tokens) for text, tokens in ids.items()}
