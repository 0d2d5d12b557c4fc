"""Exact token scores, one autograd pass per token, and random directions written out."""

import numpy as np
import torch

from gradstats.gradients.tokens.projections import Tangents


def token_gradients(model, rollouts, temperature=1.0, names=None) -> list[list[dict[str, torch.Tensor]]]:
    """For each sequence and completion token, parameter name → gradient of its log-probability; zero where masked."""
    parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    parameters = {name: tensor for name, tensor in parameters.items() if names is None or name in names}
    found = []
    for prompt, completion, mask in zip(
        rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), rollouts.masks, strict=True
    ):
        logits = model(torch.tensor([[*prompt.tolist(), *completion.tolist()]]), use_cache=False).logits[0]
        rows = []
        for place, token in enumerate(completion):
            value = float(mask[place]) * (logits[len(prompt) + place - 1] / temperature).log_softmax(0)[int(token)]
            parts = torch.autograd.grad(value, list(parameters.values()), retain_graph=True, materialize_grads=True)
            rows.append(dict(zip(parameters, parts, strict=True)))
        found.append(rows)
    return found


def flat(rows: list[dict[str, torch.Tensor]]) -> np.ndarray:
    """(T, parameters)."""
    return np.stack([torch.cat([part.flatten() for part in row.values()]).numpy() for row in rows])


def directions(parameters: dict[str, torch.Tensor], n: int, seed: int) -> np.ndarray:
    """(n, parameters), in the order of ``parameters``."""
    tangents = Tangents(seed, n)
    parts = [tangents.dense(name, part.shape, range(n), part).flatten(1) for name, part in parameters.items()]
    return torch.cat(parts, dim=1).numpy()
