"""Engine ``ghost``: norms and sketches of all sequences from one backward pass, where a probe finds it exact."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from gradstats.gradients.attention import measuring_attention, refuse_mixed_lengths
from gradstats.gradients.engines.experts import ExpertsLayer, RoutedInputs
from gradstats.gradients.engines.layers import (
    BroadcastLayer,
    CallCounts,
    EmbeddingLayer,
    HeadReduction,
    Layer,
    LayerReduction,
    LinearLayer,
    PerSequenceParameters,
    Term,
    WatchedParameters,
    broadcasts,
    may_be_linear,
    supported_layers,
)
from gradstats.gradients.engines.recomputed import OtherModule, Recomputation, refuse_interacting_tokens
from gradstats.gradients.engines.reduction import ChunkResult, Reduction, stack_weightings
from gradstats.gradients.head import sliced_head
from gradstats.gradients.objective import Chunk, Objective
from gradstats.gradients.parameters import (
    ParameterSelection,
    UnsupportedModuleError,
    describe,
    owners,
    refuse_dispatched,
)
from gradstats.gradients.recompute import recomputed_layers
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.model import CausalModel, output_embedding, vocabulary_size
from gradstats.policy.policy import Policy
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
) -> tuple[list[Layer], list[ExpertsLayer], list[OtherModule], list[PerSequenceParameters]]:
    """Return the modules that own selected parameters, as far as a short probe shows.

    The probe runs once for a model, a selection and a set of modules. Sharded models are not probed: the hooks that
    gather their parameters read them outside of every module.
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


def _stand_ins(
    model: CausalModel, selection: ParameterSelection, paths: Collection[str]
) -> list[PerSequenceParameters]:
    if not paths:
        return []
    return [
        PerSequenceParameters(path, module, names) for path, module, names in owners(model, selection) if path in paths
    ]


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
    with torch.no_grad(), _ModuleProbe(units) as calls:
        model(_ids(model), use_cache=False)
    return calls.failed


def _ids(model: CausalModel) -> Tensor:
    """Return the tokens of the probe, (sequences, time)."""
    device = next(model.parameters()).device
    return (torch.arange(_BATCH * _TIME, device=device) % vocabulary_size(model)).view(_BATCH, _TIME)


class _ModuleProbe(TorchDispatchMode):
    """Within this context, watches who reads the parameters of some modules, and repeats the calls of some of them.

    Modules of no known kind are run again for one sequence alone; ``failed`` says why a module, by its path, does not
    suffice.
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

    def __enter__(self) -> _ModuleProbe:
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


def ghost_engine(
    policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None
) -> ChunkResult:
    """Measure all sequences of a chunk from the inputs of each layer and the gradients of its outputs.

    One forward and one backward pass compute gradients of activations only. A sequence's gradient of one layer is
    formed from the two and reduced as soon as the backward pass has passed the layer: the gradient of the whole model
    is never held, neither of one sequence nor of all. Each further weighting costs one more backward pass. Modules of
    no known kind are run again afterwards, one sequence at a time, see :mod:`~gradstats.gradients.engines.recomputed`,
    except those that only multiply by their weight, as routers do.
    """
    model = policy.model
    refuse_mixed_lengths(model, chunk.times)
    refuse_dispatched(model)
    by_weighting = []
    with (
        Objective(model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        without_weight_gradients(model),
        _Recorder(model, *probed_layers(model, selection), chunk) as recorder,
        recorder.recomputed_layers(chunk.recompute),
        torch.enable_grad(),
    ):
        of_head = recorder.of_head
        for number, weights in enumerate(chunk.weights):
            last = number == len(chunk.weights) - 1
            reduction = Reduction(selection, sketch, len(chunk.rows), weights.dtype, weights.device)
            if of_head is not None:
                of_head.begin(reduction, weights)
            if number == 0:
                logprobs, statistics = objective(model, chunk.input_ids, chunk.kept, of_head)
            with recorder.passing_to(reduction, last=last):
                if logprobs.requires_grad:
                    torch.autograd.backward(logprobs, weights, retain_graph=not last)
            by_weighting.append(reduction.result())
    return stack_weightings(chunk, by_weighting, statistics)


@contextmanager
def without_weight_gradients(model: nn.Module) -> Iterator[None]:
    """Let autograd compute gradients of activations only.

    Parameters are found again by name as well: a wrapper may have replaced them in between, and the new ones inherit
    ``requires_grad`` from those that they replace.
    """
    kept = {
        name: parameter for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad
    }
    for parameter in kept.values():
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        held = dict(model.named_parameters(remove_duplicate=False))
        for name, parameter in kept.items():
            for one in (parameter, held.get(name, parameter)):
                one.requires_grad_(True)


class _Recorder:
    """Hooks on layers that keep the inputs of each layer and pass on the gradients of its parameters.

    Attributes:
        of_head: what reduces the gradient of an output embedding in slices; None where there is none.
    """

    def __init__(
        self,
        model: CausalModel,
        layers: list[Layer],
        experts: list[ExpertsLayer],
        others: list[OtherModule],
        stand_ins: list[PerSequenceParameters],
        chunk: Chunk,
    ) -> None:
        sliced = None if sliced_head(model, len(chunk.rows) * chunk.kept) is None else output_embedding(model)
        self._layers = [layer for layer in layers if layer.module is not sliced]
        self._experts = experts
        self._stand_ins = stand_ins
        self._standing = ExitStack()
        self._model = model
        self._batch = len(chunk.rows)
        self._times = (chunk.input_ids.shape[1], chunk.kept + 1)
        self._handles: list[RemovableHandle] = []
        self._target: LayerReduction | None = None
        self._last = False
        self._own_weights: dict[str, nn.Parameter] = {}
        self._recomputed = [(other, Recomputation(other, self._batch, self._times)) for other in others]
        self._recomputing = False
        self._alone = False
        self._replaced: list[nn.Module] = []
        self._is_linear: dict[str, bool] = {}
        self.uses = CallCounts()
        heads = [HeadReduction(layer, self.uses) for layer in layers if layer.module is sliced]
        self.of_head = heads[0] if heads else None

    def __enter__(self) -> _Recorder:
        for layer in self._layers:
            if isinstance(layer, BroadcastLayer):
                self._handles += [
                    layer.module.register_forward_pre_hook(self._replace_weight(layer), with_kwargs=True),
                    layer.module.register_forward_hook(self._restore_weight(layer)),
                ]
            else:
                self._handles.append(layer.module.register_forward_hook(self._record(layer), with_kwargs=True))
        for experts in self._experts:
            self._replace_forward(experts.module, self._routed(experts))
            parent = experts.path.rpartition(".")[0]
            hook = self._check_block(parent)
            self._handles.append(self._model.get_submodule(parent).register_forward_hook(hook, with_kwargs=True))
        for other, recomputation in self._recomputed:
            if may_be_linear(other.module):
                self._replace_forward(other.module, self._watched(other, recomputation))
            else:
                hook = self._record_call(recomputation)
                self._handles.append(other.module.register_forward_hook(hook, with_kwargs=True))
        for one in self._stand_ins:
            self._stand_in(one)
        return self

    @contextmanager
    def recomputed_layers(self, wanted: bool) -> Iterator[None]:
        """Let layers run again in the backward pass: the first pass counts, and the second one records.

        Stand-ins are used by every layer, and their gradients are complete only where all layers run once.
        """
        units = [*self._layers, *self._experts, *(other for other, _ in self._recomputed)]
        selected = {unit.module for unit in units}
        wanted = wanted and not self._stand_ins
        with recomputed_layers(self._model, wanted, selected=selected, bypassed=lambda: self._recomputing):
            yield

    @property
    def _is_first_pass(self) -> bool:
        return self._target is None

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        for layer in self._layers:
            self._restore_weight(layer)()
        for module in self._replaced:
            del module.forward
        self._standing.close()

    def _stand_in(self, one: PerSequenceParameters) -> None:
        def pass_on(name: str) -> Callable[[Tensor], None]:
            return lambda gradient: self._add(iter([(name, gradient.flatten(start_dim=1))]))

        vectors = one.by_sequence(self._batch)
        for attribute, vector in vectors.items():
            vector.register_hook(pass_on(one.names[attribute]))
        self._standing.enter_context(one.replaced(vectors))
        self.uses.n_terms.update(one.terms())

    def _replace_forward(self, module: nn.Module, forward: Callable[..., object]) -> None:
        module.forward = forward
        self._replaced.append(module)

    @contextmanager
    def passing_to(self, reduction: Reduction, *, last: bool) -> Iterator[None]:
        """Add the gradients of the backward pass inside to ``reduction``; the last pass releases the inputs."""
        target = LayerReduction(reduction, self.uses, self.of_head)
        self._target, self._last = target, last
        yield
        target.finish()
        self._target = None
        self._recomputing = True
        try:
            for _, recomputation in self._recomputed:
                recomputation.add_to(reduction, last=last)
        finally:
            self._recomputing = False

    def _record_call(self, recomputation: Recomputation) -> Callable[..., object]:
        def after(_module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            if self._recomputing or not torch.is_grad_enabled():
                return output
            recomputation.once = not self._is_first_pass
            return recomputation.record(args, kwargs, output)

        return after

    def _routed(self, experts: ExpertsLayer) -> Callable[..., object]:
        own: Callable[..., object] = experts.module.forward

        def record(number: int, inputs: RoutedInputs, output: Tensor) -> Tensor:
            entered = [inputs]

            def pass_on(gradient: Tensor) -> None:
                kept = entered.pop() if self._last else entered[0]
                self._add(experts.terms(number, kept, gradient, self._batch))

            if not torch.is_grad_enabled():
                return output
            if not output.requires_grad:
                output.requires_grad_()
            output.register_hook(pass_on)
            return output.clone() if output.is_leaf else output

        def forward(*args: object, **kwargs: object) -> object:
            if self._alone:
                return experts.forward(args, kwargs, 1, self._times, lambda _number, _inputs, output: output)
            if self._recomputing:
                return own(*args, **kwargs)
            if self._is_first_pass:
                self.uses.n_terms.update(experts.term_kinds())
            return experts.forward(args, kwargs, self._batch, self._times, record)

        return forward

    def _check_block(self, path: str) -> Callable[..., None]:
        def after(block: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
            # A block with further inputs does more than a mixture: the layer of the model, with its attention.
            if self._recomputing or not self._is_first_pass or len(args) + len(kwargs) > 1:
                return
            self._alone = self._recomputing = True
            try:
                own = type(block).forward.__get__(block)
                refuse_interacting_tokens(path, block, args, kwargs, output, self._batch, self._times, own)
            finally:
                self._alone = self._recomputing = False

        return after

    def _watched(self, other: OtherModule, recomputation: Recomputation) -> Callable[..., object]:
        own: Callable[..., object] = other.module.forward
        layer = LinearLayer(other.path, other.module, other.names)

        def forward(*args: object, **kwargs: object) -> object:
            if self._recomputing:
                return own(*args, **kwargs)
            with WatchedParameters(other.module) as watched:
                output = own(*args, **kwargs)
            is_linear = bool(watched.products) and not watched.other_use
            if not self._is_linear.setdefault(other.path, is_linear):
                if not torch.is_grad_enabled():
                    return output
                recomputation.once = not self._is_first_pass
                return recomputation.record(args, kwargs, output)
            if not is_linear:
                raise UnsupportedModuleError(
                    f'engine="ghost" cannot differentiate {describe(other.path, other.module)}, which uses its weight '
                    'in another way at each call: use engine="loop"'
                )
            for inputs, found in watched.products:
                self._record_output(layer, inputs, found)
            if self._is_first_pass:
                refuse_interacting_tokens(other.path, other.module, args, kwargs, output, self._batch, self._times, own)
            return output

        return forward

    def _record(self, layer: Layer) -> Callable[..., Tensor]:
        def after(_module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: Tensor) -> Tensor:
            if self._recomputing:
                return output
            if isinstance(layer, EmbeddingLayer):
                output = layer.per_token(output, self._batch, self._times)
            if torch.is_grad_enabled() and not output.requires_grad:
                output = output.requires_grad_()  # the first layer that the backward pass has to reach
            self._record_output(layer, first_input(args, kwargs).detach(), output)
            # What follows may change the output in place, which autograd forbids for a leaf.
            return output.clone() if output.is_leaf else output

        return after

    def _record_output(self, layer: Layer, inputs: Tensor, output: Tensor) -> None:
        entered: list[Tensor] = [layer.per_token(inputs, self._batch, self._times)]
        self._count(layer, entered[0])
        if not torch.is_grad_enabled():
            return

        def pass_on(gradient: Tensor) -> None:
            left = layer.per_token(gradient, self._batch, self._times)
            self._add(layer.terms(entered.pop() if self._last else entered[0], left))

        output.register_hook(pass_on)

    def _count(self, layer: Layer, inputs: Tensor) -> None:
        if self._target is None:
            self.uses.count(layer, inputs)
        else:
            self._target.sharing.count(layer, inputs)

    def _replace_weight(self, layer: BroadcastLayer) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            if self._recomputing:
                return
            inputs = first_input(args, kwargs)
            self._count(layer, inputs)
            if not torch.is_grad_enabled():
                return
            stand_in = layer.stand_in(inputs, self._batch, self._times)
            stand_in.register_hook(lambda gradient: self._add(layer.terms(inputs, gradient)))
            self._own_weights[layer.path] = module._parameters["weight"]  # pyright: ignore[reportArgumentType]
            module._parameters["weight"] = stand_in  # pyright: ignore[reportArgumentType]

        return before

    def _restore_weight(self, layer: Layer) -> Callable[..., None]:
        def after(*_: object) -> None:
            if layer.path in self._own_weights:
                layer.module._parameters["weight"] = self._own_weights.pop(layer.path)

        return after

    def _add(self, terms: Iterator[tuple[str, Term]]) -> None:
        assert self._target is not None
        with torch.no_grad():
            for name, term in terms:
                self._target.add(name, term)


def first_input(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
    """Return the input of a module that is called with one tensor, by position or by name."""
    return cast("Tensor", args[0] if args else next(iter(kwargs.values())))
