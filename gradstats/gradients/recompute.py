"""Layers that run again in the backward pass, so that the activations of one layer at a time are held."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import checkpoint

from gradstats.config.options import TOKEN_BUDGET
from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.head import replaced_forward
from gradstats.gradients.memory import ACTIVATION_COPIES, activation_size
from gradstats.gradients.parameters import UnsupportedModuleError, describe
from gradstats.measurement.disk_size import GIB
from gradstats.policy.memory import is_accelerator, planned_memory_gib
from gradstats.policy.model import CausalModel, vocabulary_size
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import is_sharded, layer_lists, reshard

# Tokens of the probe.
_PROBE = 8
# Of an accelerator's memory, weights and activations together take this share; the rest holds slices of logits and of
# gradients, and what is already there. More tokens at once no longer make it faster.
_SHARE_OF_ACCELERATOR, _MOST_TOKENS = 0.75, 2**16
# Arguments of a layer through which it cannot give tensors to other layers.
_PLAIN = (Tensor, bool, int, float, str, torch.dtype, torch.device, type(None))


@contextmanager
def recomputed_layers(
    model: nn.Module,
    wanted: bool,
    *,
    selected: Collection[nn.Module] | None = None,
    bypassed: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Let the layers of a model run again in backward passes.

    Args:
        model: the model.
        wanted: False to change nothing.
        selected: for a backward pass that computes gradients of activations only, the modules whose parameters are
            selected: the first pass is then without gradients altogether, so that hooks which record inputs do so when
            the layer runs again. None for ordinary autograd.
        bypassed: whether a layer is to run as it is, at the time of its call.
    """
    with ExitStack() as stack:
        for _, layer in _layers(model) if wanted else ():
            holds_selected = selected is not None and not set(layer.modules()).isdisjoint(selected)
            stack.enter_context(
                replaced_forward(layer, _run_again(layer.forward, selected is not None, holds_selected, bypassed))
            )
        yield


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return path and module of each layer that has modules inside and its own forward method."""
    found: dict[int, tuple[str, nn.Module]] = {}
    for path, layers in layer_lists(model):
        for number, layer in enumerate(layers):
            if any(layer.children()) and "forward" not in vars(layer):
                found.setdefault(id(layer), (f"{path}.{number}", layer))
    return list(found.values())


def _run_again(
    own: Callable[..., Any], in_two_passes: bool, holds_selected: bool, bypassed: Callable[[], bool]
) -> Callable[..., Any]:
    def forward(*args: object, **kwargs: object) -> object:
        leaves, structure = tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if _is_floating(leaf)]
        tensors = [leaves[place] for place in places]
        if bypassed() or not torch.is_grad_enabled() or not tensors:
            return own(*args, **kwargs)
        if in_two_passes and not any(tensor.requires_grad for tensor in tensors):
            if not holds_selected:
                return own(*args, **kwargs)
            first = places[0]  # of the first layer that the backward pass has to reach
            leaves[first] = tensors[0].detach().requires_grad_()
            args, kwargs = tree_unflatten(leaves, structure)
        again = partial(checkpoint, use_reentrant=in_two_passes, preserve_rng_state=False)
        return _on_tensors(own, args, kwargs, again)

    return forward


def _on_tensors(
    own: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object], again: Callable[..., Any]
) -> object:
    """Call a layer through what is given the function of its floating tensors, and these."""
    leaves, structure = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if _is_floating(leaf)]
    structures = []

    def run(*given: Tensor) -> tuple[Any, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        own_args, own_kwargs = tree_unflatten(filled, structure)
        outputs, of_outputs = tree_flatten(own(*own_args, **own_kwargs))
        structures.append(of_outputs)
        return tuple(outputs)

    outputs = again(run, *(leaves[place] for place in places))
    return tree_unflatten(outputs, structures[0])


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


@contextmanager
def layers_in_float32(
    model: nn.Module,
    wanted: Collection[nn.Parameter] = (),
    differentiated: Callable[[dict[nn.Parameter, Tensor]], None] = lambda found: None,
) -> Iterator[Tensor]:
    """Let a model compute in float32, one layer at a time: no more than one is wider at once, beside what is no layer.

    In a backward pass each layer runs again. Yields a tensor whose gradient takes the pass through all layers.

    Args:
        model: the model, whose parameters are put back as they were.
        wanted: parameters of layers whose gradients are computed.
        differentiated: is given these, a layer at a time.
    """
    layers = [layer for _, layer in _layers(model)]
    inside = {parameter for layer in layers for parameter in layer.parameters()}
    with ExitStack() as stack:
        others = [parameter for parameter in model.parameters() if parameter not in inside]
        stack.enter_context(_widened(others))
        anchor = torch.zeros((), device=next(model.parameters()).device, requires_grad=True)
        for layer in layers:
            parameters = [*layer.parameters()]
            chosen = [parameter for parameter in parameters if parameter in wanted]
            turn = partial(_FloatTurn.apply, parameters, chosen, differentiated, anchor)
            stack.enter_context(replaced_forward(layer, _in_turn(layer.forward, parameters, turn)))
        yield anchor


@contextmanager
def _widened(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    kept = [parameter.data for parameter in parameters]
    try:
        for parameter in parameters:
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
        yield
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data


def _in_turn(
    own: Callable[..., Any], parameters: Sequence[nn.Parameter], turn: Callable[..., tuple[Any, ...]]
) -> Callable[..., Any]:
    def forward(*args: object, **kwargs: object) -> object:
        if torch.is_grad_enabled():
            return _on_tensors(own, args, kwargs, turn)
        with _widened(parameters):
            return own(*args, **kwargs)

    return forward


class _FloatTurn(torch.autograd.Function):
    """A layer whose parameters are float32 while it runs, and while it runs again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        parameters: list[nn.Parameter],
        chosen: list[nn.Parameter],
        differentiated: Callable[[dict[nn.Parameter, Tensor]], None],
        anchor: Tensor,
        run: Callable[..., tuple[Any, ...]],
        *tensors: Tensor,
    ) -> tuple[Any, ...]:
        """Run the layer."""
        ctx.given = parameters, chosen, differentiated, run
        ctx.save_for_backward(*tensors)
        with _widened(parameters):
            return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run it again, give the gradients of its parameters away, and return those of what went in."""
        parameters, chosen, differentiated, run = ctx.given
        tensors = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with _widened(parameters), torch.enable_grad():
            pairs = zip(run(*tensors), upstream, strict=True)
            reached = [
                (out, up) for out, up in pairs if up is not None and isinstance(out, Tensor) and out.requires_grad
            ]
            outputs, starts = zip(*reached, strict=True)
            found = torch.autograd.grad(outputs, [*chosen, *tensors], starts, allow_unused=True)
        of_chosen = zip(chosen, found, strict=False)
        differentiated({one: gradient for one, gradient in of_chosen if gradient is not None})
        return (*[None] * 5, *found[len(chosen) :])


_known: weakref.WeakKeyDictionary[nn.Module, dict[bool, str]] = weakref.WeakKeyDictionary()


def why_not_twice(model: CausalModel) -> str:
    """Return why the layers of a model cannot be run twice, from a short probe; empty where they can."""
    known = _known.setdefault(model, {})
    if model.training not in known:
        known[model.training] = _probed(model)
        if is_sharded(model):
            reshard(model)
    return known[model.training]


def _probed(model: CausalModel) -> str:
    layers = _layers(model)
    if not layers:
        return "the model has no list of layers"
    failed: list[str] = []

    def twice(path: str, layer: nn.Module) -> Callable[..., object]:
        own = layer.forward

        def forward(*args: object, **kwargs: object) -> object:
            def state() -> list[tuple[int, int]]:
                tensors = [*layer.buffers(), *tree_leaves((args, kwargs))]
                return [(id(one), one._version) for one in tensors if isinstance(one, Tensor)]

            shared = next((one for one in tree_leaves((args, kwargs)) if not isinstance(one, _PLAIN)), None)
            if shared is not None:
                failed.append(
                    f"{describe(path, layer)} may exchange tensors with others through {type(shared).__name__}"
                )
                return own(*args, **kwargs)
            before = state()
            first = own(*args, **kwargs)
            if state() != before:
                failed.append(f"{describe(path, layer)} changes its state or its inputs when it runs")
                return first
            outputs = zip(tree_leaves(first), tree_leaves(own(*args, **kwargs)), strict=True)
            if not all(_equal(one, again) for one, again in outputs):
                failed.append(
                    f"{describe(path, layer)} gives another output the second time (dropout, or routing with a state)"
                )
            return first

        return forward

    ids = torch.arange(_PROBE, device=next(model.parameters()).device)[None] % vocabulary_size(model)
    with ExitStack() as stack, torch.no_grad():
        for path, layer in layers:
            stack.enter_context(replaced_forward(layer, twice(path, layer)))
        model(ids, use_cache=False)
    return failed[0] if failed else ""


def _equal(one: object, again: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(again, Tensor):
        return True
    return one.shape == again.shape and torch.allclose(one.double(), again.double(), rtol=1e-4, equal_nan=True)


@dataclass(frozen=True)
class RecomputeRule:
    """For which chunks the layers run again in the backward pass.

    Attributes:
        wanted: "auto", "on" or "off".
        memory_gib: the activations that are held; where it is None, a quarter of the machine's memory, on an
            accelerator what three quarters of its memory leave beside the weights.
    """

    policy: Policy
    wanted: str = "auto"
    memory_gib: float | None = None

    @classmethod
    def of(cls, policy: Policy, wanted: str, memory_gib: float | None, engine: str) -> RecomputeRule:
        """Return the rule of a measurement; refuse layers that cannot run twice where they would have to."""
        rule = cls(policy, wanted, memory_gib)
        if wanted == "on" and engine == "vmap":
            raise UnsupportedModuleError(
                'recompute is "on", and engine="vmap" cannot run layers again: use engine="ghost" or engine="loop", or '
                'recompute="off"'
            )
        if wanted == "on" and (why := rule.why_not):
            switch_off = "call model.eval(), or " if policy.model.training else ""
            raise UnsupportedModuleError(f'recompute is "on", but {why}: {switch_off}use recompute="off"')
        if is_sharded(policy.model) and wanted == "auto":
            _ = rule.why_not  # ranks that hold a model together have to probe it together
        return rule

    @cached_property
    def why_not(self) -> str:
        """Why the layers cannot run twice; empty where they can."""
        with measuring_attention(self.policy, batched=False):
            return why_not_twice(self.policy.model)

    @cached_property
    def _activations(self) -> Callable[[int], float]:
        return activation_size(self.policy)

    @cached_property
    def most_bytes(self) -> float:
        """Bytes of activations that are held before layers run again."""
        if self.memory_gib is not None:
            return self.memory_gib * GIB
        total = planned_memory_gib(self.policy.device) * GIB
        if not is_accelerator(self.policy.device):
            return total / 4
        weights = sum(one.numel() * one.element_size() for one in self.policy.model.parameters())
        return max(_SHARE_OF_ACCELERATOR * total - weights, total / 4)

    @property
    def token_budget(self) -> int:
        """How many tokens go through the model at once by default: on an accelerator, as its memory holds.

        It depends on the model and the device's total memory alone, so that a measurement that is resumed forms the
        same chunks; on a GPU that other processes use, also on how often it is halved to what they leave.
        """
        if not is_accelerator(self.policy.device):
            return TOKEN_BUDGET
        of_token = self._bound(1) if is_sharded(self.policy.model) else self._activations(1)
        return max(1, min(_MOST_TOKENS, int(self.most_bytes // (ACTIVATION_COPIES * of_token))))

    def sparing(self) -> RecomputeRule:
        """Return the rule for when memory has run out: layers always run again, where they may."""
        return replace(self, wanted="on") if self.wanted == "auto" and not self.why_not else self

    def __call__(self, n_sequences: int, time: int) -> bool:
        """Return whether the layers run again for a chunk of ``n_sequences`` of ``time`` tokens."""
        if self.wanted == "off":
            return False
        needed = self.wanted == "on" or self._checkpoints_itself
        if not needed and n_sequences * self._bound(time) > self.most_bytes:
            # Of a sharded model, what autograd keeps cannot be told from gathered weights.
            kept = self._bound if is_sharded(self.policy.model) else self._activations
            needed = ACTIVATION_COPIES * n_sequences * kept(time) > self.most_bytes
        return needed and not self.why_not

    @property
    def _checkpoints_itself(self) -> bool:
        model = self.policy.model
        return model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules())

    def _bound(self, time: int) -> float:
        """Return more bytes than the activations of a sequence take, without running the model."""
        model = self.policy.model
        widths = sum(sum(parameter.shape) for parameter in model.parameters() if parameter.ndim > 1)
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", None) or 0
        rows = (getattr(config, "num_hidden_layers", None) or 0) * (heads if isinstance(heads, int) else max(heads))
        return 4.0 * max(self.policy.dtype.itemsize, 4) * time * (widths + rows * time)
