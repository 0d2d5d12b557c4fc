"""The implementations of attention and of experts with which gradients are measured."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradstats.gradients.precision import own_precision
from gradstats.policy.model import CausalModel
from gradstats.policy.policy import Policy


def attention_of(model: CausalModel) -> str:
    """Return the name of a model's implementation of attention."""
    return model.config._attn_implementation or "eager"


@contextmanager
def measuring_attention(policy: Policy, *, batched: bool) -> Iterator[None]:
    """Switch the attention implementation for a measurement and autocast off, and restore both afterwards.

    In float64 the fused implementation (sdpa) is used, since eager attention computes its softmax in float32 whatever
    the model's dtype. In other dtypes eager attention is used under ``vmap``, where the fused CPU kernel has no
    batching rule and falls back to a slow loop; without ``vmap`` the model keeps its implementation. A model that caps
    its attention logits always keeps it: the fused implementation omits the cap and computes another function.

    The grouped matrix product of a mixture's experts does not exist in float64: the plain loop over experts is used.

    Args:
        policy: the policy whose model is switched.
        batched: whether the model runs under ``vmap``.
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
    ungrouped = policy.dtype == torch.float64 and kept_experts == "grouped_mm"
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


@contextmanager
def forward_mode_attention(policy: Policy) -> Iterator[None]:
    """Switch to an attention that has forward derivatives, and restore the model's own afterwards.

    The fused kernels have none, so eager attention is used; in float64, where eager attention would compute its
    softmax in float32, it is the unfused implementation of sdpa.

    Args:
        policy: the policy whose model is switched.
    """
    model = policy.model
    kept = attention_of(model)
    chosen = forward_mode_implementation(policy)
    model.set_attn_implementation(chosen)
    try:
        kernel = sdpa_kernel(SDPBackend.MATH) if chosen == "sdpa" else nullcontext()
        with kernel, own_precision(policy), warnings.catch_warnings():
            # torch scripts its forward derivatives when the first one is needed.
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
            yield
    finally:
        model.set_attn_implementation(kept)


def forward_mode_implementation(policy: Policy) -> str:
    """Return the attention with which forward derivatives are computed."""
    model = policy.model
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    plain = policy.dtype == torch.float64 and getattr(model, "_supports_sdpa", False) and not capped
    return "sdpa" if plain else "eager"


def warn_of_other_attention(policy: Policy) -> None:
    """Warn when forward derivatives are computed with another attention than the model's."""
    model = policy.model
    kept, chosen = attention_of(model), forward_mode_implementation(policy)
    if chosen != kept:
        warnings.warn(
            f"token scores are measured with {chosen} attention, since the model's own ({kept}) has no forward "
            "derivatives; both compute the same function up to rounding",
            UserWarning,
            stacklevel=4,
        )
