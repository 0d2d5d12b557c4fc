"""Cast a policy to another dtype."""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from dataclasses import replace

import torch
from torch import nn

from gradstats.gradients.engines.unsupported import describe
from gradstats.gradients.precision import own_precision
from gradstats.policy.model import n_logits
from gradstats.policy.policy import Policy

# Objects that are searched for a reference to the model; beyond, there is taken to be one.
_MOST_SEARCHED = 10_000


def with_dtype(policy: Policy, dtype: torch.dtype) -> Policy:
    """Copy a policy with parameters of another dtype; return the policy itself where they have that dtype.

    Buffers keep their dtype, as they do when weights are loaded in that dtype: rotary frequencies rounded to bfloat16
    would define another model. Where a wrapper has bound a forward method to a module of the model, and the copy's
    would run the model itself, the copy has the forward method of its class, if that computes the same.

    Raises:
        ValueError: when it does not.
    """
    if policy.dtype == dtype:
        return policy
    model = copy.deepcopy(policy.model)
    originals = {id(module) for module in policy.model.modules()}
    bound = [
        (path, module)
        for path, module in model.named_modules()
        if "forward" in vars(module) and _reaches(vars(module)["forward"], originals)
    ]
    for _, module in bound:
        del module.forward
    if bound:
        _refuse_other_function(policy, replace(policy, model=model), *bound[0])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return replace(policy, model=model)


def _reaches(function: object, modules: set[int]) -> bool:
    """Return whether calling a function can call one of some modules: it is bound to it or holds it in a closure."""
    waiting: list[object] = [function]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_SEARCHED:
        one = waiting.pop()
        if id(one) in modules:
            return True
        if id(one) in seen or isinstance(one, (nn.Module, torch.Tensor, type, types.ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, types.MethodType):
            waiting += [one.__self__, one.__func__]
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, types.CellType):
            with contextlib.suppress(ValueError):  # the cell is empty
                waiting.append(one.cell_contents)
        elif isinstance(one, types.FunctionType):
            waiting += [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            waiting += vars(one).values()
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set)):
            waiting += one
        elif hasattr(one, "__dict__"):
            waiting += vars(one).values()
    return bool(waiting)


def _refuse_other_function(policy: Policy, other: Policy, path: str, module: nn.Module) -> None:
    """Compare the logits of a copy, still in the same dtype, with those of the model.

    Raises:
        ValueError: when they differ.
    """
    n = min(8, n_logits(policy.model))
    ids = torch.arange(n, device=policy.device)[None]
    with own_precision(policy), torch.no_grad():
        ours, theirs = (one.model(ids, use_cache=False)["logits"] for one in (policy, other))
    if not torch.allclose(ours.to(theirs.dtype), theirs, equal_nan=True):
        raise ValueError(
            f"{policy.name} cannot be copied into another dtype: the forward method that is bound to "
            f"{describe(path, module)} computes something else than that of its class, and a copy of it would run the "
            "model itself: remove the wrapper around the forward method"
        )
