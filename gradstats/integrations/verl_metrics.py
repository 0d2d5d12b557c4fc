"""What a batch of verl says of its noise without a gradient, for the trainer's own dictionary of metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gradstats.integrations.moving_batch import head_noise_proxy, silent_shares
from gradstats.integrations.training_record import PREFIX


class DataProto(Protocol):
    """What is used of verl's batches."""

    batch: Mapping[str, Any]
    non_tensor_batch: Mapping[str, np.ndarray]


def batch_metrics(data: DataProto) -> dict[str, float]:
    """Return the keys of the monitor that need no gradient: silent groups and tokens, and noise of the output layer.

    Args:
        data: a batch with ``token_level_rewards``, ``response_mask`` and ``uid``; with ``advantages`` and
            ``old_log_probs`` also for :func:`gradstats.integrations.moving_batch.head_noise_proxy`.

    Returns:
        Key → number, as in ``"gradstats/silent_tokens"``.

    Raises:
        ValueError: for a batch without one of the first three.
    """
    there = {**data.batch, **data.non_tensor_batch}
    if missing := [name for name in ("token_level_rewards", "response_mask", "uid") if name not in there]:
        raise ValueError(f"the batch has no {missing[0]}: call batch_metrics after verl has computed advantages")
    mask = there["response_mask"]
    groups = np.unique(np.asarray(there["uid"]).astype(str), return_inverse=True)[1]
    rewards, lengths = there["token_level_rewards"].double().sum(-1), (mask != 0).sum(-1)
    found = silent_shares(rewards.cpu().numpy(), lengths.cpu().numpy(), groups)
    if {"advantages", "old_log_probs"} <= set(there):
        found["head_noise_proxy"] = head_noise_proxy(there["advantages"], there["old_log_probs"], mask)
    return {f"{PREFIX}/{key}": value for key, value in found.items()}


def with_batch_metrics(compute_data_metrics: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return verl's ``compute_data_metrics`` with :func:`batch_metrics` added.

    verl 0.9 has no hook for metrics; its trainers look this function up in their own module at every step:
    ``ray_trainer.compute_data_metrics = with_batch_metrics(ray_trainer.compute_data_metrics)``, in the process of the
    trainer.
    """

    def both(batch: DataProto, *arguments: Any, **options: Any) -> dict[str, Any]:
        return compute_data_metrics(batch, *arguments, **options) | batch_metrics(batch)

    return both
