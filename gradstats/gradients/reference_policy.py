"""Log-probabilities of the same tokens under a second policy, as a KL term needs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gradstats.gradients.objective import Chunk, Objective
from gradstats.policy.policy import Policy, as_policy


def as_reference(reference: Policy | Any, policy: Policy) -> Policy:
    """The reference as a policy; a bare model is scored at the measured policy's temperature.

    Raises:
        TypeError: when it is neither a policy nor a model.
        ValueError: when its vocabulary is of another size.
    """
    found = as_policy(reference)
    if found is not reference:
        found = replace(found, temperature=policy.temperature)
    ours, theirs = (part.model.get_output_embeddings().weight.shape[0] for part in (policy, found))
    if ours != theirs:
        raise ValueError(
            f"reference_policy {found.name} has a vocabulary of {theirs}, but {policy.name} one of {ours}: give a "
            "reference of the same tokenizer"
        )
    return found


def reference_logprobs(reference: Policy, chunk: Chunk) -> torch.Tensor:
    """Log-probabilities (batch, kept) of a chunk's tokens, by a forward pass without gradients."""
    with torch.no_grad(), Objective(reference.model, reference.temperature) as objective:
        logprobs, _ = objective(reference.model, chunk.input_ids.to(reference.device), chunk.kept)
    return logprobs
