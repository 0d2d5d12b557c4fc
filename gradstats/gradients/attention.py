"""Which implementations of attention and of experts a model runs with while its gradients are measured."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradstats.policy.policy import Policy


@contextmanager
def measuring_attention(policy: Policy, *, batched: bool) -> Iterator[None]:
    """Switch attention for a measurement and back again.

    In float64 the fused implementation (sdpa) is used, since eager attention takes its softmax in float32 whatever
    the model's dtype. In other types eager is used under ``vmap``, where the fused CPU kernel has no batching rule
    and falls back to a slow loop; unbatched, the model keeps its own. A model that caps its attention logits keeps its
    own always: the fused implementation leaves the cap out and computes another function.

    The grouped matrix product of a mixture's experts does not exist in float64: the plain loop over experts is used.

    Args:
        policy: whose model is switched.
        batched: whether the model runs under ``vmap``.
    """
    model: Any = policy.model
    kept = model.config._attn_implementation
    kept_experts = getattr(model.config, "_experts_implementation", None)
    if getattr(model.config, "attn_logit_softcapping", None) is not None:
        chosen = kept
    elif policy.dtype == torch.float64 and getattr(model, "_supports_sdpa", False):
        chosen = "sdpa"
    else:
        chosen = "eager" if batched else kept
    ungrouped = policy.dtype == torch.float64 and kept_experts == "grouped_mm"
    model.set_attn_implementation(chosen)
    if ungrouped:
        model.set_experts_implementation("eager")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
            yield
    finally:
        model.set_attn_implementation(kept)
        if ungrouped:
            model.set_experts_implementation(kept_experts)


@contextmanager
def forward_mode_attention(policy: Policy) -> Iterator[None]:
    """Switch to an attention that has forward derivatives, and back again.

    The fused kernels have none, so that is eager attention; in float64, where eager attention would take its softmax
    in float32, it is the plain products behind sdpa.

    Args:
        policy: whose model is switched.
    """
    model: Any = policy.model
    kept = model.config._attn_implementation
    chosen = forward_mode_implementation(policy)
    model.set_attn_implementation(chosen)
    try:
        with sdpa_kernel(SDPBackend.MATH) if chosen == "sdpa" else nullcontext(), warnings.catch_warnings():
            # torch's own forward derivatives are scripted the first time that one is needed.
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
            yield
    finally:
        model.set_attn_implementation(kept)


def forward_mode_implementation(policy: Policy) -> str:
    """The attention that forward derivatives are taken with."""
    model: Any = policy.model
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    plain = policy.dtype == torch.float64 and getattr(model, "_supports_sdpa", False) and not capped
    return "sdpa" if plain else "eager"


def warn_of_other_attention(policy: Policy) -> None:
    """Say that forward derivatives are taken with another attention than the model's own, where they are."""
    model: Any = policy.model
    kept, chosen = model.config._attn_implementation, forward_mode_implementation(policy)
    if chosen != kept:
        warnings.warn(
            f"token scores are measured with {chosen} attention, since the model's own ({kept}) has no forward "
            "derivatives; the same function up to rounding",
            UserWarning,
            stacklevel=4,
        )
