r"""Gradients of modules of any kind: the module alone is run again, one sequence at a time.

A module :math:`y = M(x; \theta)` that treats sequences independently has, for sequence :math:`i`, the gradient
:math:`(\partial M(x_i; \theta) / \partial\theta)^\top \bar y_i`, where :math:`\bar y_i` is the gradient of its output
in the common backward pass. This is a loop over sequences for these parameters alone. It holds one gradient of one
module at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from gradstats.gradients.engines.reduction import Reduction
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, describe
from gradstats.policy.memory import is_out_of_memory

# Largest deviation of a module's output for one sequence from its output in the batch, relative to the largest
# entry; by the number of bytes of an entry. In float64 some modules compute in float32 inside.
TOLERANCES = {8: 1e-5, 4: 1e-3, 2: 1e-1}
# Rounding may send a token to another expert, where two are tied. That remains rare.
_MAY_DEVIATE = 0.01


def rows_of(tensor: Tensor, row: int, batch: int, times: Collection[int]) -> Tensor:
    """Return what belongs to one sequence; a tensor without an axis of sequences belongs to all."""
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


@dataclass(frozen=True)
class OtherModule:
    """A module with selected parameters that is of no known kind."""

    path: str
    module: nn.Module
    # name of each selected parameter in the module, modules inside it included → its name in the model
    names: dict[str, str]


def other_modules(
    model: nn.Module, selection: ParameterSelection, unknown: list[tuple[str, nn.Module, dict[str, str]]]
) -> list[OtherModule]:
    """Return the outermost of some modules, each with all selected parameters inside it."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    every = dict(model.named_parameters(remove_duplicate=False))
    others: list[OtherModule] = []
    for path, module, owned in unknown:
        if path.startswith(tuple(f"{other.path}." for other in others)) or path in [other.path for other in others]:
            continue
        prefix = f"{path}." if path else ""
        names = {}
        for full in every:
            name = selection.name_of(full)
            if name is not None and full.startswith(prefix):
                names.setdefault(name, full.removeprefix(prefix))
        modules = set(module.modules())
        shared = [
            full
            for full in every
            if selection.name_of(full) in names and model.get_submodule(full.rpartition(".")[0]) not in modules
        ]
        why = ""
        if not path or head in modules:
            why = ", and contains the output embedding"
        elif shared:
            why = f", and shares a parameter with {shared[0]}"
        elif any(isinstance(every[prefix + inside], DTensor) for inside in names.values()):
            why = ", and is sharded"
        if why:
            raise UnsupportedModuleError(
                f'engine="ghost" does not know the module {describe(path, module)}, which owns '
                f'{next(iter((owned or names).values()))}{why}: use engine="vmap" or engine="loop", or leave it out '
                "with params"
            )
        others.append(OtherModule(path, module, {inside: name for name, inside in names.items()}))
    return others


@dataclass
class _Call:
    """One call of the module: what went in, what came out, and the gradients of the latter (None: no influence)."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    outputs: list[Tensor | None]
    once: bool
    gradients: list[Tensor | None] = field(default_factory=list)


class Recomputation:
    """Records the calls of a module in a forward pass, and differentiates them after the backward pass.

    ``times`` are the possible numbers of positions, by which the axes batch and time may have been merged.
    ``once``: whether calls from now on belong to one backward pass alone, in which a layer runs again.
    """

    def __init__(self, other: OtherModule, batch: int, times: tuple[int, ...]) -> None:
        self._other = other
        self._batch = batch
        self._times = times
        self._calls: list[_Call] = []
        self.once = False

    def record(self, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
        """Record a call; return its output, whose gradients will be those of what follows the module only."""
        leaves, structure = tree_flatten(output)
        leaves = [self._by_sequence(leaf) for leaf in leaves]
        given, named = tree_map(_detached, (args, dict(kwargs)))
        call = _Call(
            given,
            named,
            [leaf.detach() if _carries_gradient(leaf) else None for leaf in leaves],
            self.once,
        )
        if all(leaf is None for leaf in call.outputs):
            raise self._unsupported("returns no tensor that could be differentiated")
        call.gradients = [None] * len(leaves)
        self._calls.append(call)
        returned = []
        for place, leaf in enumerate(leaves):
            if call.outputs[place] is not None:
                assert isinstance(leaf, Tensor)
                # A copy: another output of the module may have been computed from this one, which what follows may
                # change in place.
                leaf = (leaf if leaf.requires_grad else leaf.detach().requires_grad_()).clone()
                leaf.register_hook(lambda gradient, call=call, place=place: _keep(call, place, gradient))
            returned.append(leaf)
        return tree_unflatten(returned, structure)

    def add_to(self, reduction: Reduction, *, last: bool) -> None:
        """Add the gradients of the calls after a backward pass, which the last pass releases."""
        for row in range(self._batch):
            total: dict[str, Tensor] = {}
            for call in self._calls:
                for name, gradient in self._of_sequence(call, row).items():
                    total[name] = gradient if name not in total else total[name] + gradient
            for name, gradient in total.items():
                reduction.add_row(name, row, gradient)
        self._calls = [] if last else [call for call in self._calls if not call.once]
        for call in self._calls:
            call.gradients = [None] * len(call.outputs)

    def check_alone(self, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
        """Run the module again for the last sequence, without its hooks and without gradients."""
        if self._batch == 1:
            return
        together = tree_map(self._by_sequence, output)
        other = self._other
        try:
            refuse_interacting_tokens(
                other.path, other.module, args, kwargs, together, self._batch, self._times, other.module.forward
            )
        except UnsupportedModuleError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise self._unsupported(f"cannot be run for one sequence alone ({why})") from error

    def _of_sequence(self, call: _Call, row: int) -> dict[str, Tensor]:
        """Return the gradient of one call for one sequence, name in the model → gradient."""
        if all(gradient is None for gradient in call.gradients):
            return {}
        module = self._other.module
        held = dict(module.named_parameters(remove_duplicate=False))
        tensors = {inside: held[inside].detach().requires_grad_() for inside in self._other.names}

        def of_row(value: object) -> object:
            return self._rows(value, row) if isinstance(value, Tensor) else value

        args, kwargs = tree_map(of_row, (call.args, call.kwargs))
        with torch.enable_grad():
            found, _ = tree_flatten(functional_call(module, tensors, args, kwargs))
        reached, gradients = [], []
        for leaf, output, gradient in zip(found, call.outputs, call.gradients, strict=True):
            if output is None:
                continue
            self._refuse_interaction(leaf.detach(), self._rows(output, row))
            if gradient is not None and leaf.requires_grad:
                reached.append(leaf)
                gradients.append(self._rows(gradient, row))
        if not reached:
            return {}
        of_tensors = torch.autograd.grad(reached, list(tensors.values()), gradients, materialize_grads=True)
        return dict(zip(self._other.names.values(), of_tensors, strict=True))

    def _by_sequence(self, value: object) -> object:
        """Return an output with an axis of sequences: one that all share, of length 1, is repeated for each."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or self._batch == 1:
            return value
        first = value.shape[0] if value.ndim > 1 else 0
        if first == 1:
            return value.expand(self._batch, *value.shape[1:])
        if first != self._batch and value.shape[:1].numel() not in {self._batch * time for time in self._times}:
            shape = tuple(value.shape)
            raise self._unsupported(f"returns a tensor of shape {shape} for {self._batch} sequences")
        return value

    def _rows(self, tensor: Tensor, row: int) -> Tensor:
        return rows_of(tensor, row, self._batch, self._times)

    def _refuse_interaction(self, alone: Tensor, together: Tensor) -> None:
        tolerance = TOLERANCES.get(together.dtype.itemsize, 1e-1)
        same = alone.shape == together.shape
        # A comparison with NaN is False: sequences that are not finite are left out of the measurement later.
        if not same or (alone.numel() and (alone - together).abs().max() > tolerance * together.abs().max()):
            raise self._unsupported("gives a sequence another output alone than in the batch")

    def _unsupported(self, what: str) -> UnsupportedModuleError:
        named = describe(self._other.path, self._other.module)
        return UnsupportedModuleError(
            f'engine="ghost" cannot differentiate {named}, which {what} and owns '
            f'{next(iter(self._other.names.values()))}: use engine="loop", or leave it out with params'
        )


def _keep(call: _Call, place: int, gradient: Tensor) -> None:
    call.gradients[place] = gradient


def _detached(value: object) -> object:
    return value.detach() if isinstance(value, Tensor) else value


def _carries_gradient(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()
