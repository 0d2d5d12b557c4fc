"""Rendering of chat templates, for the isolated worker process only."""

from __future__ import annotations

from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

# What the library imports at the first template counts as starting the process, not as the template's time.
render_jinja_template([[{"role": "user", "content": ""}]], chat_template="{{ messages[0]['content'] }}")


def render(template: str, messages: list[dict[str, object]], variables: dict[str, Any]) -> int:
    """Return the length of messages in a template."""
    rendered: Any = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **variables)
    return sum(map(len, rendered[0]))
