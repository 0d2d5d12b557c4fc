"""Which parameter each entry of an optimizer's state belongs to.

The ``state_dict`` of a torch optimizer numbers parameters in the order in which its groups list them, and records no
names. Trainers list the trainable parameters of the model either all together or, as the Trainer of transformers does,
first those with weight decay and then those without, where rules about names and modules decide; each of these orders
is tried, and the shapes of the saved tensors decide between them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

State = Mapping[str, Any]

# Rules of the Trainer of transformers: since 4.53 by names, before by modules and "bias".
_NO_DECAY_NAMES = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
# What wrappers put into the names of parameters.
_WRAPPERS = re.compile(r"(^|\.)(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def named_states(saved: Mapping[str, Any], model: nn.Module) -> tuple[dict[str, State], dict[str, State]]:
    """Return the state and the group of each parameter, by its name in the model.

    Args:
        saved: the ``state_dict`` of an optimizer; its entries are numbered or, where shards were joined, named.
        model: the model that was trained.

    Raises:
        ValueError: where no known order of the model's parameters has the shapes of the state, or several have.
    """
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
