"""Oracle of every gradient engine: plain autograd, one sequence at a time."""

from __future__ import annotations

import torch

from gradstats.rollouts.table import Rollouts


def sequence_gradients(
    model: torch.nn.Module, rollouts: Rollouts, temperature: float = 1.0
) -> list[dict[str, torch.Tensor]]:
    r"""Return gradients :math:`S_i = \nabla \sum_t m_t \log\mathrm{softmax}(z_t/\tau)_{y_t}` by one backward pass each.

    Args:
        model: a causal language model of transformers.
        rollouts: the sequences; ``completion_mask`` gives :math:`m_t`, 1 without it.
        temperature: :math:`\tau`.

    Returns:
        For each sequence, parameter name → gradient (zeros for parameters it does not touch).
    """
    device = next(model.parameters()).device
    results = []
    for prompt, completion, mask in zip(
        rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), rollouts.masks, strict=True
    ):
        ids = torch.tensor([*prompt.tolist(), *completion.tolist()], device=device)
        logits = model(ids[None], use_cache=False).logits[0]
        total = logits.new_zeros(())
        for offset, counts in enumerate(mask):
            if counts:
                position = len(prompt) + offset
                total = total + torch.log_softmax(logits[position - 1] / temperature, dim=-1)[ids[position]]
        model.zero_grad(set_to_none=True)
        total.backward()
        results.append(
            {
                name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                for name, parameter in model.named_parameters()
            }
        )
        model.zero_grad(set_to_none=True)
    return results
