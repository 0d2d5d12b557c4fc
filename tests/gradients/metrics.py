"""Random second moments and squared norms in a metric by plain autograd."""

import numpy as np
import torch
from oracles.naive_estimators import sequence_gradients

from gradstats.gradients import AdamMetric


def random_metric(model: torch.nn.Module, seed: int = 5, **settings) -> AdamMetric:
    """Second moments over several orders of magnitude for each trainable parameter."""
    generator = torch.Generator().manual_seed(seed)
    moments = {
        name: torch.exp(3 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    }
    return AdamMetric(moments, **settings)


def scaled_gradients(model, rollouts, metric: AdamMetric, temperature: float = 1.0) -> list[dict[str, torch.Tensor]]:
    """P·S of each sequence by autograd, P from its definition."""
    correction = 1.0 if metric.step is None else 1 - metric.beta2**metric.step
    scales = {
        name: 1 / ((moments.double() / correction) ** metric.power + metric.eps)
        for name, moments in metric.second_moments.items()
    }
    found = sequence_gradients(model, rollouts, temperature)
    return [
        {name: gradient.double() * scales[name] for name, gradient in one.items() if name in scales} for one in found
    ]


def metric_oracle(model, rollouts, metric: AdamMetric, temperature: float = 1.0) -> dict[str, np.ndarray]:
    """Squared norms of P·S by parameter."""
    found = scaled_gradients(model, rollouts, metric, temperature)
    return {name: np.array([one[name].square().sum().item() for one in found]) for name in found[0]}
