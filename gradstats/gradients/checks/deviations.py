"""How far an engine's results on a chunk are from plain passes over its sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.checks.plain_pass import PlainPass, plain_sketch
from gradstats.gradients.engines.reduction import ChunkResult
from gradstats.gradients.sketches import CountSketch

#: Largest relative deviation of ‖S‖² that is accepted, by the model's dtype.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
#: The same for one parameter or a sketch. It sums fewer terms than ‖S‖², so that rounding shows more: in float32, two
#: plain passes over a model with large activations (Qwen2.5-0.5B, with padding and without) differ by 1e-3 in some
#: matrices; in float64, so does that of norms which transformers computes in float32.
TOLERANCES_OF_PARTS = {torch.float64: 1e-5, torch.float32: 1e-2, torch.bfloat16: 0.5, torch.float16: 0.5}
#: What the deviation of ‖S‖² is called.
WHOLE = "the squared norm of the whole gradient"
# Deviations of a parameter are relative to its own ‖S‖², or to this share of the whole where that is more.
_LEAST_SHARE = {torch.float64: 1e-12, torch.float32: 1e-8, torch.bfloat16: 1e-3, torch.float16: 1e-3}
# Deviations of token quantities are relative to the largest of the sequence, or to this where that is more.
_LEAST_TOKEN = {torch.float64: 1e-4, torch.float32: 1e-2, torch.bfloat16: 1.0, torch.float16: 1.0}
# Inner products of sketches may be off by this many standard deviations.
_DEVIATIONS = 10.0


@dataclass(frozen=True)
class Deviation:
    """One comparison: a relative deviation, what is allowed, and of what."""

    value: float
    allowed: float
    what: str

    @property
    def passes(self) -> bool:
        """Whether the deviation is allowed; NaN is not."""
        return bool(self.value <= self.allowed)


def of_norms(
    result: ChunkResult, place: int, plain: PlainPass, selection: ParameterSelection, dtype: torch.dtype
) -> list[Deviation]:
    """Return the squared norms by block (of one parameter each, where the selection says so) and of the whole."""
    found = []
    for norms, gradient in zip(result.sq_norms_by_block[:, place], plain.gradients, strict=True):
        exact = np.zeros(len(selection.block_names))
        for name, value in gradient.sq_norms.items():
            exact[selection.block_index[name]] += value
        total = float(exact.sum())
        scale = np.maximum(exact, _LEAST_SHARE[dtype] * total) if total else np.ones_like(exact)
        values = np.abs(norms - exact) / np.where(scale == 0, 1.0, scale)
        worst = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
        found.append(
            Deviation(
                float(values[worst]), TOLERANCES_OF_PARTS[dtype], f"the squared norm of {selection.block_names[worst]}"
            )
        )
        whole = abs(float(norms.sum()) - total) / (total or 1.0)
        found.append(Deviation(whole, TOLERANCES[dtype], WHOLE))
    return found


def of_sketches(result: ChunkResult, place: int, plain: PlainPass, dtype: torch.dtype) -> list[Deviation]:
    """Return the engine's sketch against that of the plain pass, relative to its norm."""
    if result.sketches is None:
        return []
    found = []
    for sketch, gradient in zip(result.sketches[:, place], plain.gradients, strict=True):
        assert gradient.sketch is not None
        off = float(np.linalg.norm(sketch.astype(np.float64) - gradient.sketch))
        # ‖S‖² deviates by twice what S deviates by.
        found.append(
            Deviation(
                off / (float(np.linalg.norm(gradient.sketch)) or 1.0), TOLERANCES_OF_PARTS[dtype] / 2, "the sketch"
            )
        )
    return found


def of_tokens(tokens: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], dtype: torch.dtype) -> list[Deviation]:
    """Return the quantities of a sequence's tokens."""
    found = []
    for name, values in tokens.items():
        scale = max(float(np.abs(exact[name]).max(initial=0.0)), _LEAST_TOKEN[dtype])
        off = np.abs(values - exact[name]).max(initial=0.0) if len(values) == len(exact[name]) else np.inf
        found.append(Deviation(float(off) / scale, TOLERANCES[dtype], f"the recorded {name} of its tokens"))
    return found


def of_projection(sketch: CountSketch, plain: Sequence[PlainPass]) -> list[Deviation]:
    """Compare sketches with their definition, and their inner products with those of the gradients.

    Every norm of a whole gradient is compared, and the inner products of the coordinates that were kept.
    """
    found = []
    spread = float(np.sqrt(2.0 / sketch.dim))
    gradients = [one.gradients[0] for one in plain]
    for gradient in gradients:
        total = sum(gradient.sq_norms.values())
        if gradient.sketch is not None and total:
            off = abs(float(gradient.sketch @ gradient.sketch) / total - 1.0)
            found.append(Deviation(off, _DEVIATIONS * spread, "the squared norm of the sketch against the gradient's"))
    names = gradients[0].kept if gradients else {}
    if not names:
        return found
    kept = {name: np.stack([gradient.kept[name] for gradient in gradients]) for name in names}
    defined = plain_sketch(sketch, kept)
    made = torch.zeros(len(gradients), sketch.dim, dtype=torch.float64)
    for name, values in kept.items():
        sketch.add(made, name, torch.from_numpy(values))
    off_by = np.linalg.norm(made.numpy() - defined, axis=1) / _or_one(np.linalg.norm(defined, axis=1))
    what = "the sketch of its smaller parameters, against the definition,"
    found += [Deviation(float(off), 1e-9, what) for off in off_by]
    exact = np.sum([values @ values.T for values in kept.values()], axis=0)
    size = _or_one(np.sqrt(np.outer(np.diag(exact), np.diag(exact))))
    off_by = (np.abs(defined @ defined.T - exact) / size)[np.tril_indices(len(gradients), -1)]
    found += [Deviation(float(off), _DEVIATIONS * spread, "an inner product of sketches") for off in off_by]
    return found


def _or_one(sizes: np.ndarray) -> np.ndarray:
    """Return sizes to divide by, 1 in place of 0."""
    return np.where(sizes == 0.0, 1.0, sizes)
