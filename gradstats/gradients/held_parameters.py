"""The selected parameters as a model holds them at the moment, found by name.

A selection outlives the tensors that it was made from: sharding and offloading replace a module's parameters before and
after each forward pass, and after an error in between some remain replaced. Their names stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.unsupported import UnsupportedModuleError, describe

_REMEDY = (
    "load the model on one device, without device_map; or divide one that is larger than a GPU over several by "
    "ranks_per_worker (in Python load_policy(…, sharded=True) on every rank)"
)


def owners(model: nn.Module, selection: ParameterSelection) -> Iterator[tuple[str, nn.Module, dict[str, str]]]:
    """Yield the modules that own selected parameters.

    Args:
        model: the model.
        selection: the parameters.

    Yields:
        The module's path, the module, and the selected parameters: name in the module → name in the selection.

    Raises:
        UnsupportedModuleError: after the last module, for a selected parameter that belongs to none of them.
    """
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
    """Return the selected parameters that the model holds now, name → tensor.

    Raises:
        UnsupportedModuleError: for a selected parameter that the model does not have, and for a model that is offloaded
            or on several devices.
    """
    refuse_dispatched(model)
    held: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for name in selection.parameters:
        if name not in held:
            raise _missing(model, name)
    return {name: held[name] for name in selection.parameters}


def whole_parameters(model: nn.Module, selection: ParameterSelection) -> dict[str, Tensor]:
    """Return the selected parameters for autograd, which can differentiate whole ones only, name → tensor.

    Raises:
        UnsupportedModuleError: as :func:`held_parameters`, and for a parameter of which only a shard is held.
    """
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

    Raises:
        UnsupportedModuleError: naming the first parameter that is not in memory, or the devices.
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

    Args:
        model: the model.
        held: its selected parameters, all of which require a gradient.
        result: what the forward pass returned.

    Raises:
        UnsupportedModuleError: where the result depends on a tensor that is not the model's, in the shape of a selected
            parameter on which it does not depend.
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
