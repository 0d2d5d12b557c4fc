r"""Sketches: short random projections of gradients that keep inner products without bias."""

from __future__ import annotations

import torch
from torch import Tensor

from gradstats.gradients.random_signs import RandomSigns, random_signs


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
    in their order, from a random start. Two coordinates of one run never share a bucket and two of different runs do
    with probability :math:`1/D`, so with independent signs the bound above holds, and the sketch is a stream of
    additions instead of a scatter. Signs and starts depend only on the version, the seed, the parameter's name and its
    size: every engine, device, chunking, order and choice of other parameters gives the same vector.

    Charikar, Chen & Farach-Colton, "Finding frequent items in data streams" (2002); Weinberger et al., "Feature
    hashing for large scale multitask learning" (2009).

    Args:
        dim: :math:`D`, the number of buckets.
        seed: seed of signs and buckets.
        version: how signs and buckets are generated, see :mod:`gradstats.gradients.random_signs`; 1 or 2. Sketches of
            different versions are as unrelated as those of different seeds.
        by_block: whether engines keep the sketch of each block of parameters, of which the whole is the sum.

    Raises:
        ValueError: when ``dim`` is not positive.
    """

    def __init__(self, dim: int, seed: int = 0, version: int = 2, by_block: bool = False) -> None:
        if dim < 1:
            raise ValueError(f"sketch_dim is {dim}: it must be at least 1 (or None for no sketches)")
        self.dim = dim
        self.seed = seed
        self.version = version
        self.by_block = by_block

    def signs(self, name: str, size: int) -> RandomSigns:
        """Return the signs and buckets of a parameter with ``size`` coordinates."""
        return random_signs(self.version, self.seed, name, size, self.dim)

    def add(self, sketches: Tensor, name: str, gradients: Tensor) -> None:
        """Add one parameter's gradients to running sketches, in place.

        Args:
            sketches: (batch, dim), the sketches so far.
            name: the parameter's name.
            gradients: (batch, *shape of the parameter).
        """
        flat = gradients.flatten(start_dim=1)
        # Signs are generated when needed; slices of a few runs keep them small.
        step = self.dim * max(1, 2**18 // self.dim)
        for first in range(0, flat.shape[1], step):
            self.add_slice(sketches, name, flat.shape[1], first, flat[:, first : first + step])

    def add_slice(self, sketches: Tensor, name: str, size: int, first: int, values: Tensor) -> None:
        """Add consecutive coordinates of one parameter's gradients to running sketches, in place.

        Args:
            sketches: (batch, dim), the sketches so far.
            name: the parameter's name.
            size: number of the parameter's coordinates.
            first: the index of the first coordinate.
            values: (batch, n), the gradients' coordinates ``first`` … ``first + n − 1``.
        """
        random, last = self.signs(name, size), first + values.shape[1]
        signs, starts = random.between(first, last, sketches), random.starts
        values = values.to(sketches.dtype)
        for run in range(first // self.dim, -(-last // self.dim)):
            begin, end = max(first, run * self.dim), min(last, (run + 1) * self.dim)
            bucket = (starts[run] + begin - run * self.dim) % self.dim
            middle = min(end, begin + self.dim - bucket)
            for left, right, target in ((begin, middle, bucket), (middle, end, 0)):
                if left < right:
                    span = slice(left - first, right - first)
                    sketches[:, target : target + right - left].addcmul_(values[:, span], signs[span])

    def add_rows(
        self, sketches: Tensor, name: str, size: int, batch_index: Tensor, row_index: Tensor, rows: Tensor
    ) -> None:
        """Add a few rows of one parameter's gradients to running sketches, in place.

        Args:
            sketches: (batch, dim), the sketches so far.
            name: the parameter's name.
            size: number of the parameter's coordinates.
            batch_index: (n,), the gradient to which each row belongs.
            row_index: (n,), the index of each row in the parameter.
            rows: (n, columns), the rows.
        """
        random = self.signs(name, size)
        begins = torch.tensor(random.starts, device=sketches.device)
        columns = rows.shape[1]
        offsets = torch.arange(columns, device=sketches.device)
        step = max(1, 2**18 // columns)
        for first in range(0, len(rows), step):
            span = slice(first, first + step)
            coordinate = row_index[span, None] * columns + offsets
            bucket = (begins[coordinate // self.dim] + coordinate % self.dim) % self.dim
            target = batch_index[span, None] * self.dim + bucket
            signed = rows[span].to(sketches.dtype) * random.at(coordinate)
            sketches.view(-1).index_add_(0, target.flatten(), signed.flatten())
