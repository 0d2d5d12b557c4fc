"""What is relied on in TRL: the methods of its trainer, and one generated batch with its rewards."""

from __future__ import annotations

import gc
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from gradstats.config.options import of_type
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.integrations.installed import known_versions
from gradstats.integrations.moving_batch import head_noise_proxy, silent_shares
from gradstats.rollouts.table import Rollouts
from gradstats.stats.on_policy import NEUTRAL
from gradstats.system.environment import installed

if TYPE_CHECKING:
    from torch import nn


@runtime_checkable
class Trainer(Protocol):
    """What is used of GRPOTrainer and RLOOTrainer."""

    _logs: dict[str, Any]
    _metrics: dict[str, dict[str, list[float]]]
    _calculate_rewards: Callable[..., Tensor]
    _compute_loss: Callable[..., Tensor]
    _generate_and_score_completions: Callable[..., dict[str, Any]]
    _get_per_token_logps_and_entropies: Callable[..., tuple[Tensor, ...]]
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
_TRAINERS = ("GRPOTrainer", "RLOOTrainer")
#: Private methods that are wrapped, with their parameters.
_METHODS = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("model", "inputs"),
    "_generate_and_score_completions": ("inputs",),
}


def check_trainer(trainer: Trainer) -> None:
    """Refuse a trainer of which something is not as it is used here, or in which gradients cannot be measured."""
    kinds = {kind.__name__: kind.__module__ for kind in type(trainer).__mro__}
    if not any(kinds.get(name, "").startswith("trl.") for name in _TRAINERS):
        raise TypeError(f"the trainer is {of_type(trainer)}: attach to TRL's {' or '.join(_TRAINERS)}")
    known = f"TRL {installed('trl')} is installed, and this integration knows the trainers of {known_versions('trl')}"
    for name, expected in _METHODS.items():
        method = getattr(trainer, name, None)
        if method is None:
            raise TypeError(f"{type(trainer).__name__} has no {name}: {known}")
        found = tuple(inspect.signature(method).parameters)
        if found != expected:
            raise TypeError(
                f"{type(trainer).__name__}.{name} takes {', '.join(found)} and not {', '.join(expected)}: {known}"
            )
    for name in Trainer.__annotations__:
        if not hasattr(trainer, name):
            raise TypeError(f"{type(trainer).__name__} has no {name}: {known}")
    _refuse_partitioned(trainer)
    if getattr(trainer, "multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        raise ValueError(
            'multi_objective_aggregation="normalize_then_sum" scales each reward by its group before they are summed, '
            'so that no single reward is left to measure: train with "sum_then_normalize"'
        )


def trainer_of(state: object) -> Trainer:
    """Return the trainer that a callback is called by, of which transformers hands over only its ``state``."""
    from transformers import Trainer as AnyTrainer

    # The class is asked for by type(), since an object may pretend to another one.
    found = [one for one in gc.get_objects() if issubclass(type(one), AnyTrainer) and vars(one).get("state") is state]
    if len(found) != 1:
        raise ValueError(
            "the trainer cannot be found from its callbacks: call VarianceMonitor(…).attach(trainer) before "
            "trainer.train() instead"
        )
    return found[0]


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

    def silent_shares(self) -> dict[str, float]:
        """Return :func:`gradstats.integrations.moving_batch.silent_shares`; every process must call this."""
        lengths = self.trainer.accelerator.gather(self.mask().sum(dim=1))
        rewards = self.rewards().cpu().double()
        groups = np.arange(len(rewards)) // self.trainer.num_generations
        return silent_shares(rewards.numpy(), lengths.cpu().numpy(), groups)

    def usable(self) -> np.ndarray:
        """Return which of this process's completions have a reward, (B,) of bool."""
        rewards = self.rewards()[self.first : self.first + len(self.output["completion_ids"])]
        return torch.isfinite(rewards).cpu().numpy()

    def rollouts(self, groups: Sequence[int] | np.ndarray | None = None) -> Rollouts | None:
        """Return this process's usable completions; None where there are none.

        The prompt_id of a completion is the number of its group among those of all processes. One of which no token
        counts, as of a truncated one with ``mask_truncated_completions``, keeps its tokens, all masked: the trainer
        learns from the others of its group with its reward in their mean.
        """
        size = self.trainer.num_generations
        places = self.first + np.arange(len(self.output["completion_ids"]))
        chosen = self.usable() & (True if groups is None else np.isin(places // size, groups))
        rows: list[int] = np.flatnonzero(chosen).tolist()
        if not rows:
            return None
        completions = [self._completion(row) for row in rows]
        masks = [self.mask()[row][: len(tokens)].tolist() for row, tokens in zip(rows, completions, strict=True)]
        masked = "tool_mask" in self.output or getattr(self.trainer, "mask_truncated_completions", False)
        lengths = [len(tokens) for tokens in completions]

        def recorded(name: str) -> list[list[float]] | None:
            values = self.output.get(name)
            return None if values is None else [values[row, :n].tolist() for row, n in zip(rows, lengths, strict=True)]

        return Rollouts.from_sequences(
            prompt_tokens=[
                self.output["prompt_ids"][row][self.output["prompt_mask"][row].bool()].tolist() for row in rows
            ],
            completion_tokens=completions,
            rewards=self.rewards().cpu().numpy()[places[rows]],
            prompt_ids=places[rows] // size,
            sample_ids=places[rows] % size,
            metadata={"sampler": sampler_settings(self.trainer)},
            completion_mask=masks if masked or not all(map(any, masks)) else None,
            # Where no engine of its own draws, the trainer's policy as the step began does.
            sampler_logprobs=recorded("sampling_per_token_logps") or recorded("old_per_token_logps"),
            proximal_logprobs=recorded("old_per_token_logps"),
            finish_reason=[
                "stop" if tokens[-1] in {*self.trainer.eos_token_ids, self._padding} else "length"
                for tokens in completions
            ],
        )

    @property
    def _padding(self) -> int:
        return getattr(self.trainer.processing_class, "tokenizer", self.trainer.processing_class).pad_token_id

    def _completion(self, row: int) -> list[int]:
        """Return the token ids of a completion without its padding."""
        ids, real = self.output["completion_ids"][row], self.output["completion_mask"][row].bool()
        if not real.any():  # masked as a whole: truncated, and thus without padding inside
            real = (ids != self._padding).flip(0).cumsum(0).flip(0) > 0
        return ids[real].tolist() or ids[:1].tolist()


def sampler_settings(trainer: Trainer) -> dict[str, object]:
    """Return the settings with which a trainer draws tokens, those of ``generation_kwargs`` in the last place."""
    args = trainer.args
    given: Mapping[str, object] = args.generation_kwargs or {}
    settings = {name: getattr(args, name, None) for name in NEUTRAL} | {"temperature": trainer.temperature}
    return {name: given.get(name, value) for name, value in settings.items()}


#: Values of ``loss_type`` that divide the loss of each completion by its own length; all others by one number.
_BY_LENGTH = ("grpo", "sapo")


def own_estimator(trainer: Trainer) -> str:
    """Return the label of the estimator of a trainer's gradient, up to a factor that a batch shares.

    It has the advantages that the trainer learns from, and divides by length as its ``loss_type`` does. Ratios are 1
    when the first step on a batch begins; a KL term, an entropy bonus and an entropy mask are left out. TRL's ε of the
    standard deviation is 1e-4, that of the label 1e-6. ``loss_type="bnpo"`` divides by the tokens of a micro-batch,
    which is taken as one number.
    """
    by_length = getattr(trainer, "loss_type", None) in _BY_LENGTH
    used = vars(trainer).get(IN_USE)
    if used is None and any(kind.__name__ == "RLOOTrainer" for kind in type(trainer).__mro__):
        return "rloo"
    if used is None:
        # Divided by the deviation of the batch, all advantages have one factor.
        scaled = trainer.args.scale_rewards in ("group", True)
        if by_length:
            return "recipe:grpo(ratio=none)" if scaled else "recipe:grpo(scale=none, ratio=none)"
        return "grpo" if scaled else "group_mean"
    advantage, parts = used.estimator, {"aggregation": "sequence_mean"} if by_length else {}
    if isinstance(advantage, Recipe):
        recipe, advantage = advantage, advantage.advantage
        parts |= {kind: part.label for kind, part in recipe.of_advantages.items()}
    return Recipe(advantage, **parts).label if parts else advantage.label


def prompts_of_step(trainer: Trainer) -> float:
    """Return the number of groups that an optimizer step learns from."""
    args = trainer.args
    of_process = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return of_process * trainer.accelerator.num_processes / trainer.num_generations


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Restore on leaving what code of the user may set for all of the process, and training depends on.

    These are the states of all random generators, whether gradients are recorded, the default dtype, and the number of
    threads, on which the rounding of sums depends.
    """
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 # the generators that a trainer may use
    recording, dtype, threads = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        try:
            yield
        finally:
            torch.set_grad_enabled(recording)
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


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
            with torch_as_it_was():
                handle(Generation(trainer, output, rewards[0]))
        return output

    trainer._calculate_rewards = _calculate_rewards
    trainer._generate_and_score_completions = _generate_and_score_completions


def follow_loss(trainer: Trainer, handle: Callable[[Trainer, float], None]) -> None:
    """Call a function with the trainer and :func:`head_noise_proxy` of each loss in training; NaN where that fails.

    A loss without log-probabilities of tokens, as of a fused kernel, is passed over.
    """
    loss_of, logps_of = trainer._compute_loss, trainer._get_per_token_logps_and_entropies
    seen: list[Tensor] = []

    def _get_per_token_logps_and_entropies(*arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        found = logps_of(*arguments, **options)
        seen[:] = [found[0]]
        return found

    def _compute_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        seen.clear()
        loss = loss_of(model, inputs)
        if seen and trainer.model.training:
            with torch_as_it_was():
                try:
                    mask = inputs["completion_mask"]
                    mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
                    proxy = head_noise_proxy(inputs["advantages"], seen[0].detach(), mask)
                except (KeyError, RuntimeError):
                    proxy = float("nan")
                handle(trainer, proxy)
        return loss

    trainer._get_per_token_logps_and_entropies = _get_per_token_logps_and_entropies
    trainer._compute_loss = _compute_loss


def gathered(trainer: Trainer, part: Part) -> list[Part]:
    """Return what every process has, in the order of the processes; each of them must call this."""
    if trainer.accelerator.num_processes == 1:
        return [part]
    from accelerate.utils import gather_object

    return gather_object([part])
