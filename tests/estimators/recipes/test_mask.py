"""Masks of tokens against loops over tokens and autograd of the masked loss, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.components import get_component
from gradstats.estimators.recipes.weightings import ByWeightings, weighting_names, weightings, weightings_by_name

FEW = settings(max_examples=30, deadline=None)


def with_entropy(batch: Batch) -> Batch:
    rng = np.random.default_rng(batch.rewards.size)
    return batch.with_fields(entropy=rng.exponential(size=batch.mask.shape))


def dapo_loss_gradient(batch: Batch, threshold: float) -> np.ndarray:
    """Equation 6 of 2506.01939 by autograd: DAPO's loss with 1[H_t ≥ τ], its denominators over all tokens."""
    logp = torch.tensor(batch.logprobs, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for group in np.unique(batch.group_index):
        rows = np.flatnonzero(batch.group_index == group)
        rewards = torch.tensor(batch.rewards[rows])
        if len(set(batch.rewards[rows])) == 1:
            continue
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for row, advantage in zip(rows, advantages, strict=True):
            for column in np.flatnonzero(batch.mask[row]):
                if batch.entropy[row, column] < threshold:
                    continue
                rho = (logp[row, column] - batch.old_logprobs[row, column]).exp()
                objective = torch.minimum(rho * advantage, rho.clamp(0.8, 1.28) * advantage)
                total = total + objective / int(batch.lengths[rows].sum())
    if not total.requires_grad:
        return np.zeros(batch.mask.shape)
    return torch.autograd.grad(total, logp)[0].numpy()


@FEW
@given(batch=batches())
def test_top_entropy_is_the_gradient_of_its_loss(batch: Batch):
    batch = with_entropy(batch)
    threshold = float(np.quantile(batch.entropy[batch.mask], 0.8))
    expected = dapo_loss_gradient(batch, threshold)
    for label in ("recipe:dapo_top_entropy", f"recipe:dapo_top_entropy(threshold={threshold!r})"):
        assert_allclose(recipes.get(label).token_weights(batch), expected, rtol=1e-10, atol=1e-12)


def test_the_share_of_tokens_that_is_kept():
    entropy = np.arange(20.0).reshape(2, 10)
    batch = Batch([1, 0], [10, 10], ["a", "b"], entropy=entropy)
    kept = get_component("mask", "top_entropy")(batch)
    assert_array_equal(kept, entropy >= 16)
    within = get_component("mask", "top_entropy(scope=group, share=0.5)")(batch)
    assert_array_equal(within.sum(axis=1), [5, 5])
    assert recipes.get("dapo_top_entropy").across_groups
    assert not recipes.get("recipe:dapo_top_entropy(threshold=0.5)").across_groups
    with pytest.raises(ValueError, match="needs entropy.*measure the policy"):
        recipes.get("dapo_top_entropy").weights(Batch([1, 0], [1, 1], ["a", "a"]))


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


def test_on_policy_nothing_is_rejected():
    batch = Batch([1, 0], [2, 3], ["a", "a"])
    recipe = recipes.get("recipe:custom(advantage=rloo, mask=reject_tokens(high=2))")
    assert_array_equal(recipe.weights(batch), estimators.rloo().weights(batch))
    assert recipe.expected_scale(2) == 1.0


@FEW
@given(batch=batches())
def test_masks_of_fixed_bounds_are_measured_once(batch: Batch):
    batch = with_entropy(batch)
    for label in (
        "recipe:grpo(mask=top_entropy(threshold=0.5), kl=in_loss(beta=0.5))",
        "recipe:dapo(mask=reject_tokens(kind=k3, high=0.1))",
    ):
        recipe = recipes.get(label)
        patterns = weightings(recipe, batch)
        assert tuple(patterns) == weighting_names(recipe)
        for name, values in weightings_by_name(weighting_names(recipe), batch).items():
            assert_allclose(values, patterns[name])
        coefficients = ByWeightings(recipe, tuple(patterns)).weights(batch)
        combined = np.einsum("nk,knt->nt", coefficients, np.stack(list(patterns.values())))
        assert_allclose(combined, recipe.token_weights(batch), rtol=1e-10, atol=1e-12)
    assert weighting_names(recipes.get("dapo_top_entropy")) == ()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("reject_tokens(kind=k2, low=0.1, high=1)", "k2 is never negative and has no lower bound: leave low out"),
        ("reject_tokens(low=3, high=2)", "low is 3, above high, 2"),
        ("reject_completions(over=max, high=2)", "over='max' is for k2 and k3"),
    ],
)
def test_bounds_that_do_not_suit_are_refused(mask: str, message: str):
    with pytest.raises(ValueError, match=message):
        Recipe("rloo", mask=mask).weights(Batch([1, 0], [1, 1], ["a", "a"]))
