"""Recipes in a trainer's own words: ``trl:dapo(scale_rewards=batch)``, ``verl:grpo(loss_agg_mode=token-mean)``.

The name behind the prefix is TRL's ``loss_type`` (GRPOConfig, TRL 1.16) or verl's ``adv_estimator`` (verl 0.9), the
parameters are the trainer's, with its defaults. What a setting does is read off the trainer's code; where that departs
from a paper, as ``epsilon_high`` of TRL's CISPO does, the code is followed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gradstats.estimators.estimator import Estimator, bind_parameters, suggest
from gradstats.estimators.recipes.components import Component, get_component
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.estimators.registry import get_estimator

#: Components by kind, and the advantage.
Parts = dict[str, Component | Estimator | str]


def trl(
    loss_type: str,
    scale_rewards: str | bool = "group",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    beta: float = 0.0,
    use_bias_correction_kl: bool = True,
    importance_sampling_level: str = "token",
    vllm_importance_sampling_correction: bool = True,
    vllm_importance_sampling_mode: str | None = None,
    vllm_importance_sampling_clip_max: float = 3.0,
    vllm_importance_sampling_clip_min: float | None = None,
    off_policy_mask_threshold: float | None = None,
    mask_truncated_completions: bool = False,
    top_entropy_quantile: float = 1.0,
    entropy_coef: float = 0.0,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    vespo_k_pos: float = 2.0,
    vespo_lambda_pos: float = 3.0,
    vespo_k_neg: float = 3.0,
    vespo_lambda_neg: float = 2.0,
    max_completion_length: float = 512,
    per_device_train_batch_size: int = 8,
) -> Parts:
    """Return the parts of TRL's loss, as with vLLM: without it set ``vllm_importance_sampling_correction=False``.

    ``num_generations`` is the group size. The mode of importance sampling is ``sequence_mask`` by default, which TRL
    refuses with ``vespo``: there it is ``token_truncate``.
    """
    high = epsilon if epsilon_high is None else epsilon_high
    by_sequence = _choose("importance_sampling_level", importance_sampling_level, {"token": False, "sequence": True})
    clipped = loss_type not in ("cispo", "sapo", "vespo")
    mode = vllm_importance_sampling_mode or ("token_truncate" if loss_type == "vespo" else "sequence_mask")
    correction, bound = _choose("vllm_importance_sampling_mode", mode, _TRL_CORRECTIONS)
    bounds: dict[str, float | None] = {
        bound: vllm_importance_sampling_clip_max,
        "low": vllm_importance_sampling_clip_min,
    }
    if (delta is not None or off_policy_mask_threshold is not None) and (by_sequence or not clipped):
        raise ValueError("delta and off_policy_mask_threshold are known for clipped ratios of tokens: leave them out")
    if beta and (top_entropy_quantile < 1 or (by_sequence and use_bias_correction_kl)):
        raise ValueError(
            "beta is not known with top_entropy_quantile or bias-corrected ratios of sequences: set it to 0, or "
            "use_bias_correction_kl=False"
        )
    if loss_type == "cispo":
        ratio = get_component(
            "ratio", "clipped_weight", convention="trl", eps_high=high, level=importance_sampling_level
        )
    elif loss_type == "sapo":
        ratio = get_component(
            "ratio", "soft_gate", tau_pos=sapo_temperature_pos, tau_neg=sapo_temperature_neg,
            level=importance_sampling_level,
        )  # fmt: skip
    elif loss_type == "vespo":
        if not mode.startswith("token"):
            raise ValueError(
                f"vllm_importance_sampling_mode={mode!r} is refused by TRL for vespo: use 'token_truncate' or "
                "'token_mask'"
            )
        within = {"mismatch": mode.removeprefix("token_"), "cap": bounds[bound], "low": bounds["low"]}
        ratio = get_component(
            "ratio", "gamma_weight", k_pos=vespo_k_pos, lambda_pos=vespo_lambda_pos, k_neg=vespo_k_neg,
            lambda_neg=vespo_lambda_neg, **(within if vllm_importance_sampling_correction else {}),
        )  # fmt: skip
    elif by_sequence:
        ratio = get_component("ratio", "sequence_clip", eps_low=epsilon, eps_high=high)
    else:
        # min(min(ρ, δ)A, clip(ρ)A): δ bounds ρ above for A < 0, and for A > 0 where it is below 1 + ε.
        upper = high if delta is None else min(high, delta - 1)
        two_sided = None if delta is None else max(delta, 1 + high)
        ratio = get_component(
            "ratio", "token_clip", eps_low=epsilon, eps_high=upper, dual_clip=two_sided,
            max_drift=off_policy_mask_threshold,
        )  # fmt: skip
    aggregation = {
        "grpo": "sequence_mean", "sapo": "sequence_mean", "luspo": "sequence_sum",
        "bnpo": get_component("aggregation", "local_token_mean", completions=per_device_train_batch_size),
        "dr_grpo": get_component("aggregation", "constant", max_tokens=max_completion_length),
    }  # fmt: skip
    parts: Parts = {
        "advantage": "group_mean",
        "ratio": ratio,
        "aggregation": aggregation.get(loss_type, "token_mean(scope=batch)"),
    }
    scales = {"group": "group_std", True: "group_std", "batch": "batch_std", "none": None, False: None}
    if scale := _choose("scale_rewards", scale_rewards, scales):
        parts["scale"] = get_component("scale", scale, eps=1e-4)
    if beta:
        kind = "kind=k2" if use_bias_correction_kl else "kind=k3"
        parts["kl"] = get_component("kl", f"in_loss({kind})", beta=beta)
    if entropy_coef:
        if beta:
            raise ValueError("entropy_coef is not known beside a KL term: set it, or beta, to 0")
        parts["kl"] = get_component("kl", "entropy_bonus(over=tokens)", beta=entropy_coef)
    if vllm_importance_sampling_correction and loss_type != "vespo":
        # A loss of one number for each completion is multiplied by the weights of its tokens, and summed over them.
        if by_sequence and loss_type != "cispo" and correction.endswith("tokens"):
            bounds["averaged"] = True
        parts["correction"] = get_component("correction", correction, **bounds)
    if mask_truncated_completions:
        parts["filter"] = "mask_truncated"
    if top_entropy_quantile < 1:
        parts["mask"] = get_component("mask", "top_entropy", share=top_entropy_quantile)
    return parts


_TRL_CORRECTIONS = {
    "sequence_mask": ("mask_completions", "high"), "sequence_truncate": ("truncate_completions", "cap"),
    "token_mask": ("mask_tokens", "high"), "token_truncate": ("truncate_tokens", "cap"),
}  # fmt: skip


def verl(
    adv_estimator: str,
    norm_adv_by_std_in_grpo: bool = True,
    gamma: float = 1.0,
    lam: float = 1.0,
    gdpo_reward_keys: str = "reward",
    gdpo_reward_weights: str | None = None,
    loss_mode: str = "vanilla",
    loss_agg_mode: str = "token-mean",
    loss_scale_factor: float | None = None,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = 0.2,
    clip_ratio_high: float | None = 0.2,
    clip_ratio_c: float = 3.0,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    dro_beta: float | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    kl_cov_ratio: float = 0.0002,
    ppo_kl_coef: float = 0.1,
    use_kl_loss: bool = False,
    kl_loss_coef: float = 0.001,
    kl_loss_type: str = "low_var_kl",
    use_kl_in_reward: bool = False,
    kl_coef: float = 0.001,
    kl_penalty: str = "kl",
    entropy_coeff: float = 0.0,
    rollout_is: str | None = None,
    rollout_is_threshold: float = 2.0,
    filter_groups: bool = False,
) -> Parts:
    """Return the parts of verl's loss. ``clip_ratio`` counts where ``clip_ratio_low`` and ``_high`` are None alone.

    ``token-sum`` is ``sequence_sum`` here: times the batch's completions, the same relative noise. Keys and weights of
    ``gdpo`` are separated by commas, as in ``gdpo_reward_keys='accuracy, format'``; ``reward`` is the reward itself.
    """
    low = clip_ratio if clip_ratio_low is None else clip_ratio_low
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    columns = _weighted_columns(gdpo_reward_keys, gdpo_reward_weights)
    advantages = _verl_advantages(norm_adv_by_std_in_grpo, gamma, lam, columns)
    parts: Parts = {"advantage": _choose("adv_estimator", adv_estimator, advantages)}
    if adv_estimator in ("grpo", "grpo_vectorized") and norm_adv_by_std_in_grpo:
        parts["scale"] = "group_std"
    if adv_estimator == "gpg":
        parts["scale"] = "nonzero_share(of=rewards)"
    widths = {"eps_low": low, "eps_high": high}
    choices: dict[object, tuple[str, dict[str, Any]] | None] = {
        "vanilla": ("token_clip", widths | {"dual_clip": clip_ratio_c}),
        "dppo_tv": ("divergence_clip", widths | {"kind": "tv", "cap": clip_ratio_c}),
        "dppo_kl": ("divergence_clip", widths | {"kind": "kl", "cap": clip_ratio_c}),
        "gspo": ("sequence_clip", widths),
        "sapo": ("soft_gate", {"tau_pos": tau_pos, "tau_neg": tau_neg}),
        "geo_mean": ("geometric_clip", widths),
        "cispo": ("clipped_weight", widths),
        "clip_cov": ("clip_cov", widths | {"share": clip_cov_ratio, "low": clip_cov_lb, "high": clip_cov_ub}),
        "kl_cov": ("kl_cov", {"share": kl_cov_ratio, "beta": ppo_kl_coef}),
        "gpg": None,
        "dro": None,
    }
    if chosen := _choose("loss_mode", loss_mode, choices):
        parts["ratio"] = get_component("ratio", chosen[0], **chosen[1])
    aggregations = {
        "token-mean": "token_mean(scope=batch)", "token-sum": "sequence_sum", "seq-mean-token-sum": "sequence_sum",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum-norm": get_component("aggregation", "constant", max_tokens=loss_scale_factor),
    }  # fmt: skip
    parts["aggregation"] = _choose("loss_agg_mode", loss_agg_mode, aggregations)
    if loss_mode in ("sapo", "geo_mean"):  # whatever the mode of aggregation
        parts["aggregation"] = "sequence_mean"
    if loss_mode == "dro":
        if dro_beta is None or use_kl_loss:
            raise ValueError("loss_mode=dro needs a value for dro_beta, and no use_kl_loss beside it")
        parts["kl"] = get_component("kl", "to_sampler", beta=dro_beta)
    if use_kl_loss:
        kind = _choose("kl_loss_type", kl_loss_type, _VERL_KL | {f"{name}+": "k2" for name in _VERL_KL})
        parts["kl"] = get_component("kl", f"in_loss(kind={kind}, by_ratio=False)", beta=kl_loss_coef)
    if use_kl_in_reward:
        if "kl" in parts:
            raise ValueError("use_kl_in_reward is not known beside another KL term: leave one of them out")
        kind = _choose("kl_penalty", kl_penalty, _VERL_KL)
        parts["kl"] = get_component("kl", "in_reward", beta=kl_coef, kind=kind)
    if entropy_coeff:
        if "kl" in parts:
            raise ValueError("entropy_coeff is not known beside a KL term: leave one of them out")
        parts["kl"] = get_component("kl", "entropy_bonus", beta=entropy_coeff)
    levels = {None: None, "token": "truncate_tokens", "sequence": "truncate_completions"}
    if name := _choose("rollout_is", rollout_is, levels):
        parts["correction"] = get_component("correction", name, cap=rollout_is_threshold)
    if filter_groups:
        parts["filter"] = "dynamic_sampling"
    return parts


_VERL_KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}


def _weighted_columns(keys: str, weights: str | None) -> str:
    """Return verl's lists of rewards and weights as GDPO here has them: "accuracy=1, format=0.5"."""
    names = [name.strip() for name in keys.split(",")]
    values = ["1"] * len(names) if weights is None else [value.strip() for value in weights.split(",")]
    if len(values) != len(names):
        raise ValueError(f"gdpo_reward_weights={weights!r} must have a weight for each of gdpo_reward_keys={keys!r}")
    return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def _verl_advantages(normalized: bool, gamma: float, lam: float, columns: str) -> dict[object, Estimator]:
    """Return verl's estimators of advantages; a group of one keeps its reward in all but rloo_vectorized.

    Where the policy has changed since it drew, verl's token baselines take energies of the older one, and ours not.
    """
    mean = {"singleton": "reward"}
    table: dict[object, tuple[str, dict[str, Any]]] = {
        "gae": ("gae", {"gamma": gamma, "lam": lam, "whiten": True}),
        "grpo": ("group_mean", mean),
        "grpo_vectorized": ("group_mean", mean),
        "gdpo": ("gdpo", {"columns": columns, "convention": "verl"} | mean),
        "grpo_passk": ("pass_at_k", {"normalize": normalized}),
        "reinforce_plus_plus": ("reinforce_pp", {"gamma": gamma}),
        "reinforce_plus_plus_baseline": ("reinforce_pp_baseline", mean),
        "rloo": ("rloo", mean),
        "rloo_vectorized": ("rloo", {}),
        "opo": ("token_mean", mean),
        "remax": ("remax", {}),
        "gpg": ("group_mean", mean),
        "optimal_token_baseline": ("otb", {}),
        "tir_optimal_token_baseline": ("otb_turns", {}),
    }
    return {name: get_estimator(base, **parameters) for name, (base, parameters) in table.items()}


def _choose(argument: str, value: object, choices: Mapping[Any, Any]) -> Any:
    """Return what a word of the trainer's stands for, and refuse others."""
    if value not in choices:
        raise ValueError(f"{argument} must be {' or '.join(map(repr, choices))}, got {value!r}")
    return choices[value]


#: Prefix → its function, the names behind it, and who has them by default.
TRAINERS: dict[str, tuple[Callable[..., Parts], tuple[str, ...], dict[str, str]]] = {
    "trl": (
        trl,
        ("dapo", "bnpo", "dr_grpo", "grpo", "cispo", "sapo", "luspo", "vespo"),
        {"dapo": "TRL by default"},
    ),
    "verl": (verl, tuple(map(str, _verl_advantages(True, 1.0, 1.0, "reward"))), {"gae": "verl by default"}),
}


def of_trainer(label: str) -> bool:
    """Return whether a label has a trainer's prefix."""
    return label.partition(":")[0] in TRAINERS


def labels() -> list[str]:
    """Return the trainers' labels: those of their losses, at the trainer's defaults."""
    return [f"{prefix}:{name}" for prefix, (_, names, _) in TRAINERS.items() for name in names]


def run_by(label: str) -> str:
    """Return who runs a trainer's label: the trainer, by default or not."""
    prefix, _, name = label.partition(":")
    return TRAINERS[prefix][2].get(name, {"trl": "TRL", "verl": "verl"}[prefix])


def build(base: str, parameters: Mapping[str, object], written: str) -> Recipe:
    """Return the recipe of a trainer's label, "trl:dapo", and its parameters.

    Raises:
        KeyError: for an unknown name, with the nearest known one.
        TypeError: for a parameter that the trainer does not have.
        ValueError: for a value that it does not take, or a combination that no recipe stands for.
    """
    prefix, _, name = base.partition(":")
    function, names, _ = TRAINERS[prefix]
    if name not in names:
        raise KeyError(f"no {prefix} label is called {name!r}: {suggest(name, list(names))}")
    bound = bind_parameters(base, function, (), dict(parameters), skip=1)
    first = next(iter(inspect.signature(function).parameters))
    try:
        parts: Any = function(**{first: name}, **bound)
        return Recipe(**parts, name=base, written=written)
    except ValueError as error:
        raise ValueError(f"{written}: {error}") from None


def row(label: str) -> dict[str, str]:
    """Return the row of a trainer's label in the table of recipes: components by kind, as in ``RECIPES``."""
    recipe = build(label, {}, label)
    parts: dict[str, str] = {kind: text for kind, text in recipe.parameters.items() if text != "none"}
    spread = {"group_std": "group spread", "batch_std": "batch spread"}.get(recipe.scale.name)
    by_length = {"sequence_mean": "1/T", "token_mean": "1/ΣT", "local_token_mean": "1/ΣT"}.get(recipe.aggregation.name)
    reasons = [reason for reason in (spread, by_length) if reason]
    if reasons:
        parts["bias"] = f"biased: by {' and '.join(reasons)}"
    source = {"trl": "TRL 1.16", "verl": "verl 0.9.1"}[label.partition(":")[0]]
    return parts | {"source": source, "run_by": run_by(label)}
