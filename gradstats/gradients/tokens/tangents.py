r"""Random directions in parameter space, generated from a seed whenever they are needed."""

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

    The direction of a matrix is :math:`V = A B^\top/\sqrt r` with random signs in A and B, which is far cheaper to
    follow through a linear layer, :math:`Vx = A(B^\top x)/\sqrt r`, at almost the same variance. Parameters that are
    not matrices have independent random signs. For a score s whose matrices are :math:`G_\ell`,

    .. math:: \operatorname{Var}\langle s, v\rangle^2
        \le 2\lVert s\rVert^4 + \frac 6r \sum_\ell \lVert G_\ell^\top G_\ell\rVert_F^2
        \le \Bigl(2 + \frac 6r\Bigr) \lVert s\rVert^4 :

    at rank 16 standard errors are at most 9 % above those of Gaussian directions, and that only where one matrix of
    rank one holds the whole of the score.

    Direction k of a parameter depends only on the seed, k, the parameter's name and its shape: not on the sequences,
    their chunks, or what else is measured.

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
        """The distribution in words, for the metadata."""
        return f"random signs, matrices of rank {self.rank}"

    def has_factors(self, shape: Sequence[int]) -> bool:
        """Return whether the directions of a parameter are products of factors."""
        return len(shape) == 2

    def factors(self, name: str, shape: Sequence[int], which: Collection[int], like: Tensor) -> Factors:
        r"""Return the factors of the given directions of a matrix; the left factor is scaled by :math:`1/\sqrt r`."""
        rows, columns = shape
        signs = [self._signs(name, shape, number, (rows + columns) * self.rank) for number in which]
        both = torch.from_numpy(np.stack(signs)).to(like).view(len(signs), rows + columns, self.rank)
        return Factors(both[:, :rows] * self.rank**-0.5, both[:, rows:])

    def dense(self, name: str, shape: Sequence[int], which: Collection[int], like: Tensor) -> Tensor:
        """Return the given directions of a parameter as plain tensors, (directions, *shape)."""
        if self.has_factors(shape):
            pair = self.factors(name, shape, which, like)
            return pair.left @ pair.right.transpose(1, 2)
        signs = [self._signs(name, shape, number, int(np.prod(shape))) for number in which]
        return torch.from_numpy(np.stack(signs)).to(like).view(len(signs), *shape)

    def _signs(self, name: str, shape: Sequence[int], number: int, size: int) -> np.ndarray:
        digest = hashlib.sha256(f"{name}:{tuple(shape)}".encode()).digest()
        rng = np.random.default_rng([self.seed, number, *np.frombuffer(digest, dtype=np.uint32).tolist()])
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8), count=size)
        return 2 * bits.astype(np.int8) - 1
