"""Which modules have to be run again as a whole, found by a forward pass of a few tokens.

The gradient of a parameter by sequence follows from the calls of the module that owns it only if no other module reads
the parameter; and a module can be run again for one sequence only if sequences can be distinguished in its output and
it gives each the same output alone. Where one of these fails, the module around it is run again instead.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.experts import ExpertsLayer
from gradstats.gradients.engines.layers import Layer, supported_layers
from gradstats.gradients.engines.recomputed import OtherModule, Recomputation
from gradstats.gradients.engines.stand_ins import StandIns, broadcasts
from gradstats.gradients.engines.unsupported import UnsupportedModuleError, describe
from gradstats.gradients.held_parameters import owners
from gradstats.policy.model import CausalModel, vocabulary_size
from gradstats.policy.sharding import is_sharded

# Prime numbers, which the model's own sizes are not: 5 sequences of 7 tokens.
_BATCH, _TIME = 5, 7
_READ = "whose parameters another module reads"

_Unit = Layer | ExpertsLayer | OtherModule
_Key = tuple[object, ...]


@dataclass(frozen=True)
class _Found:
    """What the probe found: paths of modules around others that are run again, and of modules with stand-ins."""

    wider: frozenset[str] = frozenset()
    stand_ins: frozenset[str] = frozenset()


_known: weakref.WeakKeyDictionary[nn.Module, dict[_Key, _Found]] = weakref.WeakKeyDictionary()


def probed_layers(
    model: CausalModel, selection: ParameterSelection
) -> tuple[list[Layer], list[ExpertsLayer], list[OtherModule], list[StandIns]]:
    """Return the modules that own selected parameters, as far as a short probe shows.

    The probe runs once for a model, a selection and a set of modules. Sharded models are not probed: the hooks that
    gather their parameters read them outside of every module.

    Returns:
        As :func:`supported_layers`, and the modules whose parameters get stand-ins.

    Raises:
        UnsupportedModuleError: for a module that has to be known, or run again, and cannot be.
    """
    key = (frozenset(selection.parameters), tuple((path, type(module)) for path, module in model.named_modules()))
    known = _known.setdefault(model, {})
    if key not in known:
        known[key] = _Found() if is_sharded(model) else _find(model, selection)
    found = known[key]
    stand_ins = _stand_ins(model, selection, found.stand_ins)
    return *supported_layers(model, selection, found.wider, found.stand_ins), stand_ins


def _find(model: CausalModel, selection: ParameterSelection) -> _Found:
    """Probe the model until every module suffices.

    A module around one that does not is run again; only where none will do, stand-ins are tried for all of the first
    ones that failed.
    """
    try:
        return _Found(_modules_around(model, selection, frozenset()))
    except UnsupportedModuleError:
        layers, experts, others = supported_layers(model, selection)
        failed = _probe(model, [*layers, *experts, *others])
        stand_ins = _stand_ins(model, selection, failed)
        are_read = bool(stand_ins) and all(_READ in why for why in failed.values())
        if not are_read or not all(one.are_vectors for one in stand_ins):
            raise
        if not broadcasts(model, stand_ins, _ids(model)):
            raise
        return _Found(_modules_around(model, selection, frozenset(failed)), frozenset(failed))


def _stand_ins(model: CausalModel, selection: ParameterSelection, paths: Collection[str]) -> list[StandIns]:
    if not paths:
        return []
    return [StandIns(path, module, names) for path, module, names in owners(model, selection) if path in paths]


def _modules_around(model: CausalModel, selection: ParameterSelection, stand_ins: frozenset[str]) -> frozenset[str]:
    """Return the paths of the modules that are to be run again because a module inside them does not suffice."""
    wider: set[str] = set()
    reason = ""
    while True:
        try:
            layers, experts, others = supported_layers(model, selection, wider, stand_ins)
        except UnsupportedModuleError as error:
            raise UnsupportedModuleError(reason or str(error)) from error
        failed = _probe(model, [*layers, *experts, *others])
        if not failed:
            return frozenset(wider)
        for path, why in failed.items():
            reason = reason or why
            wider.discard(path)
            wider.add(path.rpartition(".")[0])
            if model.get_input_embeddings() in set(model.get_submodule(path.rpartition(".")[0]).modules()):
                raise UnsupportedModuleError(reason)


def _probe(model: CausalModel, units: Sequence[_Unit]) -> dict[str, str]:
    """Run the model on a few tokens; return the paths of the modules that do not suffice, and why."""
    with torch.no_grad(), _Calls(units) as calls:
        model(_ids(model), use_cache=False)
    return calls.failed


def _ids(model: CausalModel) -> Tensor:
    """Return the tokens of the probe, (sequences, time)."""
    device = next(model.parameters()).device
    return (torch.arange(_BATCH * _TIME, device=device) % vocabulary_size(model)).view(_BATCH, _TIME)


class _Calls(TorchDispatchMode):
    """Within this context, watches who reads the parameters of some modules, and repeats the calls of some of them.

    Args:
        units: the modules; those of no known kind are run again for one sequence alone.

    Attributes:
        failed: path of each module that does not suffice → why.
    """

    def __init__(self, units: Sequence[_Unit]) -> None:
        super().__init__()
        self._units = units
        self._running: Counter[str] = Counter()
        self._readers: dict[int, list[_Unit]] = {}
        self._handles: list[RemovableHandle] = []
        self.failed: dict[str, str] = {}
        for unit in units:
            held = dict(unit.module.named_parameters(remove_duplicate=False))
            for inside in unit.names:
                self._readers.setdefault(id(held[inside]), []).append(unit)

    def __enter__(self) -> _Calls:
        for unit in self._units:
            self._handles += [
                unit.module.register_forward_pre_hook(self._begin(unit), prepend=True),
                unit.module.register_forward_hook(self._end(unit), with_kwargs=True, always_call=True),
            ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Call the operation, and look at its arguments."""
        for leaf in tree_leaves((args, kwargs)):
            units = self._readers.get(id(leaf), ()) if isinstance(leaf, nn.Parameter) else ()
            if units and not any(self._running[unit.path] for unit in units):
                self._fails(units[0], _message(units[0], _READ))
        return func(*args, **(kwargs or {}))

    def _begin(self, unit: _Unit) -> Callable[..., None]:
        def before(*_: object) -> None:
            self._running[unit.path] += 1

        return before

    def _end(self, unit: _Unit) -> Callable[..., None]:
        def after(_module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
            if isinstance(unit, OtherModule) and output is not None:
                try:
                    Recomputation(unit, _BATCH, (_TIME,)).check_alone(args, kwargs, output)
                except UnsupportedModuleError as error:
                    self._fails(unit, str(error))
            self._running[unit.path] -= 1

        return after

    def _fails(self, unit: _Unit, why: str) -> None:
        self.failed.setdefault(unit.path, why)


def _message(unit: _Unit, what: str) -> str:
    return (
        f'engine="ghost" cannot differentiate {describe(unit.path, unit.module)}, {what} and which owns '
        f'{next(iter(unit.names.values()))}: use engine="loop", or leave it out with params'
    )
