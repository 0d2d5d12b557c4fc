r"""Sketches: short random projections of gradients that keep inner products without bias."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import torch


class CountSketch:
    r"""A seeded CountSketch of a gradient that is given parameter by parameter.

    Coordinate :math:`k` of the gradient is multiplied by a random sign :math:`\sigma_k` and added to bucket
    :math:`h(k)` of the :math:`D` buckets. Inner products are unbiased,
    :math:`\mathbb E\langle Cx, Cy\rangle = \langle x, y\rangle`, with variance

    .. math:: \operatorname{Var}\langle Cx, Cy\rangle
        \le \frac{\lVert x\rVert^2 \lVert y\rVert^2 + \langle x, y\rangle^2}{D},

    so the standard deviation of a normalised inner product is at most :math:`\sqrt{2/D}`, 1.1 % at
    :math:`D = 16384`.

    Buckets are drawn run by run: each run of :math:`D` consecutive coordinates of a parameter goes to the buckets
    in their order, from a random start. Within a run no two coordinates meet, across runs any two meet with
    probability :math:`1/D`, so with independent signs the bound above holds, and the sketch is a stream of additions
    instead of a scatter. Signs and starts depend on the seed, the parameter's name and its size alone: every engine,
    chunking, order and choice of other parameters gives the same vector.

    Charikar, Chen & Farach-Colton, "Finding frequent items in data streams" (2002); Weinberger et al., "Feature
    hashing for large scale multitask learning" (2009).

    Args:
        dim: :math:`D`, the number of buckets.
        seed: seed of signs and buckets.

    Raises:
        ValueError: when ``dim`` is not positive.
    """

    def __init__(self, dim: int, seed: int = 0) -> None:
        if dim < 1:
            raise ValueError(f"sketch_dim is {dim}: it must be at least 1 (or None for no sketches)")
        self.dim = dim
        self.seed = seed

    def add(self, sketches: torch.Tensor, name: str, gradients: torch.Tensor) -> None:
        """Add one parameter's gradients to running sketches, in place.

        Args:
            sketches: (batch, dim), the sketches so far.
            name: the parameter's name.
            gradients: (batch, *shape of the parameter).
        """
        flat = gradients.flatten(start_dim=1)
        size = flat.shape[1]
        packed, starts = _signs_and_starts(self.seed, name, size, self.dim)
        for run, start in enumerate(starts):
            first, last = run * self.dim, min((run + 1) * self.dim, size)
            signs = torch.from_numpy(_unpack(packed, first, last)).to(sketches.device)
            signed = flat[:, first:last].to(sketches.dtype) * signs
            head = min(last - first, self.dim - start)
            sketches[:, start : start + head] += signed[:, :head]
            sketches[:, : last - first - head] += signed[:, head:]


@lru_cache(maxsize=4096)
def _signs_and_starts(seed: int, name: str, size: int, dim: int) -> tuple[np.ndarray, list[int]]:
    """Sign bits (eight to the byte) and the starting bucket of each run, the same on every machine."""
    digest = hashlib.sha256(f"{name}:{size}".encode()).digest()
    words = np.frombuffer(digest, dtype=np.uint32)
    rng = np.random.default_rng([seed, *words.tolist()])
    bits = np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8)
    return bits, rng.integers(0, dim, size=-(-size // dim)).tolist()


def _unpack(packed: np.ndarray, first: int, last: int) -> np.ndarray:
    """Signs ±1 of the coordinates first … last − 1."""
    byte = first // 8
    bits = np.unpackbits(packed[byte : -(-last // 8)])[first - 8 * byte : last - 8 * byte]
    return bits.astype(np.float32) * 2 - 1
