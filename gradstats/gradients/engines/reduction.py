"""Per-sequence gradients, whole or as outer products → squared norms by parameter and sketches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradstats.gradients.arithmetic import multiplies_as_they_are, rounding_to_bfloat16
from gradstats.gradients.objective import Chunk, TokenStatistics
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import SLICE_ON_DEVICE, CountSketch
from gradstats.policy.memory import is_accelerator

# Coordinates whose squares are added in the dtype of the gradients.
_SPAN = 2**12


@dataclass(frozen=True)
class ChunkResult:
    """The result of an engine for one chunk."""

    chunk: Chunk
    # (weightings, batch, parameters), squared gradient norms; their sum over parameters is the whole
    sq_norms_by_parameter: np.ndarray
    sketches: np.ndarray | None  # (weightings, batch, sketch_dim) or None
    statistics: TokenStatistics  # per kept position, (batch, kept) each
    # (weightings, batch, blocks, sketch_dim), whose sum over blocks are sketches; or None
    sketches_by_block: np.ndarray | None = None


class Reduction:
    """Accumulates squared norms by parameter and sketches of a batch of gradients, parameter by parameter.

    In a metric, norms and sketches are those of P·S. :meth:`add` and :meth:`add_row` multiply by P; whoever calls
    :meth:`add_sq_norms` or adds to :meth:`sketches_of` has done so, see :meth:`preconditioner_of`. Norms, sketches and
    intermediate sums are at least float32.
    """

    def __init__(
        self,
        selection: ParameterSelection,
        sketch: CountSketch | None,
        batch: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._selection = selection
        self._places = {name: place for place, name in enumerate(selection.parameters)}
        self._sq_norms = torch.zeros(batch, len(self._places), dtype=torch.float64, device=device)
        self.dtype = torch.promote_types(dtype, torch.float32)
        self.sketch = sketch
        self._sketches = None
        if sketch is not None:
            n_parts = len(selection.block_names) if sketch.by_block else 1
            self._sketches = torch.zeros(n_parts, batch, sketch.dim, dtype=self.dtype, device=device)

    def add(self, name: str, gradients: Tensor) -> None:
        """Add the gradients of one parameter, (batch, *shape)."""
        preconditioner = self.preconditioner_of(name)
        if preconditioner is not None:
            gradients = gradients.flatten(start_dim=1) * preconditioner.flatten()
        self.add_sq_norms(name, sq_norms(gradients.flatten(start_dim=1)))
        sketches = self.sketches_of(name)
        if self.sketch is not None and sketches is not None:
            self.sketch.add(sketches, name, gradients)

    def add_row(self, name: str, row: int, gradient: Tensor) -> None:
        """Add the gradient of one parameter for one sequence alone, of the parameter's shape."""
        flat = gradient.reshape(1, -1)
        preconditioner = self.preconditioner_of(name)
        if preconditioner is not None:
            flat = flat * preconditioner.flatten()
        self._sq_norms[row, self._places[name]] += sq_norms(flat)[0]
        sketches = self.sketches_of(name)
        if self.sketch is not None and sketches is not None:
            self.sketch.add(sketches[row : row + 1], name, flat)

    def of_row(self, row: int) -> Reduction:
        """Return the part of one sequence, which adds to this one."""
        part = copy.copy(self)
        part._sq_norms = self._sq_norms[row : row + 1]
        part._sketches = None if self._sketches is None else self._sketches[:, row : row + 1]
        return part

    @property
    def n_sequences(self) -> int:
        """Number of sequences of the batch."""
        return len(self._sq_norms)

    def add_sq_norms(self, name: str, values: Tensor) -> None:
        """Add squared norms, (batch,), to those of a parameter."""
        self._sq_norms[:, self._places[name]] += values.double()

    def sketches_of(self, name: str) -> Tensor | None:
        """Return the running sketches that a parameter is added to, (batch, dim), its block's or the whole; or None."""
        if self._sketches is None:
            return None
        return self._sketches[self._selection.block_index[name] if len(self._sketches) > 1 else 0]

    def preconditioner_of(self, name: str) -> Tensor | None:
        """Return P of a parameter, in its shape and in the dtype of sums, or None in the Euclidean metric."""
        preconditioner = self._selection.preconditioner.get(name)
        return None if preconditioner is None else preconditioner.to(self.dtype)

    def add_products(self, name: str, products: Iterator[tuple[int, Tensor]]) -> None:
        """Add a matrix, already multiplied by P, a few rows at a time: the first of them, (batch, rows, columns)."""
        sketches = self.sketches_of(name)
        for first, product in products:
            flat = product.flatten(start_dim=1)
            self.add_sq_norms(name, sq_norms(flat))
            if self.sketch is not None and sketches is not None:
                self.sketch.add_slice(sketches, name, self.size_of(name), first * product.shape[2], flat)

    def size_of(self, name: str) -> int:
        """Return the number of a parameter's coordinates."""
        return self._selection.parameters[name].numel()

    def shape_of(self, name: str) -> torch.Size:
        """Return the shape of a parameter."""
        return self._selection.parameters[name].shape

    def result(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (batch, parameters) squared norms in float64, and sketches or None.

        Sketches are (batch, dim), or (batch, blocks, dim) where they are kept by block.
        """
        norms = self._sq_norms.cpu().numpy()
        if self.sketch is None or self._sketches is None:
            return norms, None
        return norms, (self._sketches.transpose(0, 1) if self.sketch.by_block else self._sketches[0]).cpu().numpy()


def sq_norms(flat: Tensor) -> Tensor:
    """Return (batch,) squared norms of (batch, size) in float64.

    Spans of the row are summed in at least float32, and their sums in float64. On the CPU, torch adds the squares of a
    whole row to a few float32 sums, which lose what is small beside them: of 10⁸ coordinates, 2 % of the squared norm.
    """
    dtype = torch.promote_types(flat.dtype, torch.float32)
    n_spans = flat.shape[1] // _SPAN
    spans = flat[:, : n_spans * _SPAN].unflatten(1, (n_spans, _SPAN))
    norms = [torch.linalg.vector_norm(part, dim=2, dtype=dtype) for part in (spans, flat[:, None, n_spans * _SPAN :])]
    return torch.cat(norms, dim=1).double().square().sum(dim=1)


def reduce_gradients(
    gradients: dict[str, Tensor], selection: ParameterSelection, sketch: CountSketch | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Reduce gradients, given as parameter name → (batch, *shape), to what :meth:`Reduction.result` returns."""
    first = next(iter(gradients.values()))
    reduction = Reduction(selection, sketch, len(first), first.dtype, first.device)
    for name, gradient in gradients.items():
        reduction.add(name, gradient)
    return reduction.result()


def stack_weightings(
    chunk: Chunk, by_weighting: list[tuple[np.ndarray, np.ndarray | None]], statistics: TokenStatistics
) -> ChunkResult:
    """Return a chunk's result from the norms and sketches of each weighting."""
    norms = np.stack([norms for norms, _ in by_weighting])
    sketches = [sketches for _, sketches in by_weighting if sketches is not None]
    stacked = np.stack(sketches) if sketches else None
    if stacked is None or stacked.ndim == 3:
        return ChunkResult(chunk, norms, stacked, statistics)
    return ChunkResult(chunk, norms, stacked.sum(axis=2), statistics, stacked)


# Gram matrices are computed in strips of this many rows, each up to the diagonal: few where each starts kernels.
_STRIP, _STRIP_ON_DEVICE = 128, 512
# Inner products are accumulated over this many features at a time, which keeps the features in the cache of a CPU.
_FEATURES = 2048
# An elementwise operation costs about as much as this many multiplications within a matrix product.
_ELEMENT_COST = 32
# Elements of a product that are computed at a time on a CPU, whose cache holds them.
_PRODUCT_ELEMENTS = 2**21


@dataclass(frozen=True)
class OuterProducts:
    """The gradient of a linear layer's weight for each sequence, a sum over time of outer products."""

    inputs: Tensor  # (batch, time, inputs), the layer's inputs
    gradients: Tensor  # (batch, time, outputs), the gradients of its outputs
    transposed: bool = False  # False for a weight (outputs, inputs), True for (inputs, outputs)

    @classmethod
    def join(cls, terms: list[OuterProducts]) -> OuterProducts:
        """Return the sum of the terms of a weight that is used several times: their times are concatenated."""
        if len(terms) == 1:
            return terms[0]
        inputs = torch.cat([term.inputs for term in terms], dim=1)
        return cls(inputs, torch.cat([term.gradients for term in terms], dim=1), terms[0].transposed)

    def without_idle_ends(self) -> OuterProducts:
        """Return the same sum without the first and last times at which all gradients are zero.

        Elsewhere than on a CPU the whole sum: to ask for its ends, the host would wait for the device at each layer.
        """
        if self.gradients.device.type != "cpu":
            return self
        if self.gradients[:, 0].any() and self.gradients[:, -1].any():
            return self  # the usual case, without a pass over all gradients
        # The largest magnitude, since `any` takes four times as long; NaN counts as busy.
        busy = (self.gradients.abs().amax(dim=(0, 2)) != 0).nonzero()[:, 0]
        if not len(busy) or len(busy) == self.gradients.shape[1]:
            return self
        span = slice(int(busy[0]), int(busy[-1]) + 1)
        return OuterProducts(self.inputs[:, span], self.gradients[:, span], self.transposed)

    @property
    def left(self) -> Tensor:
        """(batch, time, rows): the factor along the weight's rows."""
        return self.inputs if self.transposed else self.gradients

    @property
    def right(self) -> Tensor:
        """(batch, time, columns): the factor along the weight's columns."""
        return self.gradients if self.transposed else self.inputs

    @property
    def size(self) -> int:
        """Number of the weight's coordinates."""
        return self.left.shape[2] * self.right.shape[2]

    def prefers_gram(self, shared: int = 1) -> bool:
        """Return whether the Gram form costs less than the product form."""
        time, inputs, outputs = self.inputs.shape[1], self.inputs.shape[2], self.gradients.shape[2]
        strip = min(time, _STRIP)
        gram = time * (time + strip) / 2 * (inputs / shared + outputs + _ELEMENT_COST)
        return gram < (time + _ELEMENT_COST) * inputs * outputs

    def sq_norms(self, dtype: torch.dtype) -> Tensor:
        """Return (batch,) squared norms of the gradients in float64, in the form that costs less."""
        if self.prefers_gram():
            return contract(gram_strips(self.gradients, dtype), gram_strips(self.inputs, dtype))
        total = torch.zeros(len(self.inputs), dtype=torch.float64, device=self.inputs.device)
        for _, product in self.products(dtype):
            total += sq_norms(product.flatten(start_dim=1))
        return total

    def products(self, dtype: torch.dtype, preconditioner: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield a few rows of the gradient at a time: the index of the first, and (batch, rows, columns).

        Multiplied by a preconditioner, (all rows, columns), where there is one.
        """
        batch, _, rows = self.left.shape
        as_they_are = multiplies_as_they_are(self.left, self.right, dtype)
        right = self.right if as_they_are else self.right.to(dtype)
        step = rows_at_once(batch, right.shape[2], right.device)
        buffer = torch.empty(batch, min(step, rows), right.shape[2], dtype=dtype, device=right.device)
        for first in range(0, rows, step):
            left = self.left[:, :, first : first + step].to(right.dtype).transpose(1, 2)
            # One buffer for all slices: allocating memory costs more than the arithmetic of a slice.
            out = buffer if left.shape[1] == buffer.shape[1] else None
            with rounding_to_bfloat16(self.left, self.right):
                product = torch.bmm(left, right, out_dtype=dtype) if as_they_are else torch.bmm(left, right, out=out)
            yield first, product if preconditioner is None else product.mul_(preconditioner[first : first + step])


def rows_at_once(batch: int, columns: int, device: torch.device) -> int:
    """Return how many rows of a matrix of each sequence are processed at a time."""
    elements = _PRODUCT_ELEMENTS if device.type == "cpu" else SLICE_ON_DEVICE
    return max(1, elements // (batch * columns))


def gram_strips(vectors: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Yield the Gram matrix of (batch, time, features) in strips (batch, rows, columns up to the diagonal)."""
    batch, time, features = vectors.shape
    strips = []
    step = _STRIP_ON_DEVICE if is_accelerator(vectors.device) else _STRIP
    as_they_are = multiplies_as_they_are(vectors, vectors, dtype)
    for first in range(0, time, step):
        last = min(first + step, time)
        if as_they_are:
            strips.append(torch.bmm(vectors[:, first:last], vectors[:, :last].transpose(1, 2), out_dtype=dtype))
            continue
        strip = torch.zeros(batch, last - first, last, dtype=dtype, device=vectors.device)
        for feature in range(0, features, _FEATURES):
            some = vectors[:, :last, feature : feature + _FEATURES].to(dtype)
            with rounding_to_bfloat16(vectors):
                torch.baddbmm(strip, some[:, first:], some.transpose(1, 2), out=strip)
        strips.append(strip)
    return strips


def contract(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum over all pairs of times of the product of two Gram matrices, (batch,); overwrites ``left``."""
    total = torch.zeros(len(left[0]), dtype=torch.float64, device=left[0].device)
    for first, second in zip(left, right, strict=True):
        square = first.shape[2] - first.shape[1]
        product = first.mul_(second)
        # Entries left of the diagonal square count twice, for themselves and their mirror images.
        total += 2 * product[:, :, :square].sum(dim=(1, 2)).double() + product[:, :, square:].sum(dim=(1, 2)).double()
    return total
