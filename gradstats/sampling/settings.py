"""The sampler's parameters, all explicit, and what a model's generation settings would have changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gradstats.config.sections import SamplingSection


@dataclass(frozen=True)
class SamplerSettings:
    """How completions are drawn. The defaults draw from the policy's own distribution, untruncated.

    Attributes:
        max_new_tokens: cap on the tokens of a completion.
        temperature: logits are divided by it before the softmax.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep this many most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the most likely one; 0 keeps all.
        repetition_penalty: divide the logits of tokens already seen by this; 1 leaves them.

    Raises:
        ValueError: for a value out of its range, naming it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        SamplingSection(**asdict(self))  # the ranges are declared there

    @classmethod
    def of(cls, section: SamplingSection, policy_temperature: float) -> SamplerSettings:
        """Return the settings of a section; one that states no temperature draws at the policy's."""
        named: dict[str, Any] = {field.name: getattr(section, field.name) for field in fields(cls)}
        if section.temperature is None:
            named["temperature"] = policy_temperature
        return cls(**named)

    def greedy(self) -> SamplerSettings:
        """Return the settings that always take the likeliest token: only one token is kept."""
        return replace(self, temperature=1.0, top_p=1.0, top_k=1, min_p=0.0, repetition_penalty=1.0)

    def departures(self, policy_temperature: float) -> list[str]:
        """Return the settings that make samples off-policy for a score at ``policy_temperature``, as ``name=value``."""
        neutral = {
            "temperature": policy_temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        return [f"{name}={getattr(self, name)}" for name, value in neutral.items() if getattr(self, name) != value]

    def overridden(self, generation_config: Any) -> dict[str, object]:
        """Return what the model's ``generation_config`` would have changed, had it been used.

        Args:
            generation_config: the model's ``transformers.GenerationConfig``, or None.

        Returns:
            Each generation setting of the model that differs from what is used here, with the model's value.
        """
        if generation_config is None:
            return {}
        used = asdict(self) | {"do_sample": True}
        config = {key: value for key, value in generation_config.to_diff_dict().items() if key not in _NOT_SAMPLING}
        return {key: value for key, value in config.items() if value is not None and used.get(key) != value}


# Entries of a generation config that do not change the distribution that is sampled.
_NOT_SAMPLING = frozenset(
    {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "transformers_version",
        "_from_model_config",
        "use_cache",
        "cache_implementation",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
        "max_length",
        "max_new_tokens",
        "do_sample",
    }
)
