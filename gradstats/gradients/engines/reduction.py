"""Reduce per-sequence gradients to squared norms by block and sketches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.objective import Chunk, TokenStatistics
from gradstats.gradients.sketches import CountSketch

# Coordinates whose squares are added in the dtype of the gradients.
_SPAN = 2**12


@dataclass(frozen=True)
class ChunkResult:
    """The result of an engine for one chunk.

    Attributes:
        chunk: the sequences.
        sq_norms_by_block: (weightings, batch, blocks), squared gradient norms; their sum over blocks is the whole.
        sketches: (weightings, batch, sketch_dim) or None.
        statistics: per kept position, (batch, kept) each.
        sketches_by_block: (weightings, batch, blocks, sketch_dim), whose sum over blocks are ``sketches``; or None.
    """

    chunk: Chunk
    sq_norms_by_block: np.ndarray
    sketches: np.ndarray | None
    statistics: TokenStatistics
    sketches_by_block: np.ndarray | None = None


class Reduction:
    """Accumulates squared norms by block and sketches of a batch of gradients, parameter by parameter.

    In a metric, norms and sketches are those of P·S. :meth:`add` and :meth:`add_row` multiply by P; whoever calls
    :meth:`add_sq_norms` or adds to :meth:`sketches_of` has done so, see :meth:`preconditioner_of`.

    Args:
        selection: the parameters and their blocks.
        sketch: the projection, or None for none.
        batch: number of sequences.
        dtype: dtype of the gradients; norms and sketches are at least float32.
        device: device of the gradients.

    Attributes:
        dtype: dtype of sketches and of intermediate sums.
        sketch: the projection, or None.
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
        self._sq_norms = torch.zeros(batch, len(selection.block_names), dtype=torch.float64, device=device)
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
        self._sq_norms[row, self._selection.block_index[name]] += sq_norms(flat)[0]
        sketches = self.sketches_of(name)
        if self.sketch is not None and sketches is not None:
            self.sketch.add(sketches[row : row + 1], name, flat)

    @property
    def n_sequences(self) -> int:
        """Number of sequences of the batch."""
        return len(self._sq_norms)

    def add_sq_norms(self, name: str, values: Tensor) -> None:
        """Add squared norms, (batch,), to the block of a parameter."""
        self._sq_norms[:, self._selection.block_index[name]] += values.double()

    def sketches_of(self, name: str) -> Tensor | None:
        """Return the running sketches that a parameter is added to, (batch, dim), its block's or the whole; or None."""
        if self._sketches is None:
            return None
        return self._sketches[self._selection.block_index[name] if len(self._sketches) > 1 else 0]

    def preconditioner_of(self, name: str) -> Tensor | None:
        """Return P of a parameter, in its shape and in the dtype of sums, or None in the Euclidean metric."""
        preconditioner = self._selection.preconditioner.get(name)
        return None if preconditioner is None else preconditioner.to(self.dtype)

    def size_of(self, name: str) -> int:
        """Return the number of a parameter's coordinates."""
        return self._selection.parameters[name].numel()

    def result(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (batch, blocks) squared norms in float64, and sketches or None.

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
