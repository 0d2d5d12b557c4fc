"""What is relied on in TRL: the methods of its trainer, and one generated batch with its rewards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from gradstats.integrations.installed import known_versions
from gradstats.rollouts.table import Rollouts
from gradstats.stats.on_policy import NEUTRAL
from gradstats.system.environment import installed

if TYPE_CHECKING:
    from torch import nn


@runtime_checkable
class Trainer(Protocol):
    """What is used of GRPOTrainer and RLOOTrainer."""

    _metrics: dict[str, dict[str, list[float]]]
    _calculate_rewards: Callable[..., Tensor]
    _generate_and_score_completions: Callable[..., dict[str, Any]]
    accelerator: Any
    args: Any
    beta: float
    eos_token_ids: list[int]
    model: nn.Module
    num_generations: int
    processing_class: Any
    reward_weights: Tensor
    state: Any
    temperature: float


#: The attribute of a trainer that holds the estimator which it takes its advantages from, in place of its own.
IN_USE = "gradstats_estimator"
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
    """Refuse a trainer of which something is not as it is used here, or in which gradients cannot be measured."""
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
    """Refuse a trainer in which no process holds whole parameters."""
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


Part = TypeVar("Part")


@dataclass(frozen=True)
class Generation:
    """What one process drew, with the rewards of all processes."""

    trainer: Trainer
    # what the trainer made of its own completions: padded tokens, masks and advantages, which may be replaced
    output: dict[str, Tensor]
    rewards_per_function: Tensor  # (N, functions), of all processes, NaN where a function returned None

    @property
    def first(self) -> int:
        """The place of this process's first completion among those of all processes."""
        return self.trainer.accelerator.process_index * len(self.output["completion_ids"])

    @property
    def n_groups(self) -> int:
        """The number of groups of all processes."""
        return len(self.rewards_per_function) // self.trainer.num_generations

    def rewards(self) -> Tensor:
        """Return the reward of each completion of all processes, (N,); NaN where every function returned None.

        It is the weighted sum of the functions, clipped as RLOOTrainer does, without a KL penalty.
        """
        found = self.rewards_per_function
        rewards = (found * self.trainer.reward_weights.to(found.device).unsqueeze(0)).nansum(dim=1)
        rewards[torch.isnan(found).all(dim=1)] = torch.nan
        if clip := getattr(self.trainer, "reward_clip_range", None):
            rewards = rewards.clamp(min=clip[0], max=clip[1])
        return rewards

    def mask(self) -> Tensor:
        """Return which tokens of this process's completions count, (B, T): not padding, nor the output of tools."""
        mask = self.output["completion_mask"]
        return (mask if "tool_mask" not in self.output else mask * self.output["tool_mask"]).bool()

    def usable(self) -> np.ndarray:
        """Return which of this process's completions have a reward and a token that counts, (B,) of bool."""
        rewards = self.rewards()[self.first : self.first + len(self.output["completion_ids"])]
        return (torch.isfinite(rewards) & self.mask().any(dim=1)).cpu().numpy()

    def rollouts(self, groups: Sequence[int] | np.ndarray | None = None) -> Rollouts | None:
        """Return this process's usable completions; None where there are none.

        The prompt_id of a completion is the number of its group among those of all processes.
        """
        size = self.trainer.num_generations
        places = self.first + np.arange(len(self.output["completion_ids"]))
        chosen = self.usable() & (True if groups is None else np.isin(places // size, groups))
        rows: list[int] = np.flatnonzero(chosen).tolist()
        if not rows:
            return None
        completions = [self._real("completion_ids", "completion_mask", row) for row in rows]
        lengths = [len(tokens) for tokens in completions]

        def recorded(name: str) -> list[list[float]] | None:
            values = self.output.get(name)
            return None if values is None else [values[row, :n].tolist() for row, n in zip(rows, lengths, strict=True)]

        return Rollouts.from_sequences(
            prompt_tokens=[self._real("prompt_ids", "prompt_mask", row) for row in rows],
            completion_tokens=completions,
            rewards=self.rewards().cpu().numpy()[places[rows]],
            prompt_ids=places[rows] // size,
            sample_ids=places[rows] % size,
            metadata={"sampler": sampler_settings(self.trainer)},
            completion_mask=None if "tool_mask" not in self.output else [self._marks(row).tolist() for row in rows],
            # Where no engine of its own draws, the trainer's policy as the step began does.
            sampler_logprobs=recorded("sampling_per_token_logps") or recorded("old_per_token_logps"),
            proximal_logprobs=recorded("old_per_token_logps"),
            finish_reason=["stop" if tokens[-1] in self._ends else "length" for tokens in completions],
        )

    @property
    def _ends(self) -> set[int]:
        tokenizer = getattr(self.trainer.processing_class, "tokenizer", self.trainer.processing_class)
        return {*self.trainer.eos_token_ids, tokenizer.pad_token_id}

    def _real(self, ids: str, mask: str, row: int) -> list[int]:
        """Return the token ids of a row without its padding."""
        return self.output[ids][row][self.output[mask][row].bool()].tolist()

    def _marks(self, row: int) -> Tensor:
        return self.mask()[row][self.output["completion_mask"][row].bool()]


def sampler_settings(trainer: Trainer) -> dict[str, object]:
    """Return the settings with which a trainer draws tokens, those of ``generation_kwargs`` in the last place."""
    args = trainer.args
    given: Mapping[str, object] = args.generation_kwargs or {}
    settings = {name: getattr(args, name, None) for name in NEUTRAL} | {"temperature": trainer.temperature}
    return {name: given.get(name, value) for name, value in settings.items()}


def own_estimator(trainer: Trainer) -> str:
    """Return the label of what a trainer takes its advantages from, up to a factor that a batch shares."""
    used = vars(trainer).get(IN_USE)
    if used is not None:
        return used.estimator.label
    if any(kind.__name__ == "RLOOTrainer" for kind in type(trainer).__mro__):
        return "rloo"
    return "grpo" if trainer.args.scale_rewards == "group" else "group_mean"


def prompts_of_step(trainer: Trainer) -> float:
    """Return the number of groups that an optimizer step learns from."""
    args = trainer.args
    of_process = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return of_process * trainer.accelerator.num_processes / trainer.num_generations


def intercept(trainer: Trainer, handle: Callable[[Generation], None]) -> None:
    """Call a function with every batch that a trainer draws for training, after its own advantages are computed."""
    rewards_of, generate = trainer._calculate_rewards, trainer._generate_and_score_completions
    rewards: list[Tensor] = []

    def _calculate_rewards(
        inputs: list[dict[str, object]],
        prompts: list[object],
        completions: list[object],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        found = rewards_of(inputs, prompts, completions, completion_ids_list)
        rewards[:] = [found]
        return found

    def _generate_and_score_completions(inputs: list[dict[str, object]]) -> dict[str, Tensor]:
        output = generate(inputs)
        if trainer.model.training:
            handle(Generation(trainer, output, rewards[0]))
        return output

    trainer._calculate_rewards = _calculate_rewards
    trainer._generate_and_score_completions = _generate_and_score_completions


def gathered(trainer: Trainer, part: Part) -> list[Part]:
    """Return what every process has, in the order of the processes; each of them must call this."""
    if trainer.accelerator.num_processes == 1:
        return [part]
    from accelerate.utils import gather_object

    return gather_object([part])
