"""The chat template of a received tokenizer: rendered within limits of time and memory; the tokens that end a turn."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from gradstats.system.worker import PROCESS, IsolatedError, IsolatedTimeoutError
from gradstats.system.worker_main import MEMORY_BYTES

#: Seconds for rendering one prompt, which takes less than a hundredth of one on a machine that does nothing else.
SECONDS = 30.0
# What the library imports at the first template counts as starting the process, not as the template's time.
_STARTING_SECONDS = 120.0
_RENDER = "gradstats.system.chat_template:render"


def refuse_endless_template(
    tokenizer: Any,
    messages: Sequence[Mapping[str, object]],
    options: Mapping[str, object],
    *,
    generation_prompt: bool = True,
) -> None:
    """Render messages in the worker process before they are rendered in this one.

    A template is a program: it may loop for ever or build a text that fills the memory, and nothing could stop it in
    this process. Errors of a template that ends are left to this process.
    """
    if not hasattr(tokenizer, "get_chat_template"):  # not a tokenizer of transformers, and no template of jinja
        return
    variables = {name: str(token) for name, token in tokenizer.special_tokens_map.items()} | dict(options)
    template = tokenizer.get_chat_template(tools=options.get("tools"))
    given = [dict(message) for message in messages]
    PROCESS.call(_RENDER, "", [], {}, seconds=_STARTING_SECONDS)
    try:
        PROCESS.call(_RENDER, template, given, variables, generation_prompt, seconds=SECONDS)
    except IsolatedTimeoutError as error:
        raise ValueError(f"it does not end within {SECONDS:g} s: correct it, or use another tokenizer") from error
    except IsolatedError as error:
        if "out of memory" in str(error) or str(error).startswith("MemoryError"):
            raise ValueError(
                f"it takes more than {MEMORY_BYTES / 1024**3:g} GiB of memory: correct it, or use another tokenizer"
            ) from error


def render(
    template: str, messages: list[dict[str, object]], variables: dict[str, Any], generation_prompt: bool = True
) -> int:
    """Return the length of messages in a template; in the worker process."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: Any = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=generation_prompt, **variables
    )
    return sum(map(len, rendered[0]))


def rendered(
    tokenizer: Any,
    messages: Sequence[Mapping[str, object]],
    options: Mapping[str, object],
    *,
    generation_prompt: bool,
) -> str:
    """Return the text of messages in the tokenizer's chat template, with or without the beginning of an answer."""
    refuse_endless_template(tokenizer, messages, options, generation_prompt=generation_prompt)
    text = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=generation_prompt, tokenize=False, **options
    )
    return str(text)


def shown_content(tokenizer: Any, messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return messages whose content is text in the form that the template shows: as text, or as blocks."""
    if not _wants_blocks(tokenizer, str(tokenizer.chat_template)):
        return [dict(message) for message in messages]
    return [{**message, "content": [{"type": "text", "text": message.get("content") or ""}]} for message in messages]


@functools.lru_cache(maxsize=8)
def _wants_blocks(tokenizer: Any, template: str) -> bool:
    """Whether a template, as those of models for images, shows content as blocks only."""
    shows = []
    for content in ("xqzjprompt", [{"type": "text", "text": "xqzjprompt"}]):
        try:
            text = rendered(tokenizer, [{"role": "user", "content": content}], {}, generation_prompt=True)
        except Exception:  # a template can raise any error
            text = ""
        shows.append("xqzjprompt" in text)
    return shows == [False, True]


def end_tokens(tokenizer: Any, eos_token_ids: object = None) -> list[int]:
    """Return the tokens that end a completion; the first is the one that usually does.

    They are the tokenizer's, the model's, of which there may be several, and the one that closes an assistant's message
    in the chat template, which may be neither (``<end_of_turn>`` of Gemma, ``<|end|>`` of Phi). That one is first,
    unless the model's are known and it is not among them: a policy that was never stopped there has not ended there.

    Args:
        tokenizer: a tokenizer of transformers, or None.
        eos_token_ids: ``eos_token_id`` of the model's ``generation_config``: an id, several, or None where unknown.
    """
    own, stated = _ids(getattr(tokenizer, "eos_token_id", None)), _ids(eos_token_ids)
    template = getattr(tokenizer, "chat_template", None)
    closing, follows = _closing_tokens(tokenizer, str(template)) if template else (None, None)
    stopped = [*own, *stated]
    # A template may write nothing at the end of a turn: the policy then ends it with the token that begins the next.
    turn = [token for token in (closing, follows) if token is not None and token in stopped]
    if not turn and closing is not None and not stated:
        turn = [closing]
    return list(dict.fromkeys([*turn, *stopped, *([] if closing is None else [closing])]))


def added_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that a tokenizer reads as a whole wherever their text stands, id → text."""
    added = {int(token): str(text) for token, text in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    special = zip(
        getattr(tokenizer, "all_special_ids", ()), map(str, getattr(tokenizer, "all_special_tokens", ())), strict=True
    )
    return added | {int(token): text for token, text in special}


@functools.lru_cache(maxsize=8)
def _closing_tokens(tokenizer: Any, template: str) -> tuple[int | None, int | None]:
    """Return the added token that follows an assistant's message: as the last one, and before a user's."""
    # Plain letters, which every tokenizer decodes to themselves.
    talk = [{"role": "user", "content": "xqzjprompt"}, {"role": "assistant", "content": "xqzjanswer"}]
    found: list[int | None] = []
    for messages in (talk, [*talk, talk[0]]):
        try:
            text = rendered(tokenizer, messages, {}, generation_prompt=False)
        except Exception:  # a template can raise any error; encoding a prompt reports it
            found.append(None)
            continue
        _, answered, rest = text.rpartition("xqzjanswer")
        first = [item for item in added_tokens(tokenizer).items() if item[1] and rest.lstrip().startswith(item[1])]
        found.append(max(first, key=lambda item: len(item[1]))[0] if answered and first else None)
    return found[0], found[1]


def _ids(value: Any) -> list[int]:
    """Return token ids that are given as one, several or none."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [int(token) for token in several if token is not None]
