"""Tokenizers with chat templates that know tools and reasoning: a token for each byte, and special ones."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|call|>", "<|eos|>")

#: As Qwen's: tools answer as a user, reasoning is shown, and ``<|im_end|>`` closes every turn.
CHATML = r"""{% for m in messages %}{% if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
{%- if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}
{{- '<tool_call>' + f.name + ' ' }}
{{- f.arguments if f.arguments is string else f.arguments | tojson }}{{ '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

#: As early templates: tools, calls and reasoning are unknown to it.
PLAIN = r"""{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

#: As PLAIN, for content in blocks alone.
BLOCKS = PLAIN.replace("m.content", "m.content[0].text")


def chat_tokenizer(
    template: str | None = CHATML, eos: str | None = "<|im_end|>", merges: Sequence[tuple[str, str]] = ()
) -> Any:
    """A tokenizer of bytes, with merges of two letters where some are given."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate([*letters, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(words, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token=eos)
    whole.chat_template = template
    return whole
