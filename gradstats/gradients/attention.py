"""Attention, experts, rotary factors and precision: under which settings of a model its gradients are exact."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gradstats.gradients.arithmetic import float32_is_float32
from gradstats.gradients.parameters import UnsupportedModuleError, describe
from gradstats.policy.model import CausalModel, dtype_name, n_logits
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import is_sharded, reshard
from gradstats.rollouts.table import Rollouts

#: The name under which transformers knows :func:`_eager_in_slices`.
EAGER_IN_SLICES = "gradstats_eager_in_slices"
#: Up to this many scores of attention (queries × keys of all heads) are held at once.
MOST_SCORES = 2**26
# The same with one query at a time, and the tokens on which the two are compared.
_ONE_BY_ONE = "gradstats_eager_one_by_one"
_PROBE = 8


@contextmanager
def own_precision(policy: Policy) -> Iterator[None]:
    """Step out of ``torch.autocast`` and TF32 that the caller has switched on: passes keep their dtype."""
    with torch.autocast(policy.device.type, enabled=False), float32_is_float32():
        yield


@contextmanager
def refusing_lower_precision(policy: Policy) -> Iterator[None]:
    """Watch the forward passes inside for computations in a narrower dtype than that of the parameters.

    A wrapper around the model's forward method may switch autocast on (accelerate's mixed precision) or replace the
    parameters by narrower ones (FSDP's mixed precision), and cast the logits back.
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


@dataclass(frozen=True)
class _LengthDependence:
    """How the factors of one rotary embedding, or of one of its kinds of layers, depend on the length."""

    path: str
    module: Any
    prefix: str  # of its attributes for one kind of layers; empty where all layers share them
    dynamic: bool  # whether each length beyond limit has factors of its own; otherwise all of them share the long ones
    limit: int


def length_classes(models: Sequence[nn.Module], times: np.ndarray) -> list[tuple[int, ...]]:
    """Return what the rotary factors of sequences depend on: sequences of one class may be padded together.

    Times, (sequences,), are numbers of tokens, prompts included.
    """
    dependences = [one for model in models for one in _dependences(model)]
    return [tuple(_class(one, int(time)) for one in dependences) for time in times]


def same_class(model: nn.Module, rollouts: Rollouts, rows: Sequence[int]) -> list[list[int]]:
    """Split rows of the rollouts into those that may be padded together."""
    found: dict[tuple[int, ...], list[int]] = {}
    for row, kind in zip(rows, length_classes([model], rollouts.times[list(rows)]), strict=True):
        found.setdefault(kind, []).append(row)
    return list(found.values())


def refuse_mixed_lengths(model: nn.Module, times: Sequence[int]) -> None:
    """Refuse sequences of which one would get other rotary factors in a chunk than alone."""
    longest = max(times)
    for one in _dependences(model):
        for time in times:
            if _class(one, time) != _class(one, longest):
                raise UnsupportedModuleError(
                    f"sequences of {time} and {longest} tokens cannot go through the model together, since the factors "
                    f"of {describe(one.path, one.module)} depend on the length: put them into chunks of their own"
                )


def most_positions(policy: Policy) -> int | None:
    """Return how long a sequence may be; None where that is not known, or rotary factors grow with the length."""
    limit = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    unlimited = limit is None or limit < 1  # XLNet has -1
    return None if unlimited or any(one.dynamic for one in _dependences(policy.model)) else limit


def refuse_long_sequences(policy: Policy, rollouts: Rollouts) -> None:
    """Refuse sequences beyond a model's positions."""
    limit = most_positions(policy)
    longest = int(np.argmax(rollouts.times))
    time = int(rollouts.times[longest])
    if limit is None or time <= limit:
        return
    raise ValueError(
        f"the sequence {rollouts.prompt_id[longest]}/{rollouts.sample_id[longest]} has {time} tokens, and "
        f"{policy.name} has positions for {limit} (max_position_embeddings): leave longer sequences out, or measure a "
        "model with a longer context"
    )


def forget_lengths(model: nn.Module) -> None:
    """Restore the original factors, which a longer sequence has replaced: results must not depend on earlier ones."""
    for one in _dependences(model):
        if not one.dynamic:
            continue
        name = f"{one.prefix}max_seq_len_cached"
        original = getattr(one.module, f"{one.prefix}original_inv_freq")
        now = getattr(one.module, f"{one.prefix}inv_freq")
        # The factors are compared as well, since transformers 5.10 does not keep the length that they are of.
        if int(getattr(one.module, name, one.limit)) != one.limit or not torch.equal(now, original.to(now)):
            one.module.register_buffer(f"{one.prefix}inv_freq", original.to(now.device), persistent=False)
            setattr(one.module, name, one.limit)


def _class(one: _LengthDependence, time: int) -> int:
    return 0 if time <= one.limit else time if one.dynamic else 1


def _dependences(model: nn.Module) -> Iterator[_LengthDependence]:
    for path, module in model.named_modules():
        kinds: object = module.__dict__.get("rope_type")
        if isinstance(kinds, str):
            kinds = {"": kinds}
        if not isinstance(kinds, dict):
            continue
        rotary: Any = module
        for layers, kind in kinds.items():
            prefix = f"{layers}_" if layers else ""
            if "dynamic" in kind:
                yield _LengthDependence(path, module, prefix, True, int(rotary.original_max_seq_len))
            elif kind == "longrope":
                settings = rotary.config.rope_parameters
                limit = (settings[layers] if layers else settings)["original_max_position_embeddings"]
                yield _LengthDependence(path, module, prefix, False, int(limit))


def attention_of(model: CausalModel) -> str:
    """Return the name of a model's implementation of attention."""
    return model.config._attn_implementation or "eager"


def _eager_in_slices(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    most_scores: int,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Call a model's own eager attention with slices of queries, each of them again in the backward pass.

    Instead of tokens × tokens, ``most_scores`` of them exist at once. Where there are no more, it is one call.
    """
    own = sys.modules[type(module).__module__].eager_attention_forward  # pyright: ignore[reportAttributeAccessIssue]
    most = max(1, most_scores // (query.shape[0] * query.shape[1] * key.shape[2]))
    if most >= query.shape[2]:
        return own(module, query, key, value, attention_mask, **kwargs)

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        return own(module, queries, keys, values, mask, **kwargs)[0]

    attended = []
    for first in range(0, query.shape[2], most):
        rows = slice(first, first + most)
        given = query[:, :, rows], key, value, None if attention_mask is None else attention_mask[..., rows, :]
        kept = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given)
        attended.append(checkpoint(attend, *given, use_reentrant=False) if kept else attend(*given))
    return torch.cat(attended, dim=1), None


for _name, _most in ((EAGER_IN_SLICES, MOST_SCORES), (_ONE_BY_ONE, 1)):
    ALL_ATTENTION_FUNCTIONS.register(_name, partial(_eager_in_slices, most_scores=_most))
    ALL_MASK_ATTENTION_FUNCTIONS.register(_name, eager_mask)
_known: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def eager_of(model: CausalModel) -> str:
    """Return :data:`EAGER_IN_SLICES` where it gives a model's eager logits on a few tokens, and "eager" otherwise."""
    if model not in _known:
        kept = attention_of(model)
        try:
            _known[model] = _is_exact_in_slices(model)
        finally:
            model.set_attn_implementation(kept)
        if is_sharded(model):
            reshard(model)
    return EAGER_IN_SLICES if _known[model] else "eager"


def _is_exact_in_slices(model: CausalModel) -> bool:
    if not any(hasattr(sys.modules[type(one).__module__], "eager_attention_forward") for one in model.modules()):
        return False
    ids = torch.arange(_PROBE, device=next(model.parameters()).device)[None] % n_logits(model)
    found = []
    for name in ("eager", _ONE_BY_ONE):
        try:
            model.set_attn_implementation(name)
            with torch.no_grad():
                found.append(model(ids, use_cache=False)["logits"])
        except (AttributeError, ImportError, IndexError, RuntimeError, TypeError, ValueError):
            return False
    whole, sliced = found
    difference = (whole.double() - sliced.double()).abs().max()
    return bool(difference <= 100 * torch.finfo(whole.dtype).eps * whole.double().abs().max())


@contextmanager
def measuring_attention(policy: Policy, *, batched: bool) -> Iterator[None]:
    """Switch the attention implementation for a measurement and autocast off, and restore both afterwards.

    In float64 the fused implementation (sdpa) is used, since eager attention computes its softmax in float32 whatever
    the model's dtype. In other dtypes eager attention is used under ``vmap``, where the fused CPU kernel has no
    batching rule and falls back to a slow loop; without ``vmap`` the model keeps its implementation. A model that caps
    its attention logits always keeps it: the fused implementation omits the cap and computes another function. Eager
    attention goes in slices of queries, ``vmap`` excepted.

    The grouped matrix product of a mixture's experts does not exist in float64: the plain loop over experts is used.

    Gradient checkpointing of the model's own is switched off: engines decide themselves which layers run again. So are
    sparse gradients of embeddings, which have the same values.
    """
    model = policy.model
    kept = attention_of(model)
    kept_experts = getattr(model.config, "_experts_implementation", None)
    if getattr(model.config, "attn_logit_softcapping", None) is not None:
        chosen = kept
    elif policy.dtype == torch.float64 and getattr(model, "_supports_sdpa", False):
        chosen = "sdpa"
    else:
        chosen = "eager" if batched else kept
    if chosen == "eager" and not batched:
        chosen = eager_of(model)
    ungrouped = policy.dtype == torch.float64 and kept_experts == "grouped_mm"
    off = [
        (module, name)
        for module in model.modules()
        for name in ("gradient_checkpointing", "sparse")
        if getattr(module, name, False) is True
    ]
    for module, name in off:
        setattr(module, name, False)
    model.set_attn_implementation(chosen)
    if ungrouped:
        model.set_experts_implementation("eager")
    try:
        with own_precision(policy), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
            yield
    finally:
        model.set_attn_implementation(kept)
        if ungrouped:
            model.set_experts_implementation("grouped_mm")
        for module, name in off:
            setattr(module, name, True)


@contextmanager
def forward_mode_attention(policy: Policy) -> Iterator[None]:
    """Switch to an attention that has forward derivatives, and restore the model's own afterwards.

    The fused kernels have none, so eager attention is used; in float64, where eager attention would compute its
    softmax in float32, it is the unfused implementation of sdpa.
    """
    model = policy.model
    kept = attention_of(model)
    chosen = _forward_mode_implementation(policy)
    model.set_attn_implementation(eager_of(model) if chosen == "eager" else chosen)
    try:
        kernel = sdpa_kernel(SDPBackend.MATH) if chosen == "sdpa" else nullcontext()
        with kernel, own_precision(policy), warnings.catch_warnings():
            # torch scripts its forward derivatives when the first one is needed.
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
            yield
    finally:
        model.set_attn_implementation(kept)


def _forward_mode_implementation(policy: Policy) -> str:
    """Return the attention with which forward derivatives are computed."""
    model = policy.model
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    plain = policy.dtype == torch.float64 and getattr(model, "_supports_sdpa", False) and not capped
    return "sdpa" if plain else "eager"


def warn_of_other_attention(policy: Policy) -> None:
    """Warn when forward derivatives are computed with another attention than the model's."""
    model = policy.model
    kept, chosen = attention_of(model), _forward_mode_implementation(policy)
    if chosen != kept:
        warnings.warn(
            f"token scores are measured with {chosen} attention, since the model's own ({kept}) has no forward "
            "derivatives; both compute the same function up to rounding",
            UserWarning,
            stacklevel=4,
        )
