"""Tiny models whose rotary factors depend on the length, and rollouts on either side of where they change."""

import numpy as np
import torch
from architectures import SMALL
from conftest import ragged_rollouts
from gradient_models import randomised
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Phi3Config

LIMIT = 12
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": LIMIT,
    "rope_theta": 100.0,
}


def rotary_model(kind: str) -> torch.nn.Module:
    """A random model of two layers whose rotary factors change beyond ``LIMIT`` tokens."""
    common = {name: size for name, size in SMALL.items() if name != "max_position_embeddings"}
    if kind == "dynamic":
        config = LlamaConfig(**common, max_position_embeddings=LIMIT, rope_parameters=DYNAMIC)
    elif kind == "longrope":
        positions = {"max_position_embeddings": 4 * LIMIT, "original_max_position_embeddings": LIMIT}
        config = Phi3Config(**common, **positions, rope_parameters=dict(LONG))
    else:
        layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "head_dim": 8}
        rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": DYNAMIC}
        config = Gemma3TextConfig(**common, **layers, max_position_embeddings=LIMIT, rope_parameters=rope)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(AutoModelForCausalLM.from_config(config))


def lengths_around_the_limit():
    """Rollouts of 5 to 20 tokens, the longest first, in pairs of similar length on either side of the limit."""
    rollouts = ragged_rollouts(8, seed=2)
    assert len({time > LIMIT for time in rollouts.times}) == 2
    return rollouts.select(np.argsort(-rollouts.times))
