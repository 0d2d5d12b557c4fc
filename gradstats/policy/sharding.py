"""Divide the weights of a model over the ranks of a process group (FSDP2), so that none of them holds the whole."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from gradstats.policy.model import CausalModel

#: Whether transformers reads the part of a rank alone: 5.10, the latest that verl 0.9 allows, does not.
READS_PARTS = "fsdp_size" in inspect.signature(DistributedConfig).parameters


def is_sharded(model: nn.Module) -> bool:
    """Return whether a rank holds only a part of some parameter."""
    return any(isinstance(tensor, DTensor) for tensor in model.parameters())


def reshard(model: nn.Module) -> None:
    """Let a sharded model hold its shards alone, of which tied ones are one; other models remain as they are.

    After a forward pass the weights of the outermost module remain whole, without the gradients of their shards, and
    tied ones are then two parameters.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def in_group() -> bool:
    """Return whether this process is one of the ranks of a process group."""
    return distributed.is_initialized()


def n_ranks() -> int:
    """Return the number of ranks of this process's group."""
    if not in_group():
        raise ValueError(
            "sharded=True divides the weights over the ranks of a process group, and this process belongs to none: "
            "start every rank with torchrun and call torch.distributed.init_process_group() first, or use "
            "`gradstats run --executor ray --ranks-per-worker N`"
        )
    return distributed.get_world_size()


def own_device(device: str) -> str:
    """Return the device of this rank: ``"cuda"`` is the GPU whose number ``LOCAL_RANK`` gives."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device


def shards_while_loading(device: str) -> bool:
    """Return whether transformers divides the weights for this device: it takes the machine's accelerator.

    Otherwise each rank reads the whole, and :func:`shard` divides it.
    """
    accelerator = torch.accelerator.current_accelerator()
    return READS_PARTS and torch.device(device).type == ("cpu" if accelerator is None else accelerator.type)


def sharded_loading(source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which ``from_pretrained`` reads only the part of this rank."""
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(source, **options), trust_remote_code=options.get("trust_remote_code", False)
        )
    plan = {f"{path}.*": "free_full_weight" for path, _ in layer_lists(empty)}
    return {"distributed_config": DistributedConfig(fsdp_size=n_ranks(), fsdp_plan=plan)}


def shard(model: CausalModel, device: str) -> None:
    """Divide a model that this rank has loaded whole, layer by layer; the layers move to the device one at a time."""
    mesh = init_device_mesh(torch.device(device).type, (n_ranks(),))
    for _, layers in layer_lists(model):
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def layer_lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Yield path and modules of each outermost list of layers, of which only one at a time has to be whole."""
    found: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or not any(len(list(layer.children())) for layer in module):
            continue
        if not path.startswith(tuple(f"{outer}." for outer in found)):
            found.append(path)
            yield path, module
