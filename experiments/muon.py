"""Muon in float32: momentum whose matrices are made nearly orthogonal by a Newton-Schulz iteration.

`torch.optim.Muon` iterates in bfloat16, which processors without such instructions emulate: there, for matrices of this
size, it takes longer than the whole rest of a training step. The update is otherwise the same. Source: Jordan et al.,
"Muon: an optimizer for hidden layers in neural networks" (2024); size of the update as in Liu et al., "Muon is
scalable for LLM training" (2025), https://arxiv.org/abs/2502.16982.
"""

import math
from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal, of the root mean square that AdamW's updates have; for matrices only."""

    def __init__(
        self, matrices: Iterable[torch.Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every matrix from its gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(matrix))
                buffer.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalised(matrix.grad.lerp(buffer, group["momentum"]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-0.2 * math.sqrt(max(matrix.shape)) * group["lr"])


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    r"""Approach :math:`U V^\top` of the singular value decomposition; the singular values end between 0.5 and 1.5."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=EPS)  # spectral norm of at most 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
