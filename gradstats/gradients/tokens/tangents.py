r"""Random directions in parameter space, regenerated from a seed whenever they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: Rank of a matrix's direction.
RANK = 16


@dataclass(frozen=True)
class Factors:
    r"""Directions of one matrix, :math:`V_k = A_k B_k^\top`.

    Attributes:
        left: (directions, rows, rank), :math:`A_k`.
        right: (directions, columns, rank), :math:`B_k`.
    """

    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Tangents:
    r"""Seeded isotropic directions :math:`v_k`, :math:`\mathbb E\,v_k v_k^\top = I`, of random signs.

    A matrix's direction is :math:`V = A B^\top/\sqrt r` with random signs in A and B, since that is as good a
    direction and far cheaper to follow: through a linear layer, :math:`Vx = A(B^\top x)/\sqrt r`. Whatever is no
    matrix takes signs throughout. For a score s with the matrices :math:`G_\ell` among its parts,

    .. math:: \operatorname{Var}\langle s, v\rangle^2
        \le 2\lVert s\rVert^4 + \frac 6r \sum_\ell \lVert G_\ell^\top G_\ell\rVert_F^2
        \le \Bigl(2 + \frac 6r\Bigr) \lVert s\rVert^4 :

    at rank 16 standard errors are at most 9 % above those of Gaussian directions, and that only where one matrix of
    rank one holds the whole of the score.

    Direction k of a parameter depends on the seed, k, the parameter's name and its shape alone: neither on the
    sequences, nor on their chunks, nor on what else is measured.

    Hutchinson, "A stochastic estimator of the trace of the influence matrix" (1989).

    Args:
        seed: seed of the signs.
        n: number of directions.
        rank: r.
    """

    seed: int
    n: int
    rank: int = RANK

    @property
    def distribution(self) -> str:
        """In words, for the metadata."""
        return f"random signs, matrices of rank {self.rank}"

    def has_factors(self, shape: Sequence[int]) -> bool:
        """Whether a parameter's directions are products of factors."""
        return len(shape) == 2

    def factors(self, name: str, shape: Sequence[int], which: Collection[int], like: Tensor) -> Factors:
        """Factors of some directions of a matrix, the left one scaled by one over the root of the rank."""
        rows, columns = shape
        signs = [self._signs(name, shape, number, (rows + columns) * self.rank) for number in which]
        both = torch.from_numpy(np.stack(signs)).to(like).view(len(signs), rows + columns, self.rank)
        return Factors(both[:, :rows] * self.rank**-0.5, both[:, rows:])

    def dense(self, name: str, shape: Sequence[int], which: Collection[int], like: Tensor) -> Tensor:
        """Some directions of a parameter written out, (directions, *shape)."""
        if self.has_factors(shape):
            found = self.factors(name, shape, which, like)
            return found.left @ found.right.transpose(1, 2)
        signs = [self._signs(name, shape, number, int(np.prod(shape))) for number in which]
        return torch.from_numpy(np.stack(signs)).to(like).view(len(signs), *shape)

    def _signs(self, name: str, shape: Sequence[int], number: int, size: int) -> np.ndarray:
        digest = hashlib.sha256(f"{name}:{tuple(shape)}".encode()).digest()
        rng = np.random.default_rng([self.seed, number, *np.frombuffer(digest, dtype=np.uint32).tolist()])
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8), count=size)
        return 2 * bits.astype(np.int8) - 1
