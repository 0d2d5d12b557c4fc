"""Train with another estimator: its advantages in place of the trainer's own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gradstats import estimators as families
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.batch import Batch, how_to_get
from gradstats.estimators.estimator import Estimator
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.gradients.session import MeasuringSession
from gradstats.integrations.training_record import PREFIX, WarnOnce, plain_label
from gradstats.integrations.trl.contract import (
    IN_USE,
    Generation,
    check_trainer,
    gathered,
    intercept,
    torch_as_it_was,
)
from gradstats.integrations.trl.monitor import live_policy, opened
from gradstats.rollouts.table import Rollouts

if TYPE_CHECKING:
    from gradstats.integrations.trl.contract import Trainer

#: Fields of the batch that a forward pass gives.
_OF_FORWARD = ("logprobs", "entropy", "sum_pi_squared")
#: Fields that take a measurement of every completion's gradient.
_OF_GRADIENTS = ("sq_norms",)
#: Fields that take random directions in addition.
_OF_PROBES = ("token_energy", "token_cross")
#: Fields that the trainer's completions have.
_OF_COMPLETIONS = ("truncated",)


@dataclass(frozen=True)
class _ScoredCompletions:
    """Completions with what an estimator needs of them, one entry per completion."""

    rollouts: Rollouts
    fields: dict[str, Sequence[np.ndarray | np.floating]]  # name → one number, or one array (T_i,), for each


@dataclass
class EstimatorInUse:
    """The estimator that a trainer takes its advantages from."""

    estimator: Estimator | Recipe
    section: MeasurementSection  # how gradients are measured, where the estimator needs them
    n_replaced: int = 0  # batches whose advantages it gave
    # batches that kept the trainer's own, since it could not be computed; each reason is warned of once
    n_kept: int = 0
    _session: MeasuringSession | None = None
    _complaints: WarnOnce = field(default_factory=WarnOnce)

    def replace_advantages(self, generation: Generation) -> None:
        """Put the estimator's advantages into a generated batch and what is logged of it; every process takes part."""
        if _is_group_mean(self.estimator):
            advantages = _group_mean_advantages(generation)
            found = advantages, advantages
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self._of_all(generation)
        if found is None:
            self.n_kept += 1
        else:
            advantages, of_completions = found
            first, ids = generation.first, generation.output["completion_ids"]
            own = advantages[first : first + len(ids)]
            own = own if own.ndim == 1 else own[:, : ids.shape[1]]
            generation.output["advantages"] = own.to(generation.output["advantages"])
            logged, shown = generation.trainer._logs["advantages"], of_completions.tolist()
            for _ in range(min(len(shown), len(logged))):  # the trainer has just put its own there
                logged.pop()
            logged.extend(shown)
            self.n_replaced += 1
        metrics = generation.trainer._metrics["train"]
        metrics[f"{PREFIX}/{plain_label(self.estimator.label)}/in_use"].append(float(found is not None))
        metrics[f"{PREFIX}/kept"].append(float(self.n_kept))

    def _of_all(self, generation: Generation) -> tuple[Tensor, Tensor] | None:
        """Return what :meth:`_advantages` does; None, with a warning, where the estimator cannot be computed."""
        found, error = None, None
        try:
            found = self._scored(generation)
        except (Exception, SystemExit) as reason:
            error = f"{type(reason).__name__}: {reason}"
        parts = gathered(generation.trainer, (found, error))
        try:
            if errors := [one for _, one in parts if one is not None]:
                raise ValueError(errors[0])
            return self._advantages(generation, [part for part, _ in parts if part is not None])
        except (Exception, SystemExit) as reason:
            step = generation.trainer.state.global_step
            self._complaints.say(f"step {step} keeps the trainer's own advantages", reason)
            return None

    def _scored(self, generation: Generation) -> _ScoredCompletions | None:
        """Return this process's usable completions with what the estimator needs; None where there are none."""
        rollouts = generation.rollouts()
        needed = [name for name in self.estimator.needs if name not in _OF_COMPLETIONS]
        if rollouts is None or not needed:
            return None if rollouts is None else _ScoredCompletions(rollouts, {})
        with live_policy(generation.trainer) as policy, torch.enable_grad():
            self._session = opened(self._session, policy, rollouts, self.section)
            if set(needed) <= set(_OF_FORWARD):
                statistics = self._session.token_statistics(rollouts)
                return _ScoredCompletions(rollouts, {name: statistics[name] for name in needed})
            measured = self._session.measure(rollouts)
        # Completions whose gradient is not finite are missing.
        return _ScoredCompletions(measured.rollouts, {name: list(getattr(measured, name)) for name in needed})

    def _advantages(self, generation: Generation, parts: Sequence[_ScoredCompletions]) -> tuple[Tensor, Tensor]:
        """Return the advantages of all processes' completions, (N,) or (N, T), 0 where one is not usable, and the mean
        over the counted tokens of each, (N,).
        """
        if not any((part.rollouts.lengths > 0).any() for part in parts):
            raise ValueError("no completion has a reward and a token that counts")
        joined = _ScoredCompletions(
            Rollouts.concatenate(part.rollouts for part in parts),
            {name: [value for part in parts for value in part.fields[name]] for name in parts[0].fields},
        )
        batch = Batch.from_measurement(joined, **joined.fields)
        found = self.estimator.advantages(batch)
        if not np.isfinite(found).all():
            raise ValueError(f"{self.estimator.label} gives advantages that are not finite")
        places = joined.rollouts.prompt_id.astype(int) * generation.trainer.num_generations + joined.rollouts.sample_id
        advantages = np.zeros((len(generation.rewards_per_function), *found.shape[1:]))
        advantages[places] = found
        of_completions = advantages
        if found.ndim == 2:
            of_completions = np.zeros(len(advantages))
            of_completions[places] = found.sum(axis=1) / np.maximum(batch.lengths, 1)
            width = generation.output["completion_ids"].shape[1]
            advantages = np.pad(advantages, ((0, 0), (0, max(width - found.shape[1], 0))))
        return torch.from_numpy(advantages), torch.from_numpy(of_completions)


def use_estimator(trainer: Trainer, label: str, *, token_probes: int = 0) -> EstimatorInUse:
    r"""Let a trainer take its advantages from an estimator; call this before ``trainer.train()``.

    Whatever else the trainer's settings say stays: ratio, clip, aggregation (``loss_type``), KL and masks; of a recipe
    only the advantages are used. Advantages are computed in float64 from the rewards of all processes. ``group_mean``,
    under any name, is computed as GRPOTrainer does with ``scale_rewards="none"``, to which it is equal bit for bit. A
    completion without a reward is left out and gets advantage 0. One of which no token counts, as of a truncated one
    with ``mask_truncated_completions``, stays in its group: its reward is in the mean and the deviation, as in TRL.
    Where an estimator cannot be computed on a batch, the trainer's own advantages stay, with a warning for each reason.

    TRL's table of completions (``log_completions``) shows the advantages that are learnt from, of tokens their mean.
    The trainer's reporters log ``gradstats/LABEL/in_use``, the share of batches whose advantages the estimator gave,
    and ``gradstats/kept``, how many have kept the trainer's own so far.

    Token-level estimators such as ``otb`` give advantages (B, T), of which only GRPOTrainer's losses can make use. What
    needs :math:`\sum\pi^2`, entropies or log-probabilities takes one more forward pass at every generation; what needs
    gradient norms, such as ``norm_weighted``, takes a measurement without sketches.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer`` of TRL.
        label: of a baseline or a recipe, as for :func:`gradstats.compare`.
        token_probes: random directions for estimators that need token energies.

    Returns:
        What counts the batches.

    Raises:
        KeyError: for an unknown estimator.
        TypeError: as :func:`gradstats.integrations.trl.contract.check_trainer`.
        ValueError: for a trainer that cannot be used, or that has an estimator already; for an estimator that needs
            what a trainer does not have, or whose advantages the trainer's loss cannot use.
    """
    check_trainer(trainer)
    with torch_as_it_was():
        estimator = families.get(label)
    if IN_USE in vars(trainer):
        raise ValueError(
            f"this trainer takes its advantages from {vars(trainer)[IN_USE].estimator.label} already: make another "
            "trainer"
        )
    known = (*_OF_FORWARD, *_OF_GRADIENTS, *_OF_COMPLETIONS, *(_OF_PROBES if token_probes else ()))
    missing = [need for need in estimator.needs if need not in known]
    if missing:
        remedy = "set token_probes" if missing[0] in _OF_PROBES else f"in a study, {how_to_get(missing[0])}"
        raise ValueError(f"{estimator.label} needs {missing[0]}, which a trainer does not have: {remedy}")
    _refuse_unfit_loss(trainer, estimator)
    section = MeasurementSection(sketch_dim=None, token_probes=token_probes)
    used = EstimatorInUse(estimator, section)
    intercept(trainer, used.replace_advantages)
    vars(trainer)[IN_USE] = used
    return used


def _is_group_mean(estimator: Estimator | Recipe) -> bool:
    """Return whether advantages are rewards less the plain mean of the group, under whatever name."""
    advantage = estimator
    if isinstance(estimator, Recipe):
        if estimator.of_advantages:
            return False
        advantage = estimator.advantage
    plain = families.get("group_mean").parameters
    return advantage.name in ("group_mean", "rloo", "dr_grpo") and plain == {**plain, **advantage.parameters}


def _group_mean_advantages(generation: Generation) -> Tensor:
    """Return the advantages of all processes' completions, (N,), by the float32 operations of GRPOTrainer."""
    rewards, size = generation.rewards(), generation.trainer.num_generations
    means = torch.nanmean(rewards.view(-1, size), dim=1).repeat_interleave(size, dim=0)
    return torch.nan_to_num(rewards - means, nan=0.0)


def _refuse_unfit_loss(trainer: Trainer, estimator: Estimator | Recipe) -> None:
    """Refuse advantages that a trainer's loss would use otherwise than is meant."""
    level = estimator.advantage.level if isinstance(estimator, Recipe) else estimator.level
    # RLOOTrainer has one loss only.
    loss_type = getattr(trainer, "loss_type", None)
    if level == "token":
        if loss_type is None:
            raise ValueError(
                f"{estimator.label} gives one advantage for each token, and {type(trainer).__name__} takes one for "
                "each completion: use GRPOTrainer"
            )
        if loss_type == "vespo" or getattr(trainer, "off_policy_mask_threshold", None) is not None:
            what = 'loss_type="vespo"' if loss_type == "vespo" else "off_policy_mask_threshold"
            raise ValueError(f"{estimator.label} gives one advantage for each token, which {what} cannot use: unset it")
    if loss_type is None and trainer.beta != 0.0:
        raise ValueError(
            f"{type(trainer).__name__} puts the KL penalty (beta={trainer.beta:g}) into rewards that it does not hand "
            "on: set beta=0, or use GRPOTrainer, whose penalty is in the loss"
        )
