"""What is used of TRL's trainers, checked when something is attached to one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from gradstats.integrations.installed import known_versions
from gradstats.system.environment import installed

if TYPE_CHECKING:
    from torch import Tensor, nn


class Trainer(Protocol):
    """What is used of GRPOTrainer and RLOOTrainer."""

    _metrics: dict[str, dict[str, list[float]]]
    _calculate_rewards: Callable[..., Tensor]
    _generate_and_score_completions: Callable[..., dict[str, Any]]
    accelerator: Any
    args: Any
    beta: float
    eos_token_ids: list[int]
    loss_type: str  # of GRPOTrainer
    off_policy_mask_threshold: float | None  # of GRPOTrainer
    model: nn.Module
    num_generations: int
    processing_class: Any
    reward_weights: Tensor
    state: Any
    temperature: float


#: The trainers that are known.
TRAINERS = ("GRPOTrainer", "RLOOTrainer")
#: Private methods that are wrapped, with their parameters.
METHODS = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("inputs",),
}
#: Attributes that are read.
ATTRIBUTES = (
    "_metrics",
    "accelerator",
    "args",
    "eos_token_ids",
    "model",
    "num_generations",
    "processing_class",
    "reward_weights",
    "state",
    "temperature",
)


def check_trainer(trainer: Trainer) -> None:
    """Refuse a trainer of which something is not as it is used here, or in which gradients cannot be measured.

    Args:
        trainer: what something is to be attached to.

    Raises:
        TypeError: for anything else than one of :data:`TRAINERS`, and for a trainer of a TRL version whose private
            methods or attributes differ; names the first, and the version.
        ValueError: for a trainer whose parameters are partitioned (ZeRO-3, FSDP), or whose rewards are normalised one
            by one before they are summed.
    """
    kinds = {kind.__name__: kind.__module__ for kind in type(trainer).__mro__}
    if not any(kinds.get(name, "").startswith("trl.") for name in TRAINERS):
        raise TypeError(f"the trainer is a {type(trainer).__name__}: attach to TRL's {' or '.join(TRAINERS)}")
    known = f"TRL {installed('trl')} is installed, and this integration knows the trainers of {known_versions('trl')}"
    for name, expected in METHODS.items():
        method = getattr(trainer, name, None)
        if method is None:
            raise TypeError(f"{type(trainer).__name__} has no {name}: {known}")
        found = tuple(inspect.signature(method).parameters)
        if found != expected:
            raise TypeError(
                f"{type(trainer).__name__}.{name} takes {', '.join(found)} and not {', '.join(expected)}: {known}"
            )
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise TypeError(f"{type(trainer).__name__} has no {name}: {known}")
    _refuse_partitioned(trainer)
    if getattr(trainer, "multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        raise ValueError(
            'multi_objective_aggregation="normalize_then_sum" scales each reward by its group before they are summed, '
            'so that no single reward is left to measure: train with "sum_then_normalize"'
        )


def _refuse_partitioned(trainer: Trainer) -> None:
    """Refuse a trainer in which no process holds whole parameters.

    Raises:
        ValueError: in that case.
    """
    state = trainer.accelerator.state
    plugin = getattr(state, "deepspeed_plugin", None)
    if plugin is not None and plugin.zero_stage == 3:
        raise ValueError(
            "under DeepSpeed ZeRO-3 no process holds whole parameters, so that gradients cannot be measured: train "
            "with ZeRO-2 or DDP, or measure checkpoints afterwards"
        )
    if getattr(state, "fsdp_plugin", None) is not None:
        raise ValueError(
            "under FSDP no process holds whole parameters, so that gradients cannot be checked: train with DDP, or "
            "measure checkpoints afterwards"
        )
