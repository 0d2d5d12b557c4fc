"""The tokens that end a completion."""

from __future__ import annotations

from gradstats.policy.policy import Policy


def stop_token_ids(policy: Policy) -> list[int]:
    """Return the tokens that end a completion: the tokenizer's and those in the model's config."""
    tokens = set()
    config = policy.model.generation_config
    for source in (getattr(policy.tokenizer, "eos_token_id", None), getattr(config, "eos_token_id", None)):
        tokens |= set(source) if isinstance(source, (list, tuple)) else {source}
    return sorted(tokens - {None})
