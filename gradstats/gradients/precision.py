"""The precision of the forward pass: that of the model's parameters, whatever is around the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradstats.gradients.engines.unsupported import describe
from gradstats.policy.dtypes import dtype_name
from gradstats.policy.policy import Policy


@contextmanager
def own_precision(policy: Policy) -> Iterator[None]:
    """Step out of ``torch.autocast`` that the caller has switched on: forward and backward passes keep their dtype."""
    with torch.autocast(policy.device.type, enabled=False):
        yield


@contextmanager
def refusing_lower_precision(policy: Policy) -> Iterator[None]:
    """Watch the forward passes inside for computations in a narrower dtype than that of the parameters.

    A wrapper around the model's forward method may switch autocast on (accelerate's mixed precision) or replace the
    parameters by narrower ones (FSDP's mixed precision), and cast the logits back.

    Args:
        policy: the policy.

    Raises:
        ValueError: afterwards, naming the first module that computes in a narrower dtype.
    """
    model, device, own_dtype = policy.model, policy.device.type, policy.dtype
    found: list[str] = []
    dtypes = {name: tensor.dtype for name, tensor in model.named_parameters(remove_duplicate=False)}
    handles = []

    def note(path: str, module: nn.Module, dtype: torch.dtype, own: torch.dtype, why: str) -> None:
        if dtype.is_floating_point and dtype.itemsize < own.itemsize and not found:
            found.append(f"{describe(path, module)} computes in {dtype_name(dtype)} {why}")

    def watch(path: str, module: nn.Module) -> None:
        owned = {name: dtypes[f"{path}.{name}" if path else name] for name, _ in module.named_parameters(recurse=False)}

        def before(module: nn.Module, _inputs: tuple[object, ...]) -> None:
            if torch.is_autocast_enabled(device):
                note(path, module, torch.get_autocast_dtype(device), own_dtype, "under autocast")
            for name, tensor in module._parameters.items():
                if tensor is not None and name in owned:
                    note(path, module, tensor.dtype, owned[name], f"with its {name} replaced by a narrower one")

        def after(module: nn.Module, _inputs: tuple[object, ...], output: object) -> None:
            if isinstance(module, (nn.Linear, nn.Embedding)) and isinstance(output, Tensor) and "weight" in owned:
                note(path, module, output.dtype, owned["weight"], "inside a wrapper of its forward method")

        handles.extend([module.register_forward_pre_hook(before), module.register_forward_hook(after)])

    for path, module in model.named_modules():
        watch(path, module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if found:
        raise ValueError(
            f"{found[0]}, although the parameters of {policy.name} are {dtype_name(own_dtype)}: measure the model "
            "without its mixed-precision wrapper, or load it in the dtype that is meant"
        )
