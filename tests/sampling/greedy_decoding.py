"""Greedy decoding with one forward pass per token."""

import torch


def likeliest(policy, prompt, cap):
    """Greedy decoding with one forward pass per token."""
    tokens = []
    while len(tokens) < cap and (not tokens or tokens[-1] != 1):
        with torch.no_grad():
            tokens.append(int(policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].argmax()))
    return tokens
