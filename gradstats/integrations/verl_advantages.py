"""Advantages of this package's estimators in the form of verl: from token rewards, a mask and the prompts' ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gradstats import estimators as families
from gradstats.estimators import recipes, registry
from gradstats.estimators.batch import Batch, checked_groups, how_to_get
from gradstats.estimators.estimator import Estimator
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.integrations.training_record import WarnOnce

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What every registered name begins with, and the name of the estimator that :data:`_VARIABLE` holds.
_PREFIX = "gradstats"
#: The environment variable that holds a label with parameters, which a configuration of verl cannot carry.
_VARIABLE = "GRADSTATS_ESTIMATOR"
#: Fields of a batch that verl's rewards and mask give.
_GIVEN = ("token_rewards",)

#: What verl calls: token rewards, mask and further entries by name; returns advantages and returns, (B, T) each.
AdvantageFunction = Callable[..., tuple[Tensor, Tensor]]


@dataclass
class VerlAdvantages:
    """The function that verl calls for one estimator.

    A completion without a finite reward is left out and gets advantage 0. One without a token that counts has none to
    get, and its reward stays in the baseline of the others, as in verl. When the estimator fails on the first batch,
    the error ends the training run; on a later one, a warning says so once for each reason, and that batch has
    advantages of 0.
    """

    estimator: Estimator | Recipe  # of which only the advantages are used
    n_computed: int = 0  # batches whose advantages it gave
    n_skipped: int = 0
    n_left_out: int = 0
    _complaints: WarnOnce = field(default_factory=WarnOnce)

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "b t"],
        response_mask: Tensor,
        index: np.ndarray | None = None,
        **_: object,
    ) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t"]]:
        """Return advantages and returns, which verl's estimators without a critic make equal.

        A completion's reward is the sum of those of its tokens; the index, (B,), names its prompt (``uid``).
        """
        if index is None:
            raise ValueError(f"{self.estimator.label} needs the prompt of each completion (uid), which the batch lacks")
        mask = response_mask.detach().cpu().numpy() != 0
        rewards = token_level_rewards.detach().double().cpu().numpy()
        try:
            found = self._computed(rewards, mask, np.asarray(index))
        except ValueError as error:
            if not self.n_computed:
                raise
            self.n_skipped += 1
            self._complaints.say(f"{self.estimator.label}: a batch has advantages of 0", error)
            found = np.zeros(mask.shape)
        else:
            self.n_computed += 1
        advantages = torch.from_numpy(found).to(token_level_rewards)
        return advantages, advantages.clone()

    def _computed(
        self, rewards: Float[np.ndarray, "b t"], mask: Bool[np.ndarray, "b t"], prompts: np.ndarray
    ) -> Float[np.ndarray, "b t"]:
        """Return the advantages of every token, 0 where none counts."""
        totals, prompts = rewards.sum(axis=1), checked_groups(prompts, len(rewards))
        usable = np.isfinite(totals)
        self.n_left_out += int((~usable).sum())
        kept = mask[usable]
        if not kept.any():
            raise ValueError("no completion has a finite reward and a token that counts")
        of_tokens = np.where(kept, rewards[usable], 0.0)
        batch = Batch(totals[usable], kept.sum(axis=1), prompts[usable].astype(str), mask=kept, token_rewards=of_tokens)
        advantages = np.zeros(mask.shape)
        of_usable = self.estimator.advantages(batch)
        if batch.group_sizes.max() == 1 and _compares(self.estimator) and np.array_equal(of_usable, batch.rewards):
            reason = "every prompt has one completion, whose reward is its advantage: set actor_rollout_ref.rollout.n=2"
            self._complaints.say(f"{self.estimator.label} has nothing to compare with", ValueError(reason))
        advantages[usable] = (of_usable if of_usable.ndim == 2 else of_usable[:, None]) * kept
        if not np.isfinite(advantages).all():
            raise ValueError(f"{self.estimator.label} gives advantages that are not finite")
        return advantages


def known_labels() -> list[str]:
    """Return the labels of all estimators that need rewards, mask and prompts alone, with their default parameters."""
    names = [*registry.names(), *(f"recipe:{name}" for name in recipes.names())]
    found = []
    for name in names:
        try:
            estimator = families.get(name)
        except (TypeError, ValueError):  # a parameter without a default
            continue
        if set(estimator.needs) <= set(_GIVEN):
            found.append(name)
    return found


def chosen(label: str) -> VerlAdvantages:
    """Return the function of an estimator by its label.

    A completion that is alone in its group gets its reward, as from verl's own estimators, unless the label states
    ``singleton``.
    """
    estimator = families.get(label)
    if "singleton" not in label:
        estimator = _as_alone_in_verl(estimator)
    missing = [need for need in estimator.needs if need not in _GIVEN]
    if missing:
        raise ValueError(
            f"{estimator.label} needs {missing[0]}, which verl does not pass on to an estimator: in a study, "
            f"{how_to_get(missing[0])}"
        )
    return VerlAdvantages(estimator)


def _compares(estimator: Estimator | Recipe) -> bool:
    """Return whether a completion's advantage has a rule of its own where it is alone."""
    advantage = estimator.advantage if isinstance(estimator, Recipe) else estimator
    return advantage.definition.checked and "singleton" in advantage.parameters


def _as_alone_in_verl(estimator: Estimator | Recipe) -> Estimator | Recipe:
    """Return the same estimator, in which a completion that is alone gets its reward."""
    if isinstance(estimator, Recipe):
        return replace(estimator, advantage=_as_alone_in_verl(estimator.advantage))
    if not _compares(estimator):
        return estimator
    return replace(estimator, parameters={**estimator.parameters, "singleton": "reward"})


def advantage_functions(variables: Mapping[str, str] = os.environ) -> dict[str, AdvantageFunction]:
    """Return what is registered with verl: name → function.

    These are ``gradstats/LABEL`` for every one of :func:`known_labels`, and ``gradstats`` for the estimator of the
    environment variable ``GRADSTATS_ESTIMATOR``. A label there that cannot be used gives a function that says so.
    """
    found: dict[str, AdvantageFunction] = {f"{_PREFIX}/{label}": chosen(label) for label in known_labels()}
    if label := variables.get(_VARIABLE, "").strip():
        try:
            found[_PREFIX] = chosen(label)
        except (KeyError, TypeError, ValueError) as error:
            found[_PREFIX] = _refusing(f"{_VARIABLE} is {label!r}: {error.args[0] if error.args else error}")
    return found


def _refusing(sentence: str) -> AdvantageFunction:
    """Return a function that raises: an error at import would be logged by verl below every usual level."""

    def refuse(*_: object, **__: object) -> tuple[Tensor, Tensor]:
        raise ValueError(sentence)

    return refuse
