"""Which tokens end a completion."""

from __future__ import annotations

from gradstats.policy.policy import Policy


def stop_token_ids(policy: Policy) -> list[int]:
    """The tokens that end a completion: the tokenizer's end-of-sequence and those the model's config names."""
    found = set()
    config = policy.model.generation_config
    for source in (getattr(policy.tokenizer, "eos_token_id", None), getattr(config, "eos_token_id", None)):
        found |= set(source) if isinstance(source, (list, tuple)) else {source}
    return sorted(found - {None})
