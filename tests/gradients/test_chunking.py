"""Chunks of sequences of similar length within a budget."""

from __future__ import annotations

import numpy as np
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.objective import plan_chunks
from gradstats.policy.policy import Policy


def test_chunks_hold_like_lengths_within_the_budget():
    rollouts = ragged_rollouts(40, longest=50)
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    selection = gradients.select_parameters(policy.model)
    chunks = plan_chunks(rollouts, policy, selection, token_budget=120)
    times = [
        len(p) + len(c)
        for p, c in zip(rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), strict=True)
    ]
    assert sorted(row for chunk in chunks for row in chunk) == list(range(40))
    assert all(len(chunk) * max(times[row] for row in chunk) <= 120 for chunk in chunks)
    ordered = [times[row] for chunk in chunks for row in chunk]
    assert ordered == sorted(ordered)
    padding = [
        1 - sum(times[row] for row in chunk) / (len(chunk) * max(times[row] for row in chunk)) for chunk in chunks
    ]
    assert max(padding) <= 0.1
    assert len(chunks) < 20
    one_gradient = 2 * 4 * selection.n_parameters / 1024**3
    by_memory = plan_chunks(rollouts, policy, selection, memory_gib=3.5 * one_gradient)
    assert max(len(chunk) for chunk in by_memory) == 3
    weighted = plan_chunks(rollouts, policy, selection, memory_gib=6.5 * one_gradient, gradients_held=3)
    assert max(len(chunk) for chunk in weighted) == 2
    ghost = plan_chunks(rollouts, policy, selection, memory_gib=3.5 * one_gradient, gradients_held=0)
    assert max(len(chunk) for chunk in ghost) > 3
    some = plan_chunks(rollouts, policy, selection, rows=np.array([3, 17, 5]))
    assert sorted(row for chunk in some for row in chunk) == [3, 5, 17]
