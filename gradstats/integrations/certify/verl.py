"""verl's advantage estimators and policy losses as what is certified, called as its trainer and workers call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    ADV_ESTIMATOR_REGISTRY,
    POLICY_LOSS_REGISTRY,
    agg_loss,
    get_adv_estimator_fn,
    get_policy_loss_fn,
    kl_penalty,
)
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig, PolicyLossConfig

from gradstats.integrations.certify.batches import Completions
from gradstats.integrations.certify.invariances import Subject
from gradstats.integrations.certify.labels import known

_AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_KL_KINDS = ("kl", "abs", "mse", "low_var_kl", "kl+", "low_var_kl+")
_OFF = "–"
_KL_COEFFICIENT = _DRO_BETA = 0.1
#: The losses with options of their own, behind their name.
_BYPASS = {
    "bypass_mode reinforce token": ("reinforce", "token"),
    "bypass_mode reinforce sequence": ("reinforce", "sequence"),
    "bypass_mode ppo_clip": ("ppo_clip", None),
}
#: What labels are tried with beside their defaults: verl's own values.
_PARAMETERS = {
    "scope": ("batch",), "dual_clip": (3.0,), "eps_low": (0.2,), "eps_high": (0.2,), "cap": (2.0,),
    "truncate": (2.0,), "normalize": (True,), "whiten": (True, False),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Verl(Subject):
    """One advantage estimator under one policy loss and one aggregation."""

    estimator: str
    loss: str
    aggregation: str
    correction: str = _OFF  # rollout_is: the older sampler is the engine, and the policy has made no step
    kl: str = _OFF

    def advantages(self, batch: Completions) -> Tensor:
        """Return those of the registered function, whose reward lies on the last token."""
        last = batch.tokens.shape[1] - 1 - batch.tokens.flip(1).int().argmax(dim=1)
        rewards = torch.zeros(batch.tokens.shape, dtype=batch.rewards.dtype)
        rewards[torch.arange(len(last)), last] = batch.rewards
        name, _, scaled = self.estimator.partition(" ")
        mask = batch.mask.long()
        config = AlgoConfig(gdpo_reward_keys=["score"])
        given: dict[str, Any] = {"token_level_rewards": rewards, "response_mask": mask}
        if name == "gae":
            given |= {"values": batch.values.to(rewards), "gamma": config.gamma, "lam": config.lam}
        else:
            given |= {"index": np.array([f"prompt {group}" for group in batch.groups], dtype=object)}
        if name == "grpo":
            given["norm_adv_by_std_in_grpo"] = not scaled
        elif name != "gae":
            given |= {"config": config, "reward_baselines": batch.greedy_rewards.to(rewards)}
        if name in ("grpo_vectorized", "gdpo", "grpo_passk", "gpg", "rloo", "rloo_vectorized", "opo"):
            del given["reward_baselines"]
        if name == "gdpo":
            seen = torch.cat([torch.ones_like(mask[:, :1]), batch.tokens.long()], dim=1)
            given["non_tensor_batch"] = {"score": batch.rewards.numpy()}
            given["batch"] = {"prompts": torch.zeros_like(mask[:, :1]), "attention_mask": seen}
        if "optimal_token_baseline" in name:
            # Of the policy as the step began, which has drawn the completions.
            given |= {"sum_pi_squared": batch.old_sum_pi_squared, "old_log_probs": batch.old_logprobs}
        return _in_float64(lambda: get_adv_estimator_fn(name)(**given)[0])

    def weights(self, batch: Completions, advantages: Tensor, steps: int = 1, processes: int = 1) -> Tensor:
        """Differentiate the loss of each micro-batch, normalised by the whole batch, and average over processes."""
        logprobs = batch.logprobs.clone().requires_grad_()
        config = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=self.aggregation,
            policy_loss=self._policy_loss(),
        )  # fmt: skip
        config.global_batch_info.update(
            dp_size=processes, batch_num_tokens=int(batch.mask.sum()), global_batch_size=len(batch.rewards),
            loss_scale_factor=config.loss_scale_factor,
        )  # fmt: skip
        total = torch.zeros_like(logprobs)
        for part in torch.arange(len(batch.rewards)).chunk(steps * processes):
            loss = _in_float64(lambda rows=part: self._loss(batch, logprobs, advantages, rows, config))
            total += torch.autograd.grad(loss, logprobs)[0]
        return -total / processes

    def _policy_loss(self) -> PolicyLossConfig:
        made = PolicyLossConfig(loss_mode=self.loss.split()[0], dro_beta=_DRO_BETA)
        if self.loss in _BYPASS:
            kind, level = _BYPASS[self.loss]
            correction = replace(made.rollout_correction, loss_type=kind, rollout_is=level, bypass_mode=True)
            made = replace(made, rollout_correction=correction)
        return made

    def _loss(
        self, batch: Completions, logprobs: Tensor, advantages: Tensor, rows: Tensor, config: ActorConfig
    ) -> Tensor:
        mask, old, weights = batch.mask[rows], batch.old_logprobs[rows], None
        if self.correction != _OFF:
            found, mask, _ = compute_rollout_correction_and_rejection_mask(
                old_log_prob=batch.logprobs[rows], rollout_log_prob=old, response_mask=mask,
                rollout_is=self.correction, rollout_is_threshold=2.0,
            )  # fmt: skip
            assert found is not None
            weights, old = found.batch["rollout_is_weights"], batch.logprobs[rows]
        of_tokens = advantages if advantages.ndim == 2 else advantages[:, None] * batch.mask
        loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
            old_log_prob=old, log_prob=logprobs[rows], advantages=of_tokens[rows], response_mask=mask,
            loss_agg_mode=self.aggregation, config=config, rollout_is_weights=weights,
        )  # fmt: skip
        if self.kl != _OFF:
            term = kl_penalty(logprob=logprobs[rows], ref_logprob=batch.ref_logprobs[rows], kl_penalty=self.kl)
            loss = loss + _KL_COEFFICIENT * agg_loss(term, mask, self.aggregation, **config.global_batch_info)
        return loss


def _in_float64(compute: Callable[[], Tensor]) -> Tensor:
    """Return what a function gives where numbers without a dtype are float64."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return compute()
    finally:
        torch.set_default_dtype(dtype)


def verl_subjects() -> list[Subject]:
    """Return all advantage estimators, policy losses and KL terms of verl, each with every aggregation.

    Estimators have the loss "vanilla"; losses and KL terms have GRPO's advantages that are not scaled.
    """
    estimators = [name for name in map(str, ADV_ESTIMATOR_REGISTRY) if not name.startswith("gradstats")]
    losses = [name for name in POLICY_LOSS_REGISTRY if name not in ("vanilla", "bypass_mode")]
    plain = "grpo not_by_std"
    chosen = [(name, "vanilla", _OFF, _OFF) for name in (*estimators, plain)]
    chosen += [(plain, loss, _OFF, _OFF) for loss in losses]
    found: list[Subject] = []

    def label(estimator: str, loss: str, correction: str, kl: str, aggregation: str) -> str:
        """Return the label of a setting in verl's words; "" where no recipe stands for it."""
        name, _, unscaled = estimator.partition(" ")
        given: dict[str, object] = {"norm_adv_by_std_in_grpo": False} if unscaled else {}
        given |= {"loss_mode": loss} if loss != "vanilla" else {}
        given |= {"dro_beta": _DRO_BETA} if loss == "dro" else {}
        given |= {"loss_agg_mode": aggregation} if aggregation != _AGGREGATIONS[0] else {}
        given |= {"use_kl_loss": True, "kl_loss_coef": _KL_COEFFICIENT, "kl_loss_type": repr(kl)} if kl != _OFF else {}
        given |= {"rollout_is": correction} if correction != _OFF else {}
        return known(f"verl:{name}", given)

    def add(sampler: str, estimator: str, loss: str, correction: str, kl: str, aggregation: str) -> None:
        setting = {"adv_estimator": estimator, "loss_mode": loss, "loss_agg_mode": aggregation}
        setting |= {"rollout_is": correction} if correction != _OFF else {}
        setting |= {"kl_loss_type": kl} if kl != _OFF else {}
        found.append(
            _Verl(
                setting=setting, sampler=sampler, parameters=_PARAMETERS, estimator=estimator, loss=loss,
                aggregation=aggregation, correction=correction, kl=kl, has_kl=kl != _OFF,
                expected=label(estimator, loss, correction, kl, aggregation), code=("verl",),
            )
        )  # fmt: skip

    for sampler, one, aggregation in product(("on-policy", "older"), chosen, _AGGREGATIONS):
        add(sampler, *one, aggregation)
    for loss, aggregation in product(_BYPASS, _AGGREGATIONS):
        add("older", plain, loss, _OFF, _OFF, aggregation)
    for correction, aggregation in product(("token", "sequence"), _AGGREGATIONS):
        add("older", plain, "vanilla", correction, _OFF, aggregation)
    for sampler, kl in product(("on-policy", "older"), _KL_KINDS):
        add(sampler, plain, "vanilla", _OFF, kl, "seq-mean-token-sum")
    return found
