"""Three problems, completions of them, and greedy decoding with one forward pass per token."""

import pytest
import torch

from gradstats.prompts import Problem
from gradstats.sampling.sample import sample

PROBLEMS = [
    Problem("long", "abc def", "z", "exact"),
    Problem("short", "q", "7", "exact"),
    Problem("mid", "ab c", "x", "exact"),
]


def draw(policy, problems=PROBLEMS, **options):
    """Sample, expecting the warning that the folder's generation_config is not followed."""
    settings = {"group_size": 4, "max_new_tokens": 12, "progress": False, "reward": "exact"} | options
    with pytest.warns(UserWarning, match="it is not followed"):
        return sample(policy, problems, **settings)


def likeliest(policy, prompt, cap):
    """Greedy decoding with one forward pass per token."""
    tokens = []
    while len(tokens) < cap and (not tokens or tokens[-1] != 1):
        with torch.no_grad():
            tokens.append(int(policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].argmax()))
    return tokens
