"""What must leave a gradient as it is: padding, the order of rows, how a batch is split, what is masked."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gradstats.integrations.certify.batches import Completions


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One setting of a trainer on completions of one sampler: what is certified.

    Attributes:
        setting: what is set, by the trainer's own names.
        sampler: "on-policy", or "older" where old log-probabilities differ.
        parameters: values that labels are tried with, by the parameter names of :mod:`gradstats.estimators`.
        contiguous: whether groups are runs of rows, and not known by their names.
        has_kl: whether the loss has a KL term.
        expected: the label that this setting should equal, in the trainer's own words; "" for none.
        code: the modules and packages whose errors are the trainer's.
    """

    setting: Mapping[str, str]
    sampler: str = "on-policy"
    parameters: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    contiguous: bool = False
    has_kl: bool = False
    expected: str = ""
    code: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The setting in a line."""
        return ", ".join(self.setting.values())

    def advantages(self, batch: Completions) -> Tensor:
        """Return the advantages, (B,) or (B, T), of a whole batch."""
        raise NotImplementedError

    def weights(self, batch: Completions, advantages: Tensor, steps: int = 1, processes: int = 1) -> Tensor:
        """Return the weight of each token's score in ĝ, (B, T): −∂loss/∂log π.

        Args:
            batch: the completions.
            advantages: of them.
            steps: accumulation steps that the batch is split into, in turn by rows.
            processes: processes that it is split over, whose gradients are averaged.
        """
        raise NotImplementedError

    def gradient(self, batch: Completions) -> Tensor:
        """Return the weights of a whole batch."""
        return self.weights(batch, self.advantages(batch))

    def raised(self, error: Exception) -> bool:
        """Return whether the trainer's code raised an error, or made a call in it fail, and not this package's."""
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            module = frame.f_globals.get("__name__", "")
            if any(f"{module}.".startswith(f"{name}.") for name in self.code):
                return True
            if module.startswith("gradstats."):
                return False
        return False


class Invariance(Protocol):
    """How far a property is from holding, as a share of the largest weight; NaN where weights are not numbers."""

    def __call__(self, subject: Subject, batch: Completions) -> float:
        """Return the deviation on a batch of 2 groups."""
        ...


def deviation(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected weight; NaN where something is not finite."""
    difference = float((found - expected).abs().max())
    largest = float(expected.abs().max())
    return difference / largest if largest > 0 else difference


def _padded(values: Tensor, left: int, right: int) -> Tensor:
    return torch.nn.functional.pad(values, (left, right))


def padding_right(subject: Subject, batch: Completions) -> float:
    """Compare with two more columns on the right."""
    wide = batch.each(lambda values: _padded(values, 0, 2))
    return deviation(subject.gradient(wide), _padded(subject.gradient(batch), 0, 2))


def padding_left(subject: Subject, batch: Completions) -> float:
    """Compare with two tokens before each completion that do not count."""
    wide = batch.each(lambda values: _padded(values, 2, 0))
    shown = wide.tokens.clone()
    shown[:, :2] = True  # they are there, as the output of a tool
    return deviation(subject.gradient(replace(wide, tokens=shown)), _padded(subject.gradient(batch), 2, 0))


def order_of_rows(subject: Subject, batch: Completions) -> float:
    """Compare with the rows in another order, groups as a whole where they are runs of rows."""
    n = len(batch.rewards)
    apart = np.random.default_rng(1).permutation(n)
    together = np.concatenate([np.flatnonzero(batch.groups == group)[::-1] for group in np.unique(batch.groups)[::-1]])
    drawn, expected = together if subject.contiguous else apart, subject.gradient(batch)
    advantages = subject.advantages(batch)
    shuffled = subject.weights(batch.rows(apart), advantages[torch.as_tensor(apart)])
    return worst(
        deviation(subject.gradient(batch.rows(drawn)), expected[torch.as_tensor(drawn)]),
        deviation(shuffled, expected[torch.as_tensor(apart)]),
    )


def accumulation_steps(subject: Subject, batch: Completions) -> float:
    """Compare with the same batch in two accumulation steps."""
    return deviation(subject.weights(batch, subject.advantages(batch), steps=2), subject.gradient(batch))


def processes(subject: Subject, batch: Completions) -> float:
    """Compare with the same batch on two processes."""
    return deviation(subject.weights(batch, subject.advantages(batch), processes=2), subject.gradient(batch))


def prompts_repeated(subject: Subject, batch: Completions) -> float:
    """Compare with a batch in which each prompt is drawn twice, with the same completions: the mean is the same."""
    n = len(batch.rewards)
    twice = batch.rows(np.tile(np.arange(n), 2))
    twice = replace(twice, groups=np.concatenate([batch.groups, batch.groups + batch.groups.max() + 1]))
    return deviation(subject.gradient(twice) * 2, subject.gradient(batch).repeat(2, 1))


def masked_row(subject: Subject, batch: Completions) -> float:
    """Compare with the batch without the row, its advantages kept, which may or may not count as a completion."""
    n, row = len(batch.rewards), int(batch.mask.sum(dim=1).argmax())
    masked = batch.mask.clone()
    masked[row] = False
    advantages = subject.advantages(replace(batch, mask=masked))
    found = subject.weights(replace(batch, mask=masked), advantages)
    rest = np.delete(np.arange(n), row)
    expected = torch.zeros_like(found)
    expected[rest] = subject.weights(batch.rows(rest), advantages[torch.as_tensor(rest)])
    return np.fmin(deviation(found, expected), deviation(found, expected * (n - 1) / n))


def group_of_one(subject: Subject, batch: Completions) -> float:
    """Return 0 where a completion that is alone in its group has finite weights, else NaN."""
    alone = replace(batch, groups=np.array([batch.groups.max() + 1, *batch.groups[1:]]))
    if subject.contiguous:  # groups have one size
        alone = batch.rows(np.array([0]))
    return 0.0 if bool(subject.gradient(alone).isfinite().all()) else float("nan")


def equal_rewards(subject: Subject, batch: Completions) -> float:
    """Return the largest advantage in float32 where all rewards are one of 0.1, 0.3, 0.7 and 0.9."""
    single = batch.each(lambda values: values.float() if values.is_floating_point() else values)
    found = []
    for reward in (0.1, 0.3, 0.7, 0.9):
        equal = torch.full_like(batch.rewards, reward).float()
        found.append(float(subject.advantages(replace(single, rewards=equal, greedy_rewards=equal)).abs().max()))
    return worst(*found)


def nan_of_masked_tokens(subject: Subject, batch: Completions) -> float:
    """Compare with log-probabilities that are NaN where no token counts."""

    def spoilt(values: Tensor) -> Tensor:
        return torch.where(batch.mask, values, torch.nan)

    names = ("logprobs", "old_logprobs", "ref_logprobs")
    there = replace(batch, **{name: spoilt(getattr(batch, name)) for name in names})
    return deviation(subject.gradient(there), subject.gradient(batch))


#: Name → the check of it. What a completion's length does to weights is no fault, and stands in a column of its own.
INVARIANCES: dict[str, Invariance] = {
    "padding right": padding_right,
    "padding left": padding_left,
    "order of rows": order_of_rows,
    "accumulation steps": accumulation_steps,
    "processes": processes,
    "prompts repeated": prompts_repeated,
    "masked row": masked_row,
    "group of one": group_of_one,
    "equal rewards": equal_rewards,
    "NaN of masked tokens": nan_of_masked_tokens,
}


def length_scaled(subject: Subject, batch: Completions) -> tuple[float, float]:
    """Return what twice the tokens in one completion multiply its weight per token and those of all others by."""
    row, width = int(batch.mask.sum(dim=1).argmax()), batch.mask.shape[1]
    places = torch.arange(2 * width).repeat(len(batch.rewards), 1)
    places[row] //= 2
    inside = places < width
    longer = batch.each(lambda values: values.gather(1, places.clamp(max=width - 1)) * inside)
    before, after = subject.gradient(batch), subject.gradient(longer)
    others = [one for one in range(len(batch.rewards)) if one != row and before[one].abs().sum() > 0]
    if not before[row].abs().sum() > 0 or not others:
        return float("nan"), float("nan")
    own = float(after[row].sum() / before[row].sum()) / 2
    return own, float(after[others].abs().sum() / before[others].abs().sum())


def worst(*found: float) -> float:
    """Return the largest of several deviations, NaN where one is."""
    return float(np.max(found))
