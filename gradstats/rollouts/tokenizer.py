"""The tokenizer interface that readers of text need; tokenizers of transformers have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """From text to token ids and back."""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Mapping[str, Sequence[int]]:
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
