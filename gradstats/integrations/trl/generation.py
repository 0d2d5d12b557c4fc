"""One generated batch of a trainer, as it is when its completions have been drawn and scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradstats.rollouts.table import Rollouts

if TYPE_CHECKING:
    from gradstats.integrations.trl.contract import Trainer

Part = TypeVar("Part")


@dataclass(frozen=True)
class Generation:
    """What one process drew, with the rewards of all processes.

    Attributes:
        trainer: the trainer.
        output: what the trainer made of its own completions: padded tokens, masks and advantages, which may be
            replaced.
        rewards_per_function: (N, functions), of all processes, NaN where a function returned None.
    """

    trainer: Trainer
    output: dict[str, Tensor]
    rewards_per_function: Tensor

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

        Args:
            groups: numbers of the groups to take; all when None.
        """
        size = self.trainer.num_generations
        places = self.first + np.arange(len(self.output["completion_ids"]))
        chosen = self.usable() & (True if groups is None else np.isin(places // size, groups))
        rows: list[int] = np.flatnonzero(chosen).tolist()
        if not rows:
            return None
        completions = [self._real("completion_ids", "completion_mask", row) for row in rows]
        logprobs = self.output.get("sampling_per_token_logps")
        recorded = [len(tokens) for tokens in completions]
        return Rollouts.from_sequences(
            prompt_tokens=[self._real("prompt_ids", "prompt_mask", row) for row in rows],
            completion_tokens=completions,
            rewards=self.rewards().cpu().numpy()[places[rows]],
            prompt_ids=places[rows] // size,
            sample_ids=places[rows] % size,
            metadata={"sampler": sampler_settings(self.trainer)},
            completion_mask=None if "tool_mask" not in self.output else [self._marks(row).tolist() for row in rows],
            sampler_logprobs=None
            if logprobs is None
            else [logprobs[row, :n].double().tolist() for row, n in zip(rows, recorded, strict=True)],
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
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    settings = {"temperature": trainer.temperature} | {name: getattr(args, name, None) for name in names}
    return {name: given.get(name, value) for name, value in settings.items()}


def intercept(trainer: Trainer, handle: Callable[[Generation], None]) -> None:
    """Call a function with every batch that a trainer draws for training, after its own advantages are computed.

    Args:
        trainer: the trainer; two of its methods are replaced on the instance.
        handle: is called in every process, and may replace ``output["advantages"]``.
    """
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
