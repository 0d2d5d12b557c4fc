"""Engine ``ghost``: squared norms and sketches of all sequences' gradients in one ordinary backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.layer_reduction import LayerReduction, Uses
from gradstats.gradients.engines.layers import BroadcastLayer, EmbeddingLayer, Layer, supported_layers
from gradstats.gradients.engines.recomputed import OtherModule, Recomputation
from gradstats.gradients.engines.reduction import ChunkResult, Reduction, stack_weightings
from gradstats.gradients.engines.unsupported import UnsupportedModuleError
from gradstats.gradients.held_parameters import refuse_offloaded
from gradstats.gradients.objective import Chunk, Objective
from gradstats.gradients.rotary import refuse_mixed_lengths
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy


def ghost_engine(
    policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None
) -> ChunkResult:
    """Measure all sequences of a chunk from the inputs of each layer and the gradients of its outputs.

    One forward and one backward pass compute gradients of activations only. A sequence's gradient of one layer is
    formed from the two and reduced as soon as the backward pass has passed the layer: the gradient of the whole model
    is never held, neither of one sequence nor of all. Each further weighting costs one more backward pass. Modules of
    no known kind are run again afterwards, one sequence at a time, see :mod:`~gradstats.gradients.engines.recomputed`.

    Raises:
        UnsupportedModuleError: for a module that has to be known and is not, for a selected parameter without a
            module, for an offloaded model, and where gradient checkpointing is active.
    """
    model = policy.model
    refuse_mixed_lengths(model, chunk.times)
    refuse_offloaded(model)
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise UnsupportedModuleError(
            'engine="ghost" cannot go through gradient checkpointing: call model.eval(), or use engine="loop"'
        )
    recorder = _Recorder(*supported_layers(model, selection), chunk)
    by_weighting = []
    with (
        Objective(model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        without_weight_gradients(model),
        recorder,
        torch.enable_grad(),
    ):
        logprobs, statistics = objective(model, chunk.input_ids, chunk.kept)
        for number, weights in enumerate(chunk.weights):
            last = number == len(chunk.weights) - 1
            reduction = Reduction(selection, sketch, len(chunk.rows), logprobs.dtype, logprobs.device)
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
        uses: the modules that the forward pass has called so far.
    """

    def __init__(self, layers: list[Layer], others: list[OtherModule], chunk: Chunk) -> None:
        self._layers = layers
        self._batch = len(chunk.rows)
        self._times = (chunk.input_ids.shape[1], chunk.kept + 1)
        self._handles: list[RemovableHandle] = []
        self._target: LayerReduction | None = None
        self._last = False
        self._own_weights: dict[str, nn.Parameter] = {}
        self._recomputed = [(other.module, Recomputation(other, self._batch, self._times)) for other in others]
        self._recomputing = False
        self.uses = Uses()

    def __enter__(self) -> _Recorder:
        for layer in self._layers:
            if isinstance(layer, BroadcastLayer):
                self._handles += [
                    layer.module.register_forward_pre_hook(self._replace_weight(layer), with_kwargs=True),
                    layer.module.register_forward_hook(self._restore_weight(layer)),
                ]
            else:
                self._handles.append(layer.module.register_forward_hook(self._record(layer), with_kwargs=True))
        for module, recomputation in self._recomputed:
            self._handles.append(module.register_forward_hook(self._record_call(recomputation), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        for layer in self._layers:
            if layer.path in self._own_weights:
                self._restore_weight(layer)()

    @contextmanager
    def passing_to(self, reduction: Reduction, *, last: bool) -> Iterator[None]:
        """Add the gradients of the backward pass inside to ``reduction``; the last pass releases the inputs."""
        target = LayerReduction(reduction, self.uses)
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
            return output if self._recomputing else recomputation.record(args, kwargs, output)

        return after

    def _record(self, layer: Layer) -> Callable[..., Tensor]:
        def after(_module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: Tensor) -> Tensor:
            if self._recomputing:
                return output
            entered: list[Tensor] = [layer.per_token(first_input(args, kwargs).detach(), self._batch, self._times)]
            if isinstance(layer, EmbeddingLayer):
                output = layer.per_token(output, self._batch, self._times)
            if not output.requires_grad:  # the first layer that the backward pass has to reach
                output = output.requires_grad_()
            self.uses.count(layer, entered[0])

            def pass_on(gradient: Tensor) -> None:
                left = layer.per_token(gradient, self._batch, self._times)
                inputs = entered.pop() if self._last else entered[0]
                self._pass_on(layer, inputs, left)

            output.register_hook(pass_on)
            return output

        return after

    def _replace_weight(self, layer: BroadcastLayer) -> Callable[..., None]:
        def before(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            if self._recomputing:
                return
            inputs = first_input(args, kwargs)
            stand_in = layer.stand_in(inputs, self._batch, self._times)
            stand_in.register_hook(lambda gradient: self._pass_on(layer, inputs, gradient))
            self._own_weights[layer.path] = module._parameters["weight"]  # pyright: ignore[reportArgumentType]
            module._parameters["weight"] = stand_in  # pyright: ignore[reportArgumentType]
            self.uses.count(layer, inputs)

        return before

    def _restore_weight(self, layer: Layer) -> Callable[..., None]:
        def after(*_: object) -> None:
            if self._recomputing:
                return
            layer.module._parameters["weight"] = self._own_weights.pop(layer.path)

        return after

    def _pass_on(self, layer: Layer, inputs: Tensor, gradient: Tensor) -> None:
        assert self._target is not None
        with torch.no_grad():
            for name, term in layer.terms(inputs, gradient):
                self._target.add(name, term)


def first_input(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
    """Return the input of a module that is called with one tensor, by position or by name."""
    return cast("Tensor", args[0] if args else next(iter(kwargs.values())))
