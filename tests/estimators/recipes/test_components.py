"""Each component against loops over tokens, by hand, and masks against autograd of the masked loss, in float64."""

import itertools
import math

import numpy as np
import pytest
from estimator_batches import FEW, batches, expected_gradient
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from oracles import naive_estimators as naive

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.by_label import trial_batch
from gradstats.estimators.recipes.components import get_component, parameter_names
from gradstats.estimators.recipes.ratio import token_clip
from gradstats.reference.enumerated import EnumeratedPolicy


def test_a_label_gives_the_component_with_its_parameters():
    clip = get_component("ratio", "token_clip(eps_high=0.28)")
    assert clip.parameters == {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": None, "max_drift": None}
    assert clip == get_component("ratio", "token_clip", eps_high=0.28) == token_clip(eps_high=0.28)
    assert get_component("ratio", clip) is clip
    # values given beside a label replace its own
    assert get_component("ratio", "token_clip(eps_high=0.28)", eps_high=0.3).parameters["eps_high"] == 0.3
    # those after its data, and whether a value is needed
    assert parameter_names("correction", "mask_completions") == {"high": False, "low": False}
    assert parameter_names("ratio", "log_ratio_penalty") == {"tau": True}


@pytest.mark.parametrize("drift", [None, 0.4])
def test_the_entropy_bonus_has_the_gradient_of_the_entropy_in_expectation(drift):
    """Against central differences of the entropy of the first token."""

    def policy(theta, old_theta=None):
        options = {"vocabulary": 4, "max_length": 1, "dimension": 3, "reward": lambda *_: 0.0}
        return EnumeratedPolicy(theta=theta, old_theta=old_theta, **options)

    theta, step = np.array([0.4, -0.3, 0.2]), 1e-5
    ends = [[policy(theta + sign * side).entropy[0, 0] for sign in (1, -1)] for side in step * np.eye(3)]
    slope = np.array([(above - below) / (2 * step) for above, below in ends])
    drawn = policy(theta, None if drift is None else theta - drift)
    found = drawn.moments(Recipe("reinforce", kl="entropy_bonus(beta=0.5)"), 1).mean
    assert_allclose(found, 0.5 * slope, atol=1e-9)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "constant(max_tokens=7)", "token_mean(scope=batch)"])
def test_the_entropy_bonus_over_tokens_is_a_mean_over_kept_tokens_whatever_the_loss(aggregation):
    batch = trial_batch()
    parts = {"aggregation": aggregation, "filter": "mask_truncated(rescale=False)", "mask": "top_entropy(share=0.5)"}
    with_bonus = Recipe("group_mean", kl="entropy_bonus(beta=0.5, over=tokens)", **parts)
    kept = with_bonus.mask(batch) & ~batch.truncated[:, None]
    term = get_component("kl", "entropy_bonus(beta=0.5)")(batch)[1]
    found = with_bonus.token_weights(batch) - Recipe("group_mean", **parts).token_weights(batch)
    # A gradient is the mean of those of the groups.
    assert_allclose(found / batch.n_groups, np.where(kept, term, 0.0) / kept.sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ({"ratio": "token_clp"}, KeyError, "no ratio is called 'token_clp': did you mean"),
        ({"ratio": "log_ratio_penalty"}, TypeError, "needs a value for tau"),
        ({"ratio": "token_clip(epsilon=1)"}, TypeError, "has no parameter 'epsilon'"),
        ({"ratio": "token_clip(eps_low=-1)"}, ValueError, "eps_low must be a finite number"),
        ({"kl": "in_loss(kind=k4)"}, ValueError, "kind must be 'k1' or 'k2' or 'k3'"),
        ({"aggregation": "constant(max_tokens=0)"}, ValueError, "max_tokens must be"),
        ({"aggregation": "delta_l(alpha=within_prompt)"}, ValueError, "alpha must be a finite number, got 'within"),
        ({"scale": token_clip()}, TypeError, "is a component of kind ratio, given as scale"),
        ({"filter": "mask_truncated"}, ValueError, "needs truncated.*finish_reason of the.*or pass truncated="),
        ({"mask": "top_entropy"}, ValueError, "needs entropy.*measure the policy"),
        ({"mask": "reject_tokens(kind=k2, low=0.1, high=1)"}, ValueError, "k2 is never .* no lower bound: leave low"),
        ({"mask": "reject_tokens(low=3, high=2)"}, ValueError, "low is 3, above high, 2"),
        ({"mask": "reject_completions(over=max, high=2)"}, ValueError, "over='max' is for k2 and k3"),
        ({"reward": "soft_overlong(max=8, cache=9)"}, ValueError, "cache is 9, more than max, 8: give at most max"),
    ],
)
def test_bad_components(components, error: type, message: str):
    with pytest.raises(error, match=message):
        Recipe("rloo", **components).weights(Batch([1, 0], [1, 1], ["a", "a"]))


@FEW
@given(batch=batches(smallest=2))
def test_scales(batch: Batch):
    grpo = Recipe("group_mean", scale="group_std(eps=1e-4, ddof=0)").weights(batch)
    assert_allclose(grpo, est.grpo(eps=1e-4, ddof=0).weights(batch), atol=1e-10)
    max_rl = Recipe("group_mean", scale="group_mean").weights(batch)
    assert_allclose(max_rl, est.max_rl().weights(batch), atol=1e-10)
    batch_std = Recipe("rloo", scale="batch_std").weights(batch)
    expected = est.rloo().weights(batch) / (batch.rewards.std(ddof=1) + 1e-6)
    assert_allclose(batch_std, expected, rtol=1e-6, atol=1e-9)


@FEW
@given(batch=batches(), name=st.sampled_from(["sequence_sum", "sequence_mean", "token_mean", "constant"]))
def test_aggregations(batch: Batch, name: str):
    weights = Recipe("rloo", aggregation=name).weights(batch)
    factors = [naive.aggregation_factor(batch, i, name) for i in range(len(batch.rewards))]
    assert_allclose(weights, est.rloo().advantages(batch) * factors, atol=1e-12)


@FEW
@given(batch=batches())
def test_mask_truncated(batch: Batch):
    cut = np.arange(batch.rewards.size) % 3 == 0
    batch = batch.with_fields(truncated=cut)
    weights = Recipe("rloo", filter="mask_truncated").weights(batch)
    assert_allclose(weights, np.where(cut, 0.0, est.rloo().weights(batch)))
    both = Recipe("reinforce", filter="mask_truncated(dynamic_sampling=True)").weights(batch)
    kept = naive.differing_groups(batch)[batch.group_index] & ~cut
    assert_allclose(both, est.reinforce().weights(batch) * kept)
    rescaled = Recipe("rloo", aggregation="token_mean", filter="mask_truncated(rescale=True)").weights(batch)
    for i in np.flatnonzero(~cut):
        left = sum(int(batch.lengths[j]) for j in np.flatnonzero(~cut) if batch.groups[j] == batch.groups[i])
        assert_allclose(rescaled[i], est.rloo().advantages(batch)[i] / left)
    assert not rescaled[cut].any()


@FEW
@given(batch=batches(), keep=st.integers(2, 5))
def test_the_completions_of_greatest_variance(batch: Batch, keep: int):
    """No subset of the size has more, and the weights are those of the kept completions as a batch of their own."""
    kept = get_component("filter", "max_variance", keep=keep)(batch)
    for group in range(batch.n_groups):
        rewards = batch.rewards[batch.group_index == group]
        chosen = batch.rewards[(batch.group_index == group) & kept]
        assert len(chosen) == min(keep, len(rewards))
        greatest = max(np.var(some) for some in itertools.combinations(rewards, len(chosen)))
        assert np.var(chosen) == pytest.approx(greatest)
    for label in ("pods", "pods(aggregation=token_mean, ratio=token_ratio, loo=True)"):
        recipe = recipes.get(label, keep=keep)
        expected = np.zeros(batch.mask.shape)
        expected[kept] = recipes.get(label, filter="none").token_weights(batch.select(kept))
        assert_allclose(recipe.token_weights(batch), expected, atol=1e-12)


@FEW
@given(batch=batches(), least=st.sampled_from([0.0, 0.3, 0.6]))
def test_groups_are_kept_by_the_spread_of_their_rewards(batch: Batch, least: float):
    kept = get_component("filter", "reward_spread", least=least)(batch)
    for i in range(len(batch.rewards)):
        assert kept[i] == (not naive.alone(batch, i) and naive.group_deviation(batch, i, 1) > least)
    if least == 0:
        assert_array_equal(kept, get_component("filter", "dynamic_sampling")(batch))


def test_a_leave_one_out_mean_of_completions_that_were_chosen_by_their_rewards_is_biased():
    """Two of three are kept, and differ with probability 3p(1 − p); with A = ±1 E[ĝ] = ½·3p(1 − p)(1/p + 1/(1 − p)).

    Of four or eight, prompts that fail or succeed often are scaled up more.
    """
    for size, keep, scales in ((3, 2, (1.5, 1.5)), (4, 2, (1.84, 1.75)), (8, 4, (1.559, 1.3021))):
        pods = Recipe("rloo", filter=f"max_variance(keep={keep})").weights
        assert_allclose([expected_gradient(pods, p, size) for p in (0.2, 0.5)], scales, rtol=1e-3)


@FEW
@given(batch=batches(), beta=st.floats(0, 1))
def test_kl_in_reward_passes_through_the_baseline(batch: Batch, beta: float):
    penalty = beta * np.where(batch.mask, batch.logprobs - batch.ref_logprobs, 0.0)
    lowered = batch.with_fields(rewards=batch.rewards - penalty.sum(axis=1))
    recipe = Recipe("rloo", kl=f"in_reward(beta={beta})")
    assert_allclose(recipe.weights(batch.with_fields(old_logprobs=None)), est.rloo().weights(lowered), atol=1e-12)
    tokens = naive.fill(batch, lambda i, t: naive.reward_at(batch, i, t))
    dense = batch.with_fields(token_rewards=tokens - penalty)
    by_token = Recipe("gae(gamma=0.9)", kl=f"in_reward(beta={beta})")
    assert_allclose(by_token.weights(batch), est.gae(gamma=0.9).weights(dense), atol=1e-10)


def test_the_share_of_tokens_that_is_kept_in_a_group():
    batch = Batch([1, 0], [10, 10], ["a", "b"], entropy=np.arange(20.0).reshape(2, 10))
    within = get_component("mask", "top_entropy(scope=group, share=0.5)")(batch)
    assert_array_equal(within.sum(axis=1), [5, 5])
    assert recipes.get("dapo_top_entropy").across_groups
    assert not recipes.get("recipe:dapo_top_entropy(threshold=0.5)").across_groups


def divergence(log_ratio: float, kind: str) -> float:
    log_ratio = min(max(log_ratio, -20.0), 20.0)
    return {"k1": -log_ratio, "k2": log_ratio**2 / 2, "k3": math.exp(log_ratio) - 1 - log_ratio}[kind]


def kept_by_loops(batch: Batch, kind: str, over: str | None, low: float, high: float) -> np.ndarray:
    """The rejection of verl's rollout correction: bounds of a ratio for k1, an upper bound for k2 and k3."""
    kept = np.zeros(batch.mask.shape, dtype=bool)
    for row in range(len(kept)):
        columns = np.flatnonzero(batch.mask[row])
        terms = [divergence(batch.logprobs[row, t] - batch.old_logprobs[row, t], kind) for t in columns]
        if over is not None:
            value = {"sum": sum(terms), "mean": sum(terms) / len(terms), "max": max(terms)}[over]
            terms = [value] * len(terms)
        for column, value in zip(columns, terms, strict=True):
            kept[row, column] = low <= math.exp(-value) <= high if kind == "k1" else value <= high
    return kept


@FEW
@given(batch=batches())
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_rejection_by_the_ratio(batch: Batch, kind: str):
    high = {"k1": 1.7, "k2": 0.3, "k3": 0.2}[kind]
    tokens = get_component("mask", f"reject_tokens(kind={kind}, high={high})")(batch)
    assert_array_equal(tokens, kept_by_loops(batch, kind, None, 1 / high, high))
    for over in ("mean", "sum", *(() if kind == "k1" else ("max",))):
        kept = get_component("mask", f"reject_completions(kind={kind}, over={over}, high={high})")(batch)
        assert_array_equal(kept, kept_by_loops(batch, kind, over, 1 / high, high))
    if kind == "k1":
        kept = get_component("mask", "reject_tokens(low=0.9, high=3)")(batch)
        assert_array_equal(kept, kept_by_loops(batch, kind, None, 0.9, 3))


def denominators_by_loops(batch: Batch, kept: np.ndarray, name: str, i: int) -> float:
    """The aggregation over the tokens that are kept; a completion without any is left out."""
    group = [j for j in range(len(kept)) if batch.groups[j] == batch.groups[i] and kept[j].any()]
    if name == "sequence_mean":
        return 1 / len(group) / int(kept[i].sum())
    if name == "token_mean":
        return 1 / int(sum(kept[j].sum() for j in group))
    if name == "token_mean(scope=batch)":
        return len(set(batch.groups)) / int(kept.sum())
    return 1 / len(group)


@FEW
@given(batch=batches())
@pytest.mark.parametrize("aggregation", ["sequence_sum", "sequence_mean", "token_mean", "token_mean(scope=batch)"])
def test_denominators_count_what_is_kept(batch: Batch, aggregation: str):
    kept = kept_by_loops(batch, "k1", None, 1 / 1.7, 1.7)
    recipe = Recipe("reinforce", ratio="token_clip", aggregation=aggregation, mask="reject_tokens(high=1.7)")
    plain = Recipe("reinforce", ratio="token_clip").token_weights(batch) * batch.group_sizes[batch.group_index][:, None]
    factor = [denominators_by_loops(batch, kept, aggregation, i) if kept[i].any() else 0.0 for i in range(len(kept))]
    assert_allclose(recipe.token_weights(batch), np.where(kept, plain * np.array(factor)[:, None], 0.0), atol=1e-12)


def test_every_case_of_the_punishment_by_length():
    batch = Batch(np.zeros(6), [1, 6, 7, 8, 10, 11], ["a"] * 6)
    punished = "soft_overlong(max=10, cache=4)"
    added = get_component("reward", punished)(batch)
    assert_array_equal(added, [0, 0, -0.25, -0.5, -1, -1])  # equation 13 of 2503.14476
    # With λ = γ = 1 every token's advantage holds the whole punishment: it lies on the last token.
    dense = batch.with_fields(token_rewards=np.ones(batch.mask.shape), values=np.zeros(batch.mask.shape))
    difference = Recipe("gae", reward=punished).advantages(dense) - Recipe("gae").advantages(dense)
    assert_allclose(difference, np.where(batch.mask, added[:, None], 0.0), atol=1e-12)


def test_dynamic_sampling_looks_at_the_rewards_themselves():
    batch = Batch([1, 1], [1, 9], ["a", "a"])
    recipe = recipes.get("recipe:dapo(reward=soft_overlong(max=8, cache=4))")
    assert recipe.kept_groups(batch).tolist() == [False]
    assert recipe.label == "recipe:dapo(reward=soft_overlong(max=8, cache=4))"
    assert recipes.get("dapo", filter="none", reward="soft_overlong(max=8, cache=4)").weights(batch)[1] < 0
