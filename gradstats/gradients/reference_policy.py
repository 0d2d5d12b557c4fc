"""Forward passes alone: token statistics of a policy, and the log-probabilities of a second one for a KL term."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.precision import own_precision
from gradstats.gradients.rotary import refuse_mixed_lengths
from gradstats.policy.model import n_logits
from gradstats.policy.policy import Policy, as_policy


def as_reference(reference: object, policy: Policy) -> Policy:
    """Return the reference as a policy; a bare model is scored at the measured policy's temperature.

    Raises:
        TypeError: when it is neither a policy nor a model.
        ValueError: when its vocabulary has another size.
    """
    other = as_policy(reference)
    if other is not reference:
        other = replace(other, temperature=policy.temperature)
    expected, given = n_logits(policy.model), n_logits(other.model)
    if given != expected:
        raise ValueError(
            f"reference_policy {other.name} has a vocabulary of {given}, but {policy.name} one of {expected}: give a "
            "reference with the same tokenizer"
        )
    return other


def token_statistics(policy: Policy, chunk: Chunk) -> TokenStatistics:
    """Statistics, (batch, kept) each, of a chunk's tokens under a policy, by a forward pass without gradients.

    Raises:
        UnsupportedModuleError: when sequences of the chunk have other rotary factors than alone.
    """
    refuse_mixed_lengths(policy.model, chunk.times)
    with torch.no_grad(), own_precision(policy), Objective(policy.model, policy.temperature) as objective:
        _, statistics = objective(policy.model, chunk.input_ids.to(policy.device), chunk.kept)
    return statistics


def reference_logprobs(reference: Policy, chunk: Chunk) -> torch.Tensor:
    """Log-probabilities (batch, kept) of a chunk's tokens, by a forward pass without gradients."""
    return token_statistics(reference, chunk).logprobs
