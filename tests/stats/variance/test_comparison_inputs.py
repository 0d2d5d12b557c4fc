"""What a comparison takes from a measurement."""

from types import SimpleNamespace

import numpy as np
import pytest
from comparison_batches import quiet_compare

from gradstats.estimators import Batch
from gradstats.rollouts.table import Rollouts
from gradstats.stats import compare


def measurement(sketches=True, n_prompts=8, per_prompt=4):
    rng = np.random.default_rng(0)
    n = n_prompts * per_prompt
    prompt_ids = np.repeat(np.arange(n_prompts), per_prompt).astype(str)
    sample_ids = np.tile(np.arange(per_prompt), n_prompts)
    order = rng.permutation(n)
    lengths = rng.integers(2, 9, n)
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [list(range(length)) for length in lengths],
        (rng.random(n) < 0.5).astype(float),
        prompt_ids[order],
        sample_ids=sample_ids[order],
    )
    vectors = rng.normal(size=(n, 5))
    return SimpleNamespace(
        rollouts=rollouts,
        lengths=lengths,
        sq_norms=(vectors**2).sum(axis=1) * 1.1,
        sketches=vectors if sketches else None,
    ), vectors


def test_a_measurement_is_split_by_sample_id_and_its_sketches_are_used():
    measured, vectors = measurement()
    result = quiet_compare(measured, ["rloo", "norm_weighted"], group_size=2)
    assert result.sketch_dim == 5
    assert "dimension 5 with exact squares" in " ".join(result.notes)
    order = np.lexsort((measured.rollouts.sample_id, measured.rollouts.prompt_id))
    batch = Batch.from_measurement(measured).select(order)
    by_hand = quiet_compare(batch, ["rloo", "norm_weighted"], vectors[order], group_size=2, scores_are_sketches=True)
    np.testing.assert_allclose(
        result.to_frame().iloc[:, 4:].astype(float), by_hand.to_frame().iloc[:, 4:].astype(float), rtol=1e-8
    )


def test_a_measurement_without_sketches_is_refused_unless_scores_are_given():
    measured, vectors = measurement(sketches=False)
    with pytest.raises(ValueError, match="the measurement holds no sketches.*: measure with sketch_dim"):
        compare(measured, ["rloo"])
    with_scores = quiet_compare(measured, ["rloo"], vectors)
    assert with_scores.sketch_dim is None
    measured.sketches = vectors
    exact = quiet_compare(measured, ["rloo"], scores_are_sketches=False).to_frame()
    assert exact["trace_cov"].item() == with_scores.to_frame()["trace_cov"].item()


ON_POLICY = ["recipe:grpo", "recipe:dapo", "recipe:gspo", "recipe:cispo", "recipe:dr_grpo", "recipe:kimi_k15(tau=1)"]


def with_log_probabilities(gap: float | None):
    """A measurement with the scored log-probabilities, and the sampler's, a few of them that far off."""
    measured, _ = measurement(n_prompts=12)
    rng = np.random.default_rng(3)
    measured.logprobs = [-rng.random(len(mask)) for mask in measured.rollouts.masks]
    measured.old_logprobs = None
    if gap is not None:
        measured.old_logprobs = [row + gap * rng.normal(size=len(row)) for row in measured.logprobs]
    return measured


@pytest.mark.parametrize("gap", [None, 0.0, 1e-3])
def test_recipes_need_only_completions_where_sampler_and_scorer_agree(gap):
    """Without the sampler's log-probabilities, with the same ones, and with rounding beyond GSPO's clip of 3e-4."""
    plain = [f"{label}(ratio=none)" for label in ON_POLICY[:-1]]
    frame = quiet_compare(with_log_probabilities(gap), ON_POLICY).to_frame()
    expected = quiet_compare(with_log_probabilities(None), plain).to_frame()
    assert frame["estimator"].tolist() == ON_POLICY
    np.testing.assert_allclose(frame["trace_cov"][:-1], expected["trace_cov"], rtol=1e-12)
    assert np.isfinite(frame["trace_cov"]).all()


def test_weights_that_really_vary_are_refused_with_the_measurement_they_need():
    measured = with_log_probabilities(0.3)
    assert np.isfinite(quiet_compare(measured, ["recipe:gspo", "rloo"]).to_frame()["trace_cov"]).all()
    with pytest.raises(ValueError, match="recipe:grpo weights each token, and only scores of whole"):
        quiet_compare(measured, ["recipe:grpo"])
