"""Ratios of the scored policy to the sampler, when they count as 1, and weights of whole completions and of blocks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from off_policy_pair import off_policy_batch, policy_pair

from gradstats import estimators as est
from gradstats.analyses.variance import compare
from gradstats.estimators import Batch, registry
from gradstats.estimators.ratios import (
    NEGLIGIBLE_CHI_SQUARED,
    AlongCompletions,
    as_sequence_level,
    chi_squared,
    exponential,
    in_blocks_of_groups,
    log_ratios,
    sequence_log_ratios,
    without_negligible_ratios,
)


def batch_with(gaps: list[list[float]]) -> Batch:
    """Completions of two tokens, the second of completion 1 masked out, with given log-ratios."""
    mask = np.array([[1, 1], [1, 0]])
    old = np.full((2, 2), -1.0)
    return Batch([1, 0], [2, 1], ["a", "a"], mask, logprobs=old + np.array(gaps), old_logprobs=old)


def test_ratios_by_hand():
    batch = batch_with([[0.1, -0.3], [0.2, 9.0]])
    assert_allclose(log_ratios(batch), [[0.1, -0.3], [0.2, 0.0]])
    assert_allclose(sequence_log_ratios(batch), [-0.2, 0.2])
    assert chi_squared(batch) == pytest.approx(np.mean((np.exp([-0.2, 0.2]) - 1) ** 2))
    assert not log_ratios(batch.with_fields(old_logprobs=None)).any()


def test_chi_squared_is_that_of_the_policies():
    scored, sampler = policy_pair()
    rows = np.random.default_rng(0).choice(len(scored.rewards), 200_000, p=sampler.probabilities)
    drawn = off_policy_batch(scored, sampler, rows, np.arange(len(rows)))
    exact = scored.probabilities**2 @ (1 / sampler.probabilities) - 1
    assert exact > 10 * NEGLIGIBLE_CHI_SQUARED
    assert chi_squared(drawn) == pytest.approx(exact, rel=0.03)


def test_rounding_counts_as_no_ratio_and_another_policy_does_not():
    near, far = batch_with([[0.02, 0.01], [-0.03, 0.0]]), batch_with([[0.2, 0.1], [-0.3, 0.0]])
    assert chi_squared(near) < NEGLIGIBLE_CHI_SQUARED < chi_squared(far)
    assert without_negligible_ratios(near).old_logprobs is None
    assert without_negligible_ratios(far) is far
    on_policy = near.with_fields(old_logprobs=None)
    assert without_negligible_ratios(on_policy) is on_policy
    assert chi_squared(on_policy) == 0.0


def test_a_ratio_that_overflows_and_one_without_its_policy_are_one_sentence():
    far = batch_with([[0.0, 0.0], [801.0, 0.0]])
    with pytest.raises(ValueError, match=r"π/π_old of completion 1 is e\^801, which overflows: old_logprobs must be"):
        exponential(sequence_log_ratios(far))
    assert chi_squared(far) == np.inf
    assert_allclose(exponential(np.array([[0.0, -1e9]])), [[1.0, 0.0]])
    with pytest.raises(ValueError, match="my estimator needs logprobs"):
        log_ratios(far.with_fields(logprobs=None), "my estimator")


RNG = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(12), 4)
MASK = np.arange(5) < RNG.integers(1, 6, 48)[:, None]
BATCH = Batch(
    RNG.integers(0, 2, 48).astype(float),
    MASK.sum(axis=1),
    GROUPS,
    MASK,
    greedy_rewards=RNG.integers(0, 2, 12).astype(float)[GROUPS],
    values=RNG.normal(size=MASK.shape),
)

#: Groups of one to six completions, interleaved.
UNEVEN = RNG.permutation(np.repeat(np.arange(9), [1, 2, 3, 4, 5, 4, 3, 6, 2]))
RAGGED = Batch(RNG.normal(size=len(UNEVEN)), RNG.integers(1, 8, len(UNEVEN)), UNEVEN)


@pytest.mark.filterwarnings("ignore:.*prompts:UserWarning")
def test_remax_of_completions_is_remax_of_tokens():
    tokens = np.where(MASK[:, :, None], RNG.normal(size=(*MASK.shape, 7)), 0.0)
    whole, apart = (
        compare(BATCH, ["remax"], scores, reference="reinforce").to_frame() for scores in (tokens.sum(axis=1), tokens)
    )
    assert_allclose(whole["trace_cov"], apart["trace_cov"])
    assert_allclose(whole["ratio_high"], apart["ratio_high"])
    assert whole["estimator"].tolist() == ["remax"]


def test_what_differs_along_a_completion_or_lacks_a_field_stays_as_it_is():
    for estimator in (est.gae(), est.otb(), est.rloo()):
        assert as_sequence_level(estimator, BATCH) is estimator
    returns = BATCH.with_fields(token_rewards=RNG.normal(size=MASK.shape))
    assert as_sequence_level(est.remax(), returns).level == "token"
    with pytest.raises(ValueError, match="remax weights the tokens of a completion differently"):
        AlongCompletions(est.remax()).weights(returns)


@pytest.mark.parametrize("at_once", [1, 21, 50])
def test_blocks_are_whole_groups_and_keep_the_order(monkeypatch, at_once):
    monkeypatch.setattr("gradstats.estimators.ratios.TOKENS_AT_ONCE", at_once)
    seen, width = [], RAGGED.mask.shape[1]

    def advantages(batch: Batch) -> np.ndarray:
        seen.append(batch)
        return est.group_mean().advantages(batch)

    found = in_blocks_of_groups(advantages, RAGGED)
    assert_allclose(found, est.group_mean().advantages(RAGGED), rtol=1e-13, atol=1e-15)
    assert sorted(label for part in seen for label in part.group_labels) == RAGGED.group_labels.tolist()
    assert sum(part.group_sizes.sum() for part in seen) == len(RAGGED.rewards)
    assert all(part.n_groups == 1 or part.group_sizes.sum() * width <= at_once for part in seen)


@pytest.mark.parametrize(
    "recipe",
    [
        *(
            est.get(f"recipe:{label}")
            for label in ("grpo", "dr_grpo", "rloo", "rloo_is", "gspo", "grpo(filter=dynamic_sampling)")
        ),
        est.Recipe("rloo", aggregation="token_mean"),
        None,
    ],
    ids=str,
)
def test_recipes_keep_their_weights(monkeypatch, recipe):
    """Functions of the users' own see all prompts."""
    monkeypatch.setattr(registry, "DEFINITIONS", dict(registry.DEFINITIONS))
    est.register("sees_everything")(lambda batch: batch.rewards - batch.rewards.mean())
    recipe = recipe or est.Recipe("sees_everything", aggregation="sequence_mean")
    whole = recipe.weights(RAGGED)
    monkeypatch.setattr("gradstats.estimators.ratios.TOKENS_AT_ONCE", 1)
    assert_allclose(recipe.weights(RAGGED), whole, rtol=1e-12, atol=0)
