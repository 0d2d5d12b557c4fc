"""Components of a recipe, beside those that depend on ratios: scale, aggregation, KL term, filter, reward, mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from gradstats.config.options import read_label
from gradstats.estimators.baselines.grouping import is_batch_level, packed_rewards, reduce_by_group, unpack
from gradstats.estimators.baselines.scaled import divide_by_deviation, group_mean_scale, standard_deviation
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import (
    FINITE,
    SEQUENCE_SUM,
    SWITCH,
    NamedFunction,
    Parameters,
    Parametrised,
    Rule,
    as_factory,
    bind_parameters,
    check_parameters,
    one_of,
    suggest,
)
from gradstats.estimators.ratios import exponential, log_mismatch, log_ratios, log_staleness

Kind = Literal["scale", "ratio", "correction", "aggregation", "kl", "filter", "reward", "mask"]

#: The component of each kind that a recipe has unless it names another: it leaves the plain sum as it is.
DEFAULT_COMPONENTS: dict[Kind, str] = {
    "scale": "none", "ratio": "none", "correction": "none", "aggregation": SEQUENCE_SUM, "kl": "none", "filter": "none",
    "reward": "none", "mask": "none",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComponentDefinition(NamedFunction):
    """A named component, whatever its parameters; the level is "token" where it varies along a completion."""

    kind: Kind
    # How many leading arguments of the function are data.
    skip: int = 1
    needs: tuple[str, ...] = ()
    # Of a filter, whether baselines and scales are those of what it keeps.
    before_baseline: bool = False
    # Whether it has no effect where every ratio is 1.
    of_ratios: bool = False
    # Of a ratio component, whether it has an effect there.
    on_policy: bool = False
    # Whether what a ratio multiplies advantages by depends on their sign.
    signed: bool = True
    # Whether what it gives is a multiple of the advantage, for each sign.
    proportional: bool = True
    # Whether its effect on a completion is the same in every batch, given its parameters.
    fixed: Callable[[Parameters], bool] = lambda parameters: True
    # What its parameters accept, where that differs from other estimators' parameters of the name.
    rules: Mapping[str, Rule] = field(default_factory=dict, compare=False)  # a dict has no hash


class Component(Parametrised[ComponentDefinition]):
    """One component with its parameters; calling it applies it to its data."""

    def __call__(self, *data: object) -> Any:
        """Apply the component to its data; what it returns depends on its kind."""
        return self.definition.function(*data, **self.parameters)


COMPONENTS: dict[Kind, dict[str, ComponentDefinition]] = {kind: {} for kind in get_args(Kind)}


def component(kind: Kind, name: str, **properties: Any) -> Callable[[Callable[..., object]], Callable[..., Component]]:
    """Register a component, with fields of its definition, and turn its function into the factory of that name."""

    def decorate(function: Callable[..., object]) -> Callable[..., Component]:
        own: dict[str, Any] = {"unit": lambda parameters: name} | properties
        definition = ComponentDefinition(kind=kind, name=name, function=function, **own)
        COMPONENTS[kind][name] = definition
        return as_factory(definition, _make)

    return decorate


def _make(definition: ComponentDefinition, arguments: tuple[object, ...], keywords: Parameters) -> Component:
    what = f"{definition.kind} {definition.name}"
    parameters = bind_parameters(what, definition.function, arguments, keywords, skip=definition.skip)
    check_parameters(what, definition.function, parameters, definition.rules)
    return Component(definition, parameters)


def get_component(kind: Kind, name: str | Component, /, **parameters: object) -> Component:
    """Find a component by kind and by name or label, as in ``get_component("ratio", "token_clip(eps_high=0.28)")``."""
    if isinstance(name, Component):
        if name.definition.kind != kind:
            raise TypeError(f"{name.label} is a component of kind {name.definition.kind}, given as {kind}")
        return name
    base, from_label = read_label(name)
    return _make(_find(kind, base), (), {**from_label, **parameters})


def parameter_names(kind: Kind, name: str) -> dict[str, bool]:
    """Return the names of the parameters that a component takes, and whether each is required."""
    definition = _find(kind, name)
    declared = list(inspect.signature(definition.function).parameters.values())[definition.skip :]
    return {parameter.name: parameter.default is parameter.empty for parameter in declared}


def kind_of(label: str) -> Kind:
    """Return the kind of a component that does something: names are unique among those."""
    base, _ = read_label(label)
    for kind, known in COMPONENTS.items():
        if base in known:
            return kind
    raise KeyError(f"no component is called {base!r}")


def _find(kind: Kind, name: str) -> ComponentDefinition:
    if name not in COMPONENTS[kind]:
        raise KeyError(f"no {kind} is called {name!r}: {suggest(name, list(COMPONENTS[kind]))}")
    return COMPONENTS[kind][name]


#: What the component "none" of each kind makes of its data; the aggregation has none.
_NOTHING: dict[Kind, Callable[..., object]] = {
    "scale": lambda advantages, batch: advantages,
    "ratio": lambda advantages, log_ratio, batch: advantages,
    "correction": lambda log_mismatch, batch: np.ones_like(log_mismatch),
    "kl": lambda batch: (batch, 0.0),
    "filter": lambda batch: np.ones(batch.rewards.size, dtype=bool),
    "reward": lambda batch: np.zeros(batch.rewards.size),
    "mask": lambda batch: batch.mask,
}
for _kind, _function in _NOTHING.items():
    component(_kind, "none", skip=len(inspect.signature(_function).parameters), signed=False)(_function)


@component("scale", "group_std", skip=2)
def group_std(
    advantages: Float[np.ndarray, "..."], batch: Batch, ddof: int = 1, eps: float = 1e-6
) -> Float[np.ndarray, "..."]:
    r"""Return A/(std of the group's rewards + ε). GRPO, 2402.03300; a group of one is left unchanged.

    Args:
        ddof: the divisor of the variance is N − ddof (verl and TRL 1; rllm and open-instruct 0).
        eps: ε (verl 1e-6, TRL 1e-4, open-instruct 1e-8).
    """
    alone = batch.group_sizes[batch.group_index] == 1
    deviation = standard_deviation(batch.rewards, batch.group_index, batch.n_groups, ddof)
    return _divide(advantages, np.where(alone, 1.0, deviation), np.where(alone, 0.0, eps))


@component("scale", "batch_std", skip=2, across_groups=lambda parameters: True)
def batch_std(
    advantages: Float[np.ndarray, "..."], batch: Batch, ddof: int = 1, eps: float = 1e-6
) -> Float[np.ndarray, "..."]:
    r"""Return A/(std of the whole batch's rewards + ε); batch-level.

    Args:
        ddof: the divisor of the variance is n − ddof for n completions in the batch.
        eps: ε.
    """
    one_set = np.zeros(batch.rewards.size, dtype=np.int64)
    deviation = standard_deviation(batch.rewards, one_set, 1, ddof)
    return _divide(advantages, deviation, np.full_like(deviation, eps))


@component("scale", "group_mean", skip=2)
def group_mean(advantages: Float[np.ndarray, "..."], batch: Batch) -> Float[np.ndarray, "..."]:
    """Return A/R̄, and 0 for a group whose rewards are all zero. MaxRL, 2602.02710."""
    return advantages / _column(group_mean_scale(batch), advantages)


def _divide(
    advantages: Float[np.ndarray, "..."], deviation: Float[np.ndarray, "n"], eps: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "..."]:
    inverse = divide_by_deviation(np.ones_like(deviation), deviation + eps, 0.0, "the scaled advantage")
    return advantages * _column(inverse, advantages)


def _column(values: Float[np.ndarray, "n"], like: np.ndarray) -> np.ndarray:
    return values if like.ndim == 1 else values[:, None]


@component("aggregation", SEQUENCE_SUM)
def sequence_sum(batch: Batch) -> Float[np.ndarray, "n"]:
    """Return 1/N Σ_i Σ_t, with N the completions of the group."""
    return 1.0 / batch.group_sizes[batch.group_index]


@component("aggregation", "sequence_mean")
def sequence_mean(batch: Batch) -> Float[np.ndarray, "n"]:
    """Return 1/N Σ_i 1/T_i Σ_t. GRPO, 2402.03300.

    A completion without a counted token is one of the N, as in TRL; verl's ``seq-mean-…`` leave it out.
    """
    return 1.0 / (batch.group_sizes[batch.group_index] * np.maximum(batch.lengths, 1))


@component("aggregation", "token_mean", across_groups=is_batch_level)
def token_mean(batch: Batch, scope: str = "group") -> Float[np.ndarray, "n"]:
    """Return 1/ΣT Σ_i Σ_t. DAPO, 2503.14476.

    Args:
        scope: ``"group"`` sums T over the group, as in the paper's equation and SkyRL's ``prompt_mean``; ``"batch"``
            over the batch, as verl, TRL and prime-rl do.
    """
    if scope == "batch":
        return np.full(batch.rewards.size, batch.n_groups / max(int(batch.lengths.sum()), 1))
    totals = np.bincount(batch.group_index, weights=batch.lengths, minlength=batch.n_groups)
    return 1.0 / np.maximum(totals, 1)[batch.group_index]


@component("aggregation", "local_token_mean", across_groups=lambda parameters: True)
def local_token_mean(batch: Batch, completions: int = 8) -> Float[np.ndarray, "n"]:
    r"""Return :math:`\frac1K\sum_k \frac{1}{\sum_{i \in k}T_i}\sum_{i \in k}\sum_t` over K micro-batches.

    TRL's ``bnpo``: batch-level, in the order of the completions. A token's weight depends on who shares its
    micro-batch: with 1 completion this is ``sequence_mean``, with all of them ``token_mean(scope="batch")``.

    Args:
        completions: completions of a micro-batch, ``per_device_train_batch_size``, 8 in TRL; the last may have fewer.
    """
    micro = np.arange(batch.rewards.size) // completions
    totals = np.maximum(np.bincount(micro, weights=batch.lengths), 1)
    return batch.n_groups / (len(totals) * totals[micro])


@component(
    "aggregation",
    "constant",
    unit=lambda parameters: (
        "constant" if parameters["max_tokens"] is None else f"constant(max_tokens={parameters['max_tokens']:g})"
    ),
)
def constant(batch: Batch, max_tokens: float | None = None) -> Float[np.ndarray, "n"]:
    """Return 1/(N·L) Σ_i Σ_t, with one L for all. Dr. GRPO, 2503.20783.

    Args:
        max_tokens: L, the cap on the completion's length; without it the width T of the batch, as in verl.
            It changes only the unit.
    """
    width = batch.mask.shape[1] if max_tokens is None else max_tokens
    return 1.0 / (batch.group_sizes[batch.group_index] * width)


@component("aggregation", "delta_l", rules={"alpha": FINITE})
def delta_l(batch: Batch, alpha: float = 1.0) -> Float[np.ndarray, "n"]:
    """Return T_i^{−α}/Σ_j T_j^{−α}·Σ_t over the completions of the group: ΔL normalisation, 2509.07558.

    The weights of least variance where that of a completion's gradient grows like T^α.

    Args:
        alpha: α; 0 is the plain mean over completions.
    """
    counted = batch.lengths > 0
    shares = np.where(counted, np.maximum(batch.lengths, 1).astype(np.float64) ** -alpha, 0.0)
    totals = np.bincount(batch.group_index, weights=shares, minlength=batch.n_groups)[batch.group_index]
    return np.divide(shares, totals, out=np.zeros_like(shares), where=counted)


_KL_NEEDS = ("logprobs", "ref_logprobs")


def _log_ratio_to_reference(batch: Batch) -> Float[np.ndarray, "n t"]:
    """Return k1 = log π/π_ref at every counted token, 0 elsewhere."""
    assert batch.logprobs is not None
    assert batch.ref_logprobs is not None
    return batch.logprobs - batch.ref_logprobs


def divergence(k1: Float[np.ndarray, "n t"], kind: str) -> Float[np.ndarray, "n t"]:
    """Return an estimate of the divergence at each token, "k1", "k2" or "k3", from k1."""
    if kind == "k1":
        return k1
    return k1**2 / 2 if kind == "k2" else np.expm1(-k1) + k1


@component("kl", "in_reward", needs=_KL_NEEDS)
def in_reward(batch: Batch, beta: float = 0.05, kind: str = "k1") -> tuple[Batch, float]:
    """Replace the token rewards by r_t − β·k and add nothing to the loss.

    Args:
        batch: the completions, with ``logprobs`` and ``ref_logprobs``.
        beta: β.
        kind: "k1" (InstructGPT's, 2203.02155), "k2" or "k3"; verl's ``kl``, ``mse`` and ``low_var_kl``, the last of
            which it clamps to ±10.
    """
    penalty = beta * divergence(_log_ratio_to_reference(batch), kind)
    token_rewards = unpack(packed_rewards(batch), batch.mask) - penalty
    return batch.with_fields(rewards=batch.rewards - penalty.sum(axis=1), token_rewards=token_rewards), 0.0


@component("kl", "in_loss", level="token", needs=_KL_NEEDS)
def in_loss(
    batch: Batch, beta: float = 0.001, kind: str = "k3", by_ratio: bool | None = None
) -> tuple[Batch, Float[np.ndarray, "n t"]]:
    r"""Add −β·dk/dk1, or −β·ρ·dk/dk1, to the weight of s_t; the rewards stay as they are.

    On-policy k2 has the gradient of the divergence KL(π‖π_ref) (2510.01555); from another sampler it does with the
    weight ρ = π/π_prox (π/π_old without ``proximal_logprobs``). That is the gradient of ρ·k3, differentiated through ρ
    as well: TRL's default, ``use_bias_correction_kl=True``. TRL without it, and GRPO as published, have k3. verl's
    ``kl_loss_type`` is k3 for ``low_var_kl``, k1 for ``kl`` and, with ``by_ratio=False``, k2 for ``mse`` and every type
    that ends in "+".

    Args:
        batch: the completions, with ``logprobs`` and ``ref_logprobs``.
        beta: β.
        kind: "k1", "k2" or "k3" (GRPO's).
        by_ratio: whether the weight is multiplied by ρ, which is held fixed; by default that of k2 alone.
    """
    k1 = _log_ratio_to_reference(batch)
    slope = {"k1": np.ones_like(k1), "k2": k1, "k3": -np.expm1(-k1)}[kind]
    if kind == "k2" if by_ratio is None else by_ratio:
        log_ratio = (log_ratios if batch.proximal_logprobs is None else log_staleness)(batch, "kl in_loss")
        slope = exponential(log_ratio) * slope
    return batch, np.where(batch.mask, -beta * slope, 0.0)


@component("kl", "to_sampler", level="token", of_ratios=True)
def to_sampler(batch: Batch, beta: float = 0.002) -> tuple[Batch, Float[np.ndarray, "n t"]]:
    r"""Subtract :math:`\frac β2 \log^2 ρ_t`, ρ = π/π_old, from the objective: −β·log ρ_t beside the weight of s_t.

    Kimi K2.5's penalty of the distance to the sampler, 2602.02276; 0 on-policy. prime-rl's default is
    :math:`\mathrm{kl\_tau}\log^2 ρ` with ``kl_tau=1e-3``, β = 0.002; verl's ``dro`` has β = ``dro_beta``.

    Args:
        batch: the completions, with both log-probabilities.
        beta: β.
    """
    return batch, np.where(batch.mask, -beta * log_ratios(batch, "kl to_sampler"), 0.0)


@component(
    "kl",
    "entropy_bonus",
    level="token",
    needs=("logprobs", "entropy"),
    across_groups=lambda parameters: parameters["over"] == TOKENS,
    rules={"over": one_of("loss", "tokens")},
)
def entropy_bonus(batch: Batch, beta: float = 0.001, over: str = "loss") -> tuple[Batch, Float[np.ndarray, "n t"]]:
    r"""Add :math:`β\,ρ_t(-\log π_t - H_t)` to the weight of s_t, an unbiased estimate of :math:`β∇H_t`, of the entropy.

    Trainers (``entropy_coeff`` of verl, ``entropy_coef`` of TRL) differentiate H through the whole vocabulary, which is
    the expectation of this given the prefix: E[ĝ] is theirs, and the noise at least theirs.

    Args:
        batch: the completions, with ``logprobs`` and ``entropy``.
        beta: β, by how much entropy is rewarded.
        over: averaged as the ``"loss"`` (verl), or over the ``"tokens"`` of the batch that filter and mask keep,
            whatever the loss (TRL, in each micro-batch).
    """
    assert batch.logprobs is not None
    assert batch.entropy is not None
    ratio = exponential(log_ratios(batch, "kl entropy_bonus"))
    return batch, np.where(batch.mask, -beta * ratio * (batch.logprobs + batch.entropy), 0.0)


@component("filter", "dynamic_sampling")
def dynamic_sampling(batch: Batch) -> Bool[np.ndarray, "n"]:
    """Keep groups whose rewards are not all equal. DAPO, 2503.14476, draws other prompts for the rest."""
    return differing_groups(batch)[batch.group_index]


@component("filter", "reward_spread")
def reward_spread(batch: Batch, least: float = 0.0) -> Bool[np.ndarray, "n"]:
    r"""Keep groups whose rewards have a standard deviation (N − 1) above a bound.

    0 is ``dynamic_sampling``, verl's ``filter_groups`` and SkyRL's ``zero_variance_filter``. For 0/1 rewards a greater
    one keeps prompts of middling success. How many completions a prompt gets (VIP, HORA) is decided before any is
    drawn, and weights none of them: the notes of ``gradstats ask RUN allocation`` say what it saves.

    Args:
        least: the bound.
    """
    deviation = standard_deviation(batch.rewards, batch.group_index, batch.n_groups, ddof=1)
    return np.nan_to_num(deviation) > least


@component("filter", "max_variance", before_baseline=True)
def max_variance(batch: Batch, keep: int = 4, rescale: bool = True) -> Bool[np.ndarray, "n"]:
    r"""Keep the n completions of each group whose rewards have the greatest variance: PODS, 2504.13818.

    They are the a best and the n − a worst for some a. Baselines and deviations are those of the kept completions,
    which were chosen by their rewards: even a leave-one-out baseline is biased.

    Args:
        keep: n; smaller groups are kept whole. Of equal rewards the first in the batch are kept, of equal variances
            that with fewer of the best.
        rescale: whether the aggregation's denominators count the kept alone.
    """
    kept = np.zeros(batch.rewards.size, dtype=bool)
    for group in range(batch.n_groups):
        rows = np.flatnonzero(batch.group_index == group)
        size = min(keep, rows.size)
        descending = rows[np.argsort(-batch.rewards[rows], kind="stable")]
        ascending = rows[np.argsort(batch.rewards[rows], kind="stable")]
        subsets = [np.concatenate([descending[:best], ascending[: size - best]]) for best in range(size + 1)]
        subsets = [rows for rows in subsets if len(set(rows)) == size]
        kept[max(subsets, key=lambda rows: batch.rewards[rows].var())] = True
    return kept


#: The default of ``mask_truncated(rescale=…)``: TRL's.
TOKENS = "tokens"


@component(
    "filter",
    "mask_truncated",
    needs=("truncated",),
    rules={"rescale": (lambda value: value == TOKENS or SWITCH[0](value), f"{TOKENS!r}, True or False")},
)
def mask_truncated(batch: Batch, dynamic_sampling: bool = False, rescale: bool | str = TOKENS) -> Bool[np.ndarray, "n"]:
    """Drop completions that were cut off at the cap of new tokens: DAPO's overlong filtering, 2503.14476, section 3.4.

    Their rewards stay in the baselines of the others, as in TRL's ``mask_truncated_completions``. The gradient lacks
    the contribution of the longest completions and is therefore biased.

    Args:
        batch: the completions, with ``truncated``.
        dynamic_sampling: also drop groups whose rewards are all equal, as DAPO does.
        rescale: what of the dropped completions the aggregation's denominators leave out. ``"tokens"``: their tokens,
            while they count as completions: TRL from 1.9 on, for every ``loss_type``. ``True``: the completions too,
            as verl does with an empty ``response_mask``. ``False``: nothing, as TRL before 1.9.
    """
    assert batch.truncated is not None
    kept = ~batch.truncated
    return kept & differing_groups(batch)[batch.group_index] if dynamic_sampling else kept


def differing_groups(batch: Batch) -> Bool[np.ndarray, "groups"]:
    """Return which groups hold two rewards that differ."""
    greatest = reduce_by_group(batch.rewards, batch.group_index, batch.n_groups, np.maximum)
    least = reduce_by_group(batch.rewards, batch.group_index, batch.n_groups, np.minimum)
    return greatest > least


@component("reward", "soft_overlong")
def soft_overlong(batch: Batch, max: float, cache: float) -> Float[np.ndarray, "n"]:  # DAPO's names
    r"""Return DAPO's soft overlong punishment, 2503.14476, equation 13, a term of the reward by length.

    .. math:: 0 \text{ for } T ≤ L_{max} − L_{cache}, \quad (L_{max} − L_{cache} − T)/L_{cache} \text{ up to } L_{max},
        \quad −1 \text{ beyond.}

    It is part of the reward: the estimator then estimates the gradient of the punished reward, while a comparison
    judges it against the gradient of the measured reward. Dynamic sampling looks at the rewards without it, as DAPO
    does.

    Args:
        max: L_max, the greatest length, in counted tokens.
        cache: L_cache, the length over which the punishment sets in.

    Raises:
        ValueError: for a cache that is longer than the greatest length.
    """
    if cache > max:
        raise ValueError(f"reward soft_overlong: cache is {cache:g}, more than max, {max:g}: give at most max")
    return np.clip((max - cache - batch.lengths) / cache, -1.0, 0.0)


def _by_share(parameters: Parameters) -> bool:
    return parameters["threshold"] is None


@component(
    "mask",
    "top_entropy",
    level="token",
    needs=("entropy",),
    across_groups=lambda parameters: _by_share(parameters) and parameters["scope"] == "batch",
    fixed=lambda parameters: not _by_share(parameters),
)
def top_entropy(
    batch: Batch, share: float = 0.2, scope: str = "batch", threshold: float | None = None, rescale: bool = False
) -> Bool[np.ndarray, "n t"]:
    """Keep the tokens of the highest entropy: the top 20 % in Wang et al. 2506.01939.

    A token counts where its entropy is at least the (1 − share) quantile (linearly interpolated) of the entropies of
    all counted tokens. On-policy, the expected gradient loses the terms of all other tokens.

    Args:
        batch: the completions, with ``entropy``.
        share: the share of tokens that is kept.
        scope: whether the quantile is that of the ``"batch"``, as in the paper, or of each ``"group"``.
        threshold: keep entropies of at least this many nats instead, the same in every batch: the gradients can then be
            measured once, as a further weighting.
        rescale: whether the aggregation's denominators count only the kept tokens; in the paper they count all.
    """
    assert batch.entropy is not None
    if threshold is not None:
        return batch.mask & (batch.entropy >= threshold)
    if scope == "batch":
        return batch.mask & (batch.entropy >= np.quantile(batch.entropy[batch.mask], 1.0 - share))
    kept = np.zeros_like(batch.mask)
    for group in range(batch.n_groups):
        rows = batch.group_index == group
        least = np.quantile(batch.entropy[rows][batch.mask[rows]], 1.0 - share)
        kept[rows] = batch.mask[rows] & (batch.entropy[rows] >= least)
    return kept


@component("mask", "reject_tokens", level="token", of_ratios=True)
def reject_tokens(
    batch: Batch, high: float, kind: str = "k1", low: float | None = None, rescale: bool = True
) -> Bool[np.ndarray, "n t"]:
    r"""Keep tokens whose divergence from the sampler is in bounds.

    ``token_k1``, ``token_k2`` and ``token_k3`` of verl's ``rollout_rs``. With
    ρ = π_prox/π_old (π/π_old without ``proximal_logprobs``), k1 = −log ρ, k2 = ½(log ρ)² and k3 = ρ − 1 − log ρ.

    Args:
        batch: the completions, with both log-probabilities; without ``old_logprobs`` all tokens are kept.
        high: the greatest ratio ρ for k1, the greatest divergence for k2 and k3.
        kind: "k1", "k2" or "k3".
        low: the least ratio for k1, 1/high by default, as in verl; k2 and k3 have none.
        rescale: whether the aggregation's denominators count only the kept tokens, as in verl.

    Raises:
        ValueError: for bounds that do not suit the kind.
    """
    return batch.mask & _within(_divergence_from_sampler(batch, kind), kind, low, high)


@component("mask", "reject_completions", of_ratios=True)
def reject_completions(
    batch: Batch, high: float, kind: str = "k1", over: str = "mean", low: float | None = None, rescale: bool = True
) -> Bool[np.ndarray, "n t"]:
    """Keep completions whose divergence from the sampler is in bounds: verl's ``seq_mean_k1``, ``seq_sum_k3``, ….

    Args:
        batch: the completions, with both log-probabilities; without ``old_logprobs`` all are kept.
        high: the greatest ratio for k1 (of the whole completion for "sum", the geometric mean for "mean"), the greatest
            divergence for k2 and k3.
        kind: "k1", "k2" or "k3", as for :func:`reject_tokens`.
        over: the "mean", "sum" or "max" over the completion's tokens; "max" for k2 and k3 only.
        low: the least ratio for k1, 1/high by default; k2 and k3 have none.
        rescale: whether the aggregation's denominators count only what is kept, as in verl.

    Raises:
        ValueError: for bounds or a maximum that do not suit the kind.
    """
    if kind == "k1" and over == "max":
        raise ValueError("mask reject_completions: over='max' is for k2 and k3, never negative: choose one, or 'mean'")
    divergence = np.where(batch.mask, _divergence_from_sampler(batch, kind), 0.0)
    of_completion = divergence.max(axis=1) if over == "max" else divergence.sum(axis=1)
    if over == "mean":
        of_completion = of_completion / np.maximum(batch.lengths, 1)
    return batch.mask & _within(of_completion, kind, low, high)[:, None]


#: Beyond e^20 verl's rollout correction does not distinguish ratios.
LARGEST_LOG_WEIGHT = 20.0


def _divergence_from_sampler(batch: Batch, kind: str) -> Float[np.ndarray, "n t"]:
    log_ratio = np.clip(log_mismatch(batch, "rejection by the ratio"), -LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT)
    return divergence(-log_ratio, kind)


def _within(divergence: np.ndarray, kind: str, low: float | None, high: float) -> np.ndarray:
    """Return whether divergences are in bounds, of which those of k1 are given as ratios."""
    if kind != "k1":
        if low is not None:
            raise ValueError(f"low is {low:g}, but {kind} is never negative and has no lower bound: leave low out")
        return divergence <= high
    least = 1.0 / high if low is None else low
    if least > high:
        raise ValueError(f"low is {least:g}, above high, {high:g}: give the greatest ratio that is kept as high")
    return (-divergence >= np.log(least)) & (-divergence <= np.log(high))
