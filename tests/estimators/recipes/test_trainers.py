"""Labels in a trainer's own words; what they weight is compared with TRL and verl in ``tests/integrations``."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, recipes
from gradstats.estimators.by_label import trial_batch, with_parameter
from gradstats.estimators.display_names import in_words, uses_own_sample
from gradstats.estimators.recipes.named import unit_of_label
from gradstats.estimators.recipes.trainers import labels


@pytest.mark.parametrize(
    ("label", "composition"),
    [
        ("trl:dapo", "group_mean · group_std(eps=0.0001) · token_clip · mask_completions · token_mean(scope=batch)"),
        (
            "trl:grpo(scale_rewards=none, vllm_importance_sampling_correction=False, epsilon_high=0.28, beta=0.04)",
            "group_mean · token_clip(eps_high=0.28) · sequence_mean · in_loss(beta=0.04, kind=k2)",
        ),
        (
            "trl:grpo(scale_rewards=False, importance_sampling_level=sequence, mask_truncated_completions=True, "
            "vllm_importance_sampling_mode=sequence_truncate, vllm_importance_sampling_clip_min=0.5)",
            "group_mean · sequence_clip(eps_low=0.2, eps_high=0.2) · truncate_completions(cap=3, low=0.5) · "
            "sequence_mean · mask_truncated",
        ),
        (
            "trl:dapo(delta=4, top_entropy_quantile=0.2, vllm_importance_sampling_mode=token_mask)",
            "group_mean · group_std(eps=0.0001) · token_clip(dual_clip=4) · mask_tokens(low=None, high=3) · "
            "token_mean(scope=batch) · top_entropy",
        ),
        (
            "trl:grpo(entropy_coef=0.01, scale_rewards=none, vllm_importance_sampling_correction=False)",
            "group_mean · token_clip · sequence_mean · entropy_bonus(beta=0.01, over=tokens)",
        ),
        # without epsilon_high TRL's cap is epsilon: every ratio near 1 counts as 0.2
        (
            "trl:cispo(vllm_importance_sampling_mode=sequence_truncate)",
            "group_mean · group_std(eps=0.0001) · clipped_weight(convention=trl, eps_high=0.2) · "
            "truncate_completions(cap=3) · token_mean(scope=batch)",
        ),
        # TRL refuses vespo with its default, sequence_mask
        ("trl:vespo", "group_mean · group_std(eps=0.0001) · gamma_weight(mismatch=truncate) · token_mean(scope=batch)"),
        (
            "trl:sapo(scale_rewards=none, importance_sampling_level=sequence, "
            "vllm_importance_sampling_mode=token_mask)",
            "group_mean · soft_gate(level=sequence) · mask_tokens(low=None, high=3, averaged=True) · sequence_mean",
        ),
        (
            "verl:gdpo(gdpo_reward_keys='accuracy, format', gdpo_reward_weights='1, 0.5', entropy_coeff=0.01)",
            "gdpo(columns='accuracy=1, format=0.5', convention=verl, singleton=reward) · token_clip(dual_clip=3) · "
            "token_mean(scope=batch) · entropy_bonus(beta=0.01)",
        ),
        ("verl:gae", "gae(whiten=True) · token_clip(dual_clip=3) · token_mean(scope=batch)"),
        (
            "verl:grpo(loss_agg_mode=seq-mean-token-sum-norm, loss_scale_factor=8, norm_adv_by_std_in_grpo=False, "
            "use_kl_loss=True, filter_groups=True, rollout_is=token)",
            "group_mean(singleton=reward) · token_clip(dual_clip=3) · truncate_tokens · constant(max_tokens=8) · "
            "in_loss(by_ratio=False) · dynamic_sampling",
        ),
        (
            "verl:rloo(loss_mode=dro, dro_beta=0.3, loss_agg_mode=token-sum)",
            "rloo(singleton=reward) · sequence_sum · to_sampler(beta=0.3)",
        ),
        # clip_ratio alone changes nothing: the widths are set beside it
        (
            "verl:opo(clip_ratio=0.5, use_kl_in_reward=True)",
            "token_mean(singleton=reward) · token_clip(dual_clip=3) · token_mean(scope=batch) · in_reward(beta=0.001)",
        ),
        (
            "verl:grpo(clip_ratio=0.5, clip_ratio_low=None, kl_loss_type='k3+', use_kl_loss=True)",
            "group_mean(singleton=reward) · group_std · token_clip(eps_low=0.5, dual_clip=3) · "
            "token_mean(scope=batch) · in_loss(kind=k2, by_ratio=False)",
        ),
    ],
)
def test_the_parts_of_a_setting(label: str, composition: str):
    recipe = est.get(label)
    assert recipe.composition == composition
    assert recipe.label == label
    assert recipes.get(label) == recipe
    assert unit_of_label(label) == recipe.unit


@pytest.mark.parametrize("label", labels())
def test_every_name_is_a_label_wherever_one_is(label: str):
    recipe = est.get(label)
    assert np.isfinite(recipe.weights(trial_batch())).all()
    assert in_words(label).startswith(("TRL's ", "verl's "))
    assert not uses_own_sample(label)


@pytest.mark.parametrize(
    ("label", "error", "message"),
    [
        ("trl:dappo", KeyError, "no trl label is called 'dappo': did you mean 'dapo'"),
        ("verl:ppo", KeyError, "no verl label is called 'ppo'"),
        (
            "trl:dapo(epsilon_hihg=1)",
            TypeError,
            "trl:dapo has no parameter 'epsilon_hihg': did you mean 'epsilon_high'",
        ),
        ("trl:dapo(scale_rewards=prompt)", ValueError, "scale_rewards must be 'group' or .*, got 'prompt'"),
        ("verl:grpo(loss_agg_mode=token-men)", ValueError, "loss_agg_mode must be 'token-mean' or .*, got 'token-men'"),
        ("verl:grpo(loss_mode=bypass_mode)", ValueError, "loss_mode must be 'vanilla'"),
        ("verl:grpo(loss_mode=dro)", ValueError, "dro needs a value for dro_beta"),
        ("verl:grpo(use_kl_loss=True, use_kl_in_reward=True)", ValueError, "not known beside another KL term"),
        ("verl:grpo(use_kl_loss=True, entropy_coeff=0.1)", ValueError, "entropy_coeff is not known beside a KL term"),
        ("trl:dapo(beta=1, entropy_coef=0.1)", ValueError, "entropy_coef is not known beside a KL term: set it, or"),
        ("verl:gdpo(gdpo_reward_weights='1, 2')", ValueError, "must have a weight for each of gdpo_reward_keys='rew"),
        ("trl:vespo(vllm_importance_sampling_mode=sequence_mask)", ValueError, "is refused by TRL for vespo: use"),
        ("trl:sapo(delta=3)", ValueError, "known for clipped ratios of tokens: leave them out"),
        ("trl:dapo(beta=1, top_entropy_quantile=0.5)", ValueError, "beta is not known with top_entropy_quantile"),
        ("trl:dapo(epsilon=-1)", ValueError, r"^trl:dapo\(epsilon=-1\): ratio token_clip: eps_low must be"),
        ("trl:dapo(delta=0.5)", ValueError, "eps_high must be a finite number of at least 0, got -0.5"),
    ],
)
def test_refusals(label: str, error: type, message: str):
    with pytest.raises(error, match=message):
        est.get(label)


def test_a_parameter_of_the_trainers_at_another_value():
    changed = with_parameter("trl:dapo(scale_rewards=batch)", "epsilon_high", 0.28)
    assert changed.label == "trl:dapo(scale_rewards=batch, epsilon_high=0.28)"
    assert changed.ratio.label == "token_clip(eps_high=0.28)"


def test_the_two_sided_clip_bounds_both_signs():
    """min(min(ρ, δ)A, clip(ρ)A) at ρ = 1.1, 1.3 and 4, δ = 1.2 and ε = 0.25."""
    old = -2 * np.ones((2, 3))
    batch = Batch([1, -1], [3, 3], ["a", "b"], logprobs=old + np.log([1.1, 1.3, 4.0]), old_logprobs=old)
    for delta, positive, negative in ((1.2, [1.1, 0, 0], [1.1, 0, 0]), (3, [1.1, 0, 0], [1.1, 1.3, 0])):
        ratio = est.get("trl:dapo", delta=delta, epsilon=0.25).ratio
        found = est.Recipe("reinforce", ratio=ratio).token_weights(batch)
        assert_allclose(found, [positive, np.negative(negative)])
