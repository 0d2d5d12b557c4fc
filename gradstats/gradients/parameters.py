"""The differentiated parameters of a model: which are selected, in which blocks, and their order in optimizer states.

The ``state_dict`` of a torch optimizer numbers parameters in the order in which its groups list them, and records no
names. Trainers list the trainable parameters of the model either all together or, as the Trainer of transformers does,
first those with weight decay and then those without, where rules about names and modules decide; each of these orders
is tried, and the shapes of the saved tensors decide between them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradstats.config.sections import MeasurementSection
from gradstats.measurement.measurement import split_layer
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import reshard
from gradstats.system.patterns import matches


class UnsupportedModuleError(ValueError):
    """An engine cannot differentiate a module of the model; the message names the module and the remedy."""


def describe(path: str, module: nn.Module) -> str:
    """Return the path and class of a module, for messages."""
    return f"{path or 'the model itself'} ({type(module).__name__})"


Blocks = str | Mapping[str, str]

_KINDS = (
    ("head", re.compile(r"lm_head|embed_out")),
    ("embedding", re.compile(r"embed|\bwte\b|\bwpe\b")),
    ("norm", re.compile(r"norm|\bln_\w+|layernorm")),
    ("attention", re.compile(r"attn|attention")),
    ("mlp", re.compile(r"mlp|feed_forward|ffn|experts")),
)


@dataclass(frozen=True)
class ParameterSelection:
    """The differentiated parameters of a model, each in one named block."""

    # name → tensor, in the model's order; tied weights appear once, under their first name
    parameters: dict[str, torch.Tensor]
    block_names: tuple[str, ...]
    block_index: dict[str, int]  # for each parameter, the position of its block in block_names
    # the further names of tied weights → the name in parameters
    other_names: Mapping[str, str] = field(default_factory=dict)
    # for each parameter, P of its shape, by which its gradients are multiplied before anything is computed from them,
    # see AdamMetric; empty in the Euclidean metric
    preconditioner: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def name_of(self, name: str) -> str | None:
        """Return the selected parameter that has a name in the model, under its first name; None for any other."""
        name = self.other_names.get(name, name)
        return name if name in self.parameters else None

    def by_block(self, by_parameter: Float[np.ndarray, "... parameters"]) -> Float[np.ndarray, "... blocks"]:
        """Add up what was found for each parameter over the parameters of each block."""
        total = np.zeros((*by_parameter.shape[:-1], len(self.block_names)))
        for place, name in enumerate(self.parameters):
            total[..., self.block_index[name]] += by_parameter[..., place]
        return total

    def by_proxy(self, by_parameter: Float[np.ndarray, "batch parameters"]) -> dict[str, np.ndarray]:
        """Return squared norms of the norm layers' gradients and the head's, (batch,) each, of what is selected.

        A head that is tied to the input embedding has no gradient of its own.
        """
        parts = {"norm_layers": "norm", "head": "head"}
        chosen = {
            proxy: [place for place, name in enumerate(self.parameters) if _block(name, "kind") == kind]
            for proxy, kind in parts.items()
        }
        return {proxy: by_parameter[:, places].sum(axis=1) for proxy, places in chosen.items() if places}

    @property
    def n_parameters(self) -> int:
        """Number of differentiated scalars."""
        return sum(parameter.numel() for parameter in self.parameters.values())


def select_parameters(model: nn.Module, params: str | None = None, blocks: Blocks = "layer") -> ParameterSelection:
    """Choose parameters by a regular expression and name their blocks."""
    reshard(model)
    trainable: dict[str, torch.Tensor] = {
        name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad
    }
    chosen = trainable
    if params is not None:
        found = matches(params, list(trainable), "params")
        chosen = {name: tensor for (name, tensor), spans in zip(trainable.items(), found, strict=True) if spans}
    if not chosen:
        some = ", ".join(list(trainable)[:4]) or "none: every parameter is frozen (requires_grad=False)"
        raise ValueError(f"params={params!r} matches no trainable parameter; some that exist: {some}")
    names = _named_blocks(list(chosen), blocks)
    ordered = tuple(dict.fromkeys(names.values()))
    first_names = {id(tensor): name for name, tensor in chosen.items()}
    other_names = {
        name: first_names[id(tensor)]
        for name, tensor in model.named_parameters(remove_duplicate=False)
        if id(tensor) in first_names and name not in chosen
    }
    return ParameterSelection(
        chosen, ordered, {name: ordered.index(block) for name, block in names.items()}, other_names
    )


def n_block_sketches(policy: Policy, section: MeasurementSection) -> int:
    """Return how many blocks a measurement keeps sketches of, beside those of the whole."""
    if not section.block_sketches:
        return 0
    return len(select_parameters(policy.model, section.params, section.blocks).block_names)


def _named_blocks(names: list[str], blocks: Blocks) -> dict[str, str]:
    """Return the block of each parameter: that of the first pattern that matches, where patterns are given."""
    if isinstance(blocks, str):
        return {name: _block(name, blocks) for name in names}
    found: dict[str, str] = {}
    for pattern, label in blocks.items():
        for name, spans in zip(names, matches(pattern, names, "blocks"), strict=True):
            if spans:
                found.setdefault(name, label)
    return {name: found.get(name, "other") for name in names}


def _block(name: str, blocks: str) -> str:
    if blocks == "parameter":
        return name
    if blocks == "kind":
        return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
    if blocks == "layer":
        layer = split_layer(name)
        if layer:
            return f"layers.{layer[0]}"
        kind = next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
        return "final norm" if kind == "norm" else kind
    raise ValueError(
        f'blocks is {blocks!r}: choose "layer", "kind", "parameter", or give a mapping of patterns to names'
    )


_REMEDY = (
    "load the model on one device, without device_map; or divide one that is larger than a GPU over several by "
    "ranks_per_worker (in Python load_policy(…, sharded=True) on every rank)"
)


def owners(model: nn.Module, selection: ParameterSelection) -> Iterator[tuple[str, nn.Module, dict[str, str]]]:
    """Yield the modules that own selected parameters."""
    found: set[str] = set()
    tied = {id(tensor): name for name, tensor in model.named_parameters() if name in selection.parameters}
    for path, module in model.named_modules():
        names = {}
        for attribute, tensor in module._parameters.items():
            name = selection.name_of(f"{path}.{attribute}" if path else attribute) or tied.get(id(tensor))
            if name is not None and tensor is not None:
                names[attribute] = name
        if names:
            found.update(names.values())
            yield path, module, names
    for name in selection.parameters:
        if name not in found:
            raise _missing(model, name)


def held_parameters(model: nn.Module, selection: ParameterSelection) -> dict[str, Tensor]:
    """Return the selected parameters that the model holds now, name → tensor."""
    refuse_dispatched(model)
    held: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for name in selection.parameters:
        if name not in held:
            raise _missing(model, name)
    return {name: held[name] for name in selection.parameters}


def whole_parameters(model: nn.Module, selection: ParameterSelection) -> dict[str, Tensor]:
    """Return the selected parameters for autograd, which can differentiate whole ones only, name → tensor."""
    held = held_parameters(model, selection)
    for name, tensor in held.items():
        if isinstance(tensor, DTensor):
            raise UnsupportedModuleError(
                f'the parameter {name} of {_owner(model, name)} is sharded, and only engine="ghost" without '
                "token_probes works without whole parameters: use it, or measure a model that is not sharded"
            )
    return held


def refuse_dispatched(model: nn.Module) -> None:
    """Refuse a model whose weights are offloaded or on several devices, as accelerate dispatches them.

    Weights that are offloaded are loaded into other tensors during each forward pass.
    """
    for name, tensor in model.named_parameters():
        if tensor.is_meta:
            raise UnsupportedModuleError(
                f"the parameter {name} of {_owner(model, name)} is offloaded (on the meta device, by device_map or "
                f"cpu_offload), and gradients of offloaded weights cannot be checked: {_REMEDY}"
            )
    devices = {str(tensor.device) for tensor in model.parameters()}
    mapped = {str(device) for device in getattr(model, "hf_device_map", {}).values()}
    several = devices if len(devices) > 1 else mapped
    if len(several) > 1:
        raise UnsupportedModuleError(
            f"the weights are on several devices ({', '.join(sorted(several))}, by device_map), and an engine works on "
            f"one: {_REMEDY}"
        )


def refuse_replaced(model: nn.Module, held: dict[str, Tensor], result: Tensor) -> None:
    """Refuse a forward pass that computed with other tensors than the model's parameters.

    Autograd would return zero for the parameters that were replaced.
    """
    leaves = _leaves(result)
    known = {id(tensor) for tensor in model.parameters()}
    foreign = {leaf.shape for place, leaf in leaves.items() if place not in known}
    for name, tensor in held.items():
        if id(tensor) not in leaves and tensor.shape in foreign:
            raise UnsupportedModuleError(
                f"the forward pass replaces the parameter {name} of {_owner(model, name)} by another tensor, so that "
                "autograd cannot differentiate it: measure a model whose weights are neither sharded nor offloaded"
            )


def _leaves(result: Tensor) -> dict[int, Tensor]:
    """Return the leaves of an autograd graph by their identity."""
    found: dict[int, Tensor] = {}
    waiting = [result.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return found


def _owner(model: nn.Module, name: str) -> str:
    path = name.rpartition(".")[0]
    return describe(path, dict(model.named_modules(remove_duplicate=False))[path])


def _missing(model: nn.Module, name: str) -> UnsupportedModuleError:
    path, _, attribute = name.rpartition(".")
    module = dict(model.named_modules(remove_duplicate=False)).get(path)
    where = f"the model has no module {path}" if module is None else f"{describe(path, module)} has no {attribute}"
    return UnsupportedModuleError(
        f"the selected parameter {name} belongs to no layer of the model, since {where}: select the parameters of the "
        "model as it is now"
    )


State = Mapping[str, Any]

# Rules of the Trainer of transformers: since 4.53 by names, before by modules and "bias".
_NO_DECAY_NAMES = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
# What wrappers put into the names of parameters.
_WRAPPERS = re.compile(r"(^|\.)(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def named_states(saved: Mapping[str, Any], model: nn.Module) -> tuple[dict[str, State], dict[str, State]]:
    """Return the state and the group of each parameter, by its name in the model."""
    states: Mapping[Any, State] = saved["state"]
    groups: Sequence[Mapping[str, Any]] = saved.get("param_groups") or []
    recorded = [name for group in groups for name in group.get("param_names", ())]
    keys = [key for group in groups for key in group.get("params", ())] or list(states)
    if any(isinstance(key, str) for key in states):
        names = {key: str(key) for key in keys}
    elif len(recorded) == len(keys):
        names = dict(zip(keys, recorded, strict=True))
    else:
        names = _numbered(states, [list(group.get("params", ())) for group in groups] or [keys], model)
    own = own_names(names.values(), model)
    by_name = {own[name]: states[key] for key, name in names.items() if key in states}
    of_group = {own[names[key]]: group for group in groups for key in group.get("params", ())}
    return by_name, of_group


def own_names(names: Collection[str], model: nn.Module) -> dict[str, str]:
    """Return the name in the model for each name, without what a wrapper has put into it."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def own(name: str) -> str:
        while name not in known and _WRAPPERS.search(name):
            name = _WRAPPERS.sub(r"\1", name, count=1)
        return name

    return {name: own(name) for name in names}


def _numbered(states: Mapping[Any, State], groups: list[list[Any]], model: nn.Module) -> dict[Any, str]:
    """Return number → name, by the order of parameters that has the shapes of the state."""
    keys = [key for group in groups for key in group]
    trainable = {name: tuple(tensor.shape) for name, tensor in model.named_parameters() if tensor.requires_grad}
    if len(keys) != len(trainable):
        raise ValueError(
            f"the optimizer has {len(keys)} parameters, and the model {len(trainable)} that are trained: load the "
            "model that it optimised, with the same adapter, or give second moments by name as a safetensors file"
        )
    fitting, mismatch = [], ""
    for order in _orders(model, list(trainable), [len(group) for group in groups]):
        wrong = next(
            (
                f"{name} has the shape {trainable[name]}, and the state {shape} in its place"
                for key, name in zip(keys, order, strict=True)
                if (shape := _shape(states.get(key, {}))) not in (None, trainable[name])
            ),
            "",
        )
        if wrong:
            mismatch = mismatch or wrong
        elif order not in fitting:
            fitting.append(order)
    if not fitting:
        reason = mismatch or "its groups have other sizes than those of known trainers"
        raise ValueError(
            f"the optimizer's state does not fit the model: {reason}; load the model that it optimised, or give second "
            "moments by name as a safetensors file"
        )
    if len(fitting) > 1:
        number = next(i for i, names in enumerate(zip(*fitting, strict=True)) if len(set(names)) > 1)
        raise ValueError(
            f"the optimizer's state fits the model in {len(fitting)} ways: its entry {number} could be "
            f"{' or '.join(dict.fromkeys(order[number] for order in fitting))}; give second moments by name as a "
            "safetensors file"
        )
    return dict(zip(keys, fitting[0], strict=True))


def _orders(model: nn.Module, names: list[str], sizes: list[int]) -> Iterator[list[str]]:
    """Yield the orders that trainers use, with groups of the given sizes."""
    filled = [size for size in sizes if size]
    if len(filled) <= 1:
        yield names
        return
    if len(filled) > 2:
        return
    for without_decay in _without_decay(model, names):
        decayed = [name for name in names if name not in without_decay]
        others = [name for name in names if name in without_decay]
        for first, second in ((decayed, others), (others, decayed)):
            if [len(first), len(second)] == filled:
                yield [*first, *second]


def _without_decay(model: nn.Module, names: list[str]) -> Iterator[set[str]]:
    """Yield the parameters that are not decayed by each of the usual rules."""
    in_layer_norm = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters(recurse=False)
    }
    in_norm = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if type(module).__name__.endswith("Norm")
        for name, _ in module.named_parameters(recurse=False)
    }
    few_axes = {name for name, tensor in model.named_parameters() if tensor.ndim < 2}
    yield {name for name in names if name in in_layer_norm or _NO_DECAY_NAMES.search(name.lower())}
    yield {name for name in names if name in in_norm or "bias" in name}
    yield {name for name in names if name in in_layer_norm or "bias" in name}
    yield {name for name in names if name in few_axes}


def _shape(state: State) -> tuple[int, ...] | None:
    """Return the shape of the state's moments, None where there are none."""
    for name in ("exp_avg_sq", "exp_avg"):
        if isinstance(state.get(name), Tensor):
            return tuple(state[name].shape)
    return None
