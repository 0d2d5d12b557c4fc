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
        result.to_frame().iloc[:, 3:].astype(float), by_hand.to_frame().iloc[:, 3:].astype(float), rtol=1e-8
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
