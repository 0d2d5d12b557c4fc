"""How servers of the completions API want a request written: what OpenAI defined, and what each has added."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradstats.sampling.settings import SamplerSettings

# Servers have defaults of their own for what is left out (llama.cpp keeps 40 tokens, transformers 50): all is stated.
_STATED_ELSEWHERE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Dialect:
    """One way to ask for a completion.

    Attributes:
        name: as recorded.
        takes_tokens: whether the prompt goes as token ids; otherwise as text.
        fields: from settings and stop tokens to the request's fields beside model, prompt, max_tokens and seed; those
            that are not OpenAI's are under ``extra_body``.
    """

    name: str
    takes_tokens: bool
    fields: Callable[[SamplerSettings, list[int]], Mapping[str, Any]]


def _extended(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, Any]:
    """Fields of vLLM and of llama.cpp, each of which ignores the other's name for the repetition penalty."""
    return {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "logprobs": 1,
        "extra_body": {
            "top_k": settings.top_k,
            "min_p": settings.min_p,
            "repetition_penalty": settings.repetition_penalty,
            "repeat_penalty": settings.repetition_penalty,
            "return_token_ids": True,
        },
    }


def _transformers(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, Any]:
    """``transformers serve`` takes a whole generation config, and follows the model's own where it is given none."""
    generation = {
        "do_sample": True,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": settings.min_p or None,
        "repetition_penalty": settings.repetition_penalty,
        "max_new_tokens": settings.max_new_tokens,
        "eos_token_id": stop_tokens or None,
        "pad_token_id": stop_tokens[0] if stop_tokens else None,
    }
    return {"extra_body": {"generation_config": json.dumps(generation)}}


def _standard(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, Any]:
    """OpenAI's own fields. Greedy decoding is temperature 0; other settings that have no field are refused."""
    if settings.top_k == 1:
        return {"temperature": 0.0, "logprobs": 1}
    unsaid = [
        f"{name}={getattr(settings, name)}"
        for name, neutral in _STATED_ELSEWHERE.items()
        if getattr(settings, name) != neutral
    ]
    if unsaid:
        raise ValueError(
            f"the server takes OpenAI's own settings alone, which have no {', '.join(unsaid)}: leave them out, or "
            "serve the model with vLLM"
        )
    return {"temperature": settings.temperature, "top_p": settings.top_p, "logprobs": 1}


#: In the order in which they are tried: prompts as token ids first, all settings before some.
DIALECTS = (
    Dialect("extended, prompt as token ids", True, _extended),
    Dialect("extended, prompt as text", False, _extended),
    Dialect("transformers serve", False, _transformers),
    Dialect("standard, prompt as token ids", True, _standard),
    Dialect("standard, prompt as text", False, _standard),
)
