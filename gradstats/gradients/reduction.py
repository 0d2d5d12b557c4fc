"""From per-sequence gradients to what is kept of them: squared norms by block and sketches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.objective import Chunk, TokenStatistics
from gradstats.gradients.sketches import CountSketch


@dataclass(frozen=True)
class ChunkResult:
    """What an engine returns for one chunk.

    Attributes:
        chunk: the sequences.
        sq_norms_by_block: (batch, blocks), squared gradient norms; their sum over blocks is the whole.
        sketches: (batch, sketch_dim) or None.
        statistics: per kept position, (batch, kept) each.
    """

    chunk: Chunk
    sq_norms_by_block: np.ndarray
    sketches: np.ndarray | None
    statistics: TokenStatistics


def reduce_gradients(
    gradients: dict[str, torch.Tensor], selection: ParameterSelection, sketch: CountSketch | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Squared norms by block and sketches of a batch of gradients.

    Args:
        gradients: parameter name → (batch, *shape).
        selection: the parameters and their blocks.
        sketch: the projection, or None for none.

    Returns:
        (batch, blocks) squared norms in float64, and (batch, dim) sketches or None.
    """
    first = next(iter(gradients.values()))
    sq_norms = torch.zeros(len(first), len(selection.block_names), dtype=torch.float64, device=first.device)
    sketches = None
    if sketch is not None:
        kind = torch.promote_types(first.dtype, torch.float32)
        sketches = torch.zeros(len(first), sketch.dim, dtype=kind, device=first.device)
    for name, gradient in gradients.items():
        flat = gradient.flatten(start_dim=1)
        norms = torch.linalg.vector_norm(flat, dim=1, dtype=torch.promote_types(flat.dtype, torch.float32))
        sq_norms[:, selection.block_index[name]] += norms.double().square()
        if sketch is not None and sketches is not None:
            sketch.add(sketches, name, gradient)
    return sq_norms.cpu().numpy(), None if sketches is None else sketches.cpu().numpy()
