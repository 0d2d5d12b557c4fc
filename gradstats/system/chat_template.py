"""A limit on the time and memory that the chat template of a received tokenizer takes."""

from __future__ import annotations

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
    tokenizer: Any, messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
) -> None:
    """Render messages in the worker process before they are rendered in this one.

    A template is a program: it may loop for ever or build a text that fills the memory, and nothing could stop it in
    this process. Errors of a template that ends are left to this process.
    """
    if not hasattr(tokenizer, "get_chat_template"):  # not a tokenizer of transformers, and no template of jinja
        return
    variables = {name: str(token) for name, token in tokenizer.special_tokens_map.items()} | dict(options)
    template, given = tokenizer.get_chat_template(), [dict(message) for message in messages]
    PROCESS.call(_RENDER, "", [], {}, seconds=_STARTING_SECONDS)
    try:
        PROCESS.call(_RENDER, template, given, variables, seconds=SECONDS)
    except IsolatedTimeoutError as error:
        raise ValueError(f"it does not end within {SECONDS:g} s: correct it, or use another tokenizer") from error
    except IsolatedError as error:
        if "out of memory" in str(error) or str(error).startswith("MemoryError"):
            raise ValueError(
                f"it takes more than {MEMORY_BYTES / 1024**3:g} GiB of memory: correct it, or use another tokenizer"
            ) from error


def render(template: str, messages: list[dict[str, object]], variables: dict[str, Any]) -> int:
    """Return the length of messages in a template; in the worker process."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: Any = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **variables)
    return sum(map(len, rendered[0]))
