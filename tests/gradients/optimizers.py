"""Optimizers after a few steps, with the second moments that they should hold."""

import numpy as np
import torch

BETAS, EPS, STEPS = (0.9, 0.95), 1e-6, 3


def trained(model, groups=None, kind=torch.optim.AdamW, **options):
    """An optimizer after a few steps of random gradients, and v̂ by name from the recursion."""
    optimizer = kind(groups or list(model.parameters()), lr=0.0, betas=BETAS, eps=EPS, **options)
    generator = torch.Generator().manual_seed(1)
    running = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
    for _ in range(STEPS):
        for name, tensor in model.named_parameters():
            tensor.grad = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            running[name] = BETAS[1] * running[name] + (1 - BETAS[1]) * tensor.grad**2
        optimizer.step()
    return optimizer, {name: values / (1 - BETAS[1] ** STEPS) for name, values in running.items()}


def decay_groups(model):
    """The groups of transformers' Trainer, as its documentation states them."""
    decay = [name for name, _ in model.named_parameters() if "bias" not in name and "norm" not in name.lower()]
    decay = [name for name in decay if ".ln_" not in name]
    return [
        {"params": [tensor for name, tensor in model.named_parameters() if name in decay], "weight_decay": 0.1},
        {"params": [tensor for name, tensor in model.named_parameters() if name not in decay], "weight_decay": 0.0},
    ]


def assert_moments(metric, expected, rtol=1e-12):
    assert set(metric.second_moments) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(metric.second_moments[name], values, rtol=rtol, err_msg=name)
