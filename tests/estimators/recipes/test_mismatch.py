"""Corrections of a mismatch between sampler and trainer against twins written from their sources."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from gradstats.estimators import Batch, recipes
from gradstats.estimators.ratios import without_negligible_ratios
from gradstats.estimators.recipes.weightings import ByWeightings, weightings
from gradstats.stats.variance.inputs import choose_target, refuse_unusable_ratios

NAMES = ["tis", "sequence_tis", "icepop", "mis", "geo_rs", "worst_token_rs"]
#: Two groups of three completions, with holes, as the output of tools leaves them.
MASK = np.arange(6) < np.array([3, 5, 2, 4, 6, 1])[:, None]
MASK[1, 2] = MASK[4, 0] = False
ROWS = {"a": (0, 1, 2), "b": (3, 4, 5)}


def mismatched(spread: float) -> Batch:
    """Completions whose log-ratios have a standard deviation of ``spread``."""
    rng = np.random.default_rng(int(100 * spread))
    drawn = rng.uniform(-3.0, -0.1, size=(6, 6))
    scored = drawn + spread * rng.standard_normal((6, 6))
    rewards = [1.0, 0.0, 0.5, 1.0, 1.0, 0.0]
    return Batch(rewards, MASK.sum(axis=1), [*"aaabbb"], MASK, logprobs=scored, old_logprobs=drawn)


def ratios_of_tokens(name: str, ratios: list[float]) -> list[float]:
    """Weights of one completion's tokens as the sources write them, from its ratios alone."""
    whole = float(np.prod(ratios))
    if name == "tis":
        return [min(ratio, 2.0) for ratio in ratios]
    if name == "sequence_tis":
        return [min(whole, 2.0)] * len(ratios)
    if name in ("icepop", "mis"):
        low, high = (0.5, 5.0) if name == "icepop" else (0.5, 2.0)
        return [ratio if low <= ratio <= high else 0.0 for ratio in ratios]
    if name == "geo_rs":
        keep = 0.999 <= whole ** (1.0 / len(ratios)) <= 1.001
    else:
        keep = all(np.exp(-np.sqrt(0.5)) <= ratio <= np.exp(np.sqrt(0.5)) for ratio in ratios)
    return [float(keep)] * len(ratios)


def expected_weights(name: str, batch: Batch, token_mean: bool) -> np.ndarray:
    """The weight of each token: RLOO's advantage, the correction, and a mean over completions or over tokens."""
    assert batch.logprobs is not None
    assert batch.old_logprobs is not None
    expected = np.zeros((6, 6))
    for members in ROWS.values():
        factors = {
            i: ratios_of_tokens(name, np.exp(batch.logprobs[i] - batch.old_logprobs[i])[MASK[i]].tolist())
            for i in members
        }
        # IcePop divides by all tokens and completions; those that reject divide by what they keep.
        rejecting = name in ("mis", "geo_rs", "worst_token_rs")
        counted = {i: sum(factor != 0 or not rejecting for factor in factors[i]) for i in members}
        number = sum(counted.values()) if token_mean else sum(count > 0 for count in counted.values())
        for i in members:
            others = [batch.rewards[j] for j in members if j != i]
            advantage = batch.rewards[i] - np.mean(others)
            expected[i, MASK[i]] = [advantage * factor / max(number, 1) for factor in factors[i]]
    return expected


@pytest.mark.parametrize("spread", [0.001, 0.3, 1.0])
@pytest.mark.parametrize("aggregation", ["sequence_sum", "token_mean"])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_source(name: str, aggregation: str, spread: float):
    batch = mismatched(spread)
    recipe, plain = (recipes.get(one, aggregation=aggregation) for one in (name, "rloo"))
    expected = expected_weights(name, batch, aggregation == "token_mean")
    assert_allclose(recipe.token_weights(batch), expected, rtol=1e-12, atol=1e-15)
    assert spread < 1 or not np.allclose(expected, plain.token_weights(batch))
    without = batch.with_fields(old_logprobs=None)
    assert_allclose(recipe.weights(without), plain.weights(without))


def three_policies() -> Batch:
    """As above, and the trainer's policy as the step began, between the sampler and the scored one."""
    batch = mismatched(0.3)
    assert batch.old_logprobs is not None
    rng = np.random.default_rng(5)
    return batch.with_fields(proximal_logprobs=batch.old_logprobs + 0.4 * rng.standard_normal((6, 6)) * batch.mask)


def decoupled_grpo(batch: Batch, correction: str) -> np.ndarray:
    """d J / d log π of GRPO's clip on π/π_prox with verl's weights of π_prox/μ, which carry no gradient, or with its
    rejection of completions by them, which leaves the mean over completions those that are kept.
    """
    logp, proximal, drawn = (
        torch.tensor(values) for values in (batch.logprobs, batch.proximal_logprobs, batch.old_logprobs)
    )
    mask = torch.tensor(batch.mask)
    logp.requires_grad_()
    mismatch = torch.where(mask, proximal - drawn, 0.0)
    if correction == "truncate_tokens":
        weights = mismatch.exp().clamp(max=2.0)
    elif correction == "truncate_completions":
        weights = mismatch.sum(1, keepdim=True).clamp(-20.0, 20.0).exp().clamp(max=2.0).expand_as(mismatch)
    elif correction == "mask_tokens":
        ratio = mismatch.exp()
        weights = torch.where((ratio >= 0.8) & (ratio <= 1.5), ratio, 0.0)
    else:
        mean = (mismatch.sum(1) / mask.sum(1)).exp()
        weights = ((mean >= 1 / 1.3) & (mean <= 1.3)).double()[:, None].expand_as(mismatch)
        assert 0 < weights[:, 0].sum() < 6
    objective = torch.zeros((), dtype=torch.float64)
    for members in ROWS.values():
        rows = list(members)
        rewards = torch.tensor(batch.rewards[rows])
        advantage = ((rewards - rewards.mean()) / (rewards.std() + 1e-6))[:, None]
        staleness = (logp[rows] - proximal[rows]).exp()
        surrogate = weights[rows] * torch.minimum(staleness * advantage, staleness.clamp(0.8, 1.2) * advantage)
        of_completions = torch.where(mask[rows], surrogate, 0.0).sum(1) / mask[rows].sum(1)
        kept = weights[rows, 0].count_nonzero() if correction == "reject_completions" else len(rows)
        objective = objective + of_completions.sum() / kept
    (gradient,) = torch.autograd.grad(objective, logp)
    return gradient.numpy()


@pytest.mark.parametrize(
    "correction",
    ["truncate_tokens", "truncate_completions", "mask_tokens(low=0.8, high=1.5)", "reject_completions(high=1.3)"],
)
def test_with_a_third_policy_the_clip_sees_staleness_and_the_correction_the_mismatch(correction: str):
    batch = three_policies()
    kind = "mask" if correction.startswith("reject") else "correction"
    recipe = recipes.get("grpo", **{kind: correction})
    expected = decoupled_grpo(batch, correction.partition("(")[0])
    assert_allclose(recipe.token_weights(batch), expected, rtol=1e-10, atol=1e-14)
    assert not np.allclose(recipes.get("grpo").token_weights(batch), expected)
    patterns = weightings(recipe, batch)
    combined = np.einsum("nk,knt->nt", ByWeightings(recipe, tuple(patterns)).weights(batch), [*patterns.values()])
    assert_allclose(combined, expected, rtol=1e-10, atol=1e-14)


def test_as_the_step_begins_a_clip_does_nothing_beside_a_correction():
    batch = mismatched(1.0)
    whole = recipes.get("grpo", correction="truncate_tokens").token_weights(batch)
    assert_allclose(whole, recipes.get("grpo", ratio="none", correction="truncate_tokens").token_weights(batch))


@pytest.mark.parametrize(
    ("correction", "accepted"),
    [
        ("truncate_tokens(cap=0.5)", "at least 1"),
        ("mask_tokens(low=1.5)", "at most 1"),
        ("mask_tokens(high=0.5)", "at least 1"),
        ("mask_tokens(low=0)", "above 0, at most 1"),
    ],
)
def test_bounds_that_leave_out_what_agrees_are_refused(correction: str, accepted: str):
    with pytest.raises(ValueError, match=accepted):
        recipes.get("grpo", correction=correction)


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_whose_log_probabilities_are_not_known_is_refused(name: str):
    batch = mismatched(0.3).with_fields(old_logprobs=None)
    choice = choose_target("auto", batch, ["temperature=0.5"])
    with pytest.raises(ValueError, match="whose log-probabilities are not known"):
        refuse_unusable_ratios([recipes.get(name)], batch, choice)


def test_a_mismatch_that_staleness_undoes_is_not_settled():
    batch = three_policies()
    back = batch.with_fields(logprobs=batch.old_logprobs)
    assert without_negligible_ratios(back).old_logprobs is not None
    near = back.with_fields(proximal_logprobs=back.old_logprobs)
    settled = without_negligible_ratios(near)
    assert settled.old_logprobs is None
    assert settled.proximal_logprobs is None


def test_a_term_beside_the_advantage_is_not_measured_as_a_multiple_of_it():
    assert weightings(recipes.get("kimi_k15", tau=1.0, correction="truncate_tokens"), three_policies()) == {}


def test_the_trainers_log_probabilities_are_compared_with_the_samplers():
    with pytest.raises(ValueError, match="proximal_logprobs is given without old_logprobs"):
        three_policies().with_fields(old_logprobs=None)
