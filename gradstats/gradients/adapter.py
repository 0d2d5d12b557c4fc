"""How far an adapter moves the last hidden state of each token: one more forward pass, with the adapter disabled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gradstats.gradients.attention import own_precision
from gradstats.gradients.objective import Chunk, Objective
from gradstats.policy.policy import Policy
from gradstats.rollouts.schema import ADAPTER_RESIDUAL
from gradstats.rollouts.table import Rollouts


def refuse_without_adapter(policy: Policy) -> None:
    """Refuse a policy that has no peft adapter."""
    if not hasattr(policy.model, "disable_adapter") and not getattr(policy.model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"adapter_residual is of a policy with a peft adapter, and {policy.name} has none: name one as "
            "policy.adapter, or leave adapter_residual off"
        )


@contextmanager
def _without_adapter(model: Any) -> Iterator[None]:
    """Disable the adapter of a model that peft wraps, or that transformers put it into."""
    trained = [parameter.requires_grad for parameter in model.parameters()]
    try:
        if hasattr(model, "disable_adapter"):
            with model.disable_adapter():
                yield
        else:
            model.disable_adapters()
            try:
                yield
            finally:
                model.enable_adapters()
    finally:
        for parameter, before in zip(model.parameters(), trained, strict=True):  # both change what is trained
            parameter.requires_grad_(before)


def adapter_residual(policy: Policy, chunk: Chunk) -> Float[Tensor, "batch kept"]:
    r"""Return :math:`r_t = \lVert h_t^{adapted} - h_t^{base}\rVert_2` of a chunk's tokens. ARCA, 2606.00257.

    h is what enters the output embedding at the position that predicts the token.
    """

    def hidden() -> Tensor:
        with torch.no_grad(), own_precision(policy), Objective(policy.model, policy.temperature) as objective:
            objective(policy.model, chunk.input_ids.to(policy.device), chunk.kept)
        assert objective.hidden is not None
        return objective.hidden

    adapted = hidden()
    with _without_adapter(policy.model):
        return (adapted - hidden()).norm(dim=-1)


def with_residuals(rollouts: Rollouts, residuals: list[Any]) -> Rollouts:
    """Return rollouts with the residuals as a column."""
    return replace(rollouts, frame=rollouts.frame.assign(**{ADAPTER_RESIDUAL: residuals}))
