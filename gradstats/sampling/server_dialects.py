"""The forms of a request that servers of the completions API accept: OpenAI's fields and the servers' own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradstats.sampling.settings import SamplerSettings

# Servers have their own defaults for omitted settings (top_k: llama.cpp 40, transformers 50), so all are stated.
_STATED_ELSEWHERE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Dialect:
    """One form of a request for a completion.

    Attributes:
        name: its name in the metadata.
        takes_tokens: whether the prompt is sent as token ids; otherwise as text.
        fields: settings and stop tokens → the request's fields other than model, prompt, max_tokens and seed; fields
            that OpenAI does not define are under ``extra_body``.
    """

    name: str
    takes_tokens: bool
    fields: Callable[[SamplerSettings, list[int]], Mapping[str, object]]


def _extended(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Return the fields of vLLM and of llama.cpp, each of which ignores the other's name for the repetition penalty."""
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


def _transformers(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Give a generation config, without which ``transformers serve`` uses the model's."""
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


def _standard(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Return OpenAI's fields. Greedy decoding is temperature 0; settings without a field are refused."""
    if settings.top_k == 1:
        return {"temperature": 0.0, "logprobs": 1}
    missing = [
        f"{name}={getattr(settings, name)}"
        for name, neutral in _STATED_ELSEWHERE.items()
        if getattr(settings, name) != neutral
    ]
    if missing:
        raise ValueError(
            f"the server accepts only OpenAI's settings, which have no {', '.join(missing)}: leave them out, or "
            "serve the model with vLLM"
        )
    return {"temperature": settings.temperature, "top_p": settings.top_p, "logprobs": 1}


#: In the order in which they are tried: prompts as token ids first, all settings before a subset.
DIALECTS = (
    Dialect("extended, prompt as token ids", True, _extended),
    Dialect("extended, prompt as text", False, _extended),
    Dialect("transformers serve", False, _transformers),
    Dialect("standard, prompt as token ids", True, _standard),
    Dialect("standard, prompt as text", False, _standard),
)
