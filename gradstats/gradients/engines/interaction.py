"""Refuse modules in which the sequences of a batch interact, for example by a limit on the tokens of an expert."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from gradstats.gradients.engines.unsupported import UnsupportedModuleError, describe

# Largest deviation of a module's output for one sequence from its output in the batch, relative to the largest
# entry; by the number of bytes of an entry. In float64 some modules compute in float32 inside.
TOLERANCES = {8: 1e-5, 4: 1e-3, 2: 1e-1}
# Rounding may send a token to another expert, where two are tied. That remains rare.
_MAY_DEVIATE = 0.01


def rows_of(tensor: Tensor, row: int, batch: int, times: Collection[int]) -> Tensor:
    """Return what belongs to one sequence; a tensor without an axis of sequences belongs to all.

    Args:
        tensor: an input or output of a module.
        row: the sequence.
        batch: number of sequences.
        times: the possible numbers of positions, by which the axes batch and time may have been merged.
    """
    if tensor.ndim > 1 and tensor.shape[0] == batch:
        return tensor[row : row + 1]
    for time in times:
        if tensor.ndim and tensor.shape[0] == batch * time:
            return tensor[row * time : (row + 1) * time]
    return tensor


def refuse_interacting_tokens(
    path: str,
    module: nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    output: object,
    batch: int,
    times: Collection[int],
    call: Callable[..., object],
) -> None:
    """Compare a module's output for the last sequence of a batch with its output for that sequence alone.

    Where places are limited, the last sequence is the one that finds none.

    Args:
        path: the module's name in the model.
        module: the module.
        args: positional arguments of a call with the whole batch.
        kwargs: those given by name.
        output: what the call returned.
        batch: number of sequences.
        times: the possible numbers of positions.
        call: calls the module.

    Raises:
        UnsupportedModuleError: where more than a few tokens deviate, naming the module.
    """
    if batch == 1:
        return

    def of_last(value: object) -> object:
        return rows_of(value.detach(), batch - 1, batch, times) if isinstance(value, Tensor) else value

    own_args, own_kwargs = tree_map(of_last, (args, dict(kwargs)))
    with torch.no_grad():
        alone = tree_leaves(call(*own_args, **own_kwargs))
    for one, together in zip(alone, tree_leaves(tree_map(of_last, output)), strict=True):
        if not isinstance(together, Tensor) or not together.is_floating_point():
            continue
        if one.shape != together.shape or _n_deviating(one, together) > max(1, _MAY_DEVIATE * len(_tokens(one))):
            raise UnsupportedModuleError(
                f'engine="ghost" cannot differentiate {describe(path, module)}, which gives a sequence another output '
                'alone than in the batch: use engine="loop", or leave it out with params'
            )


def _n_deviating(alone: Tensor, together: Tensor) -> int:
    allowed = TOLERANCES.get(together.dtype.itemsize, 1e-1) * together.abs().max()
    # A comparison with NaN is False: sequences that are not finite are left out of the measurement later.
    return int((_tokens(alone - together).abs() > allowed).any(dim=1).sum())


def _tokens(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[:, None]
