"""Scores of single tokens under token weights."""

import dataclasses

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

from gradstats import estimators as est
from gradstats.stats import compare
from gradstats.stats.variance.scores import prepare_scores


def test_token_scores():
    batch, _ = interleaved_batch([3] * 12, signal=1.0)
    batch = batch.with_fields(mask=np.arange(60) < batch.lengths[:, None])
    rng = np.random.default_rng(4)
    tokens = rng.normal(size=(36, 60, 6)) * batch.mask[:, :, None]
    whole = tokens.sum(axis=1)
    number = ["trace_cov", "trace_cov_low", "signal_sq", "ratio", "ratio_high"]
    local = est.reinforce()
    definition = dataclasses.replace(
        local.definition, level="token", function=lambda b: b.rewards[:, None] * (b.mask.cumsum(axis=1) % 2)
    )
    alternating = est.Estimator(definition, {})
    got = quiet_compare(batch, ["reinforce", alternating], tokens, reference="reinforce").to_frame()
    expected = quiet_compare(batch, ["reinforce"], whole, reference="reinforce").to_frame()
    np.testing.assert_allclose(got.loc[0, number].astype(float), expected.loc[0, number].astype(float), rtol=1e-10)
    odd = (tokens * (batch.mask.cumsum(axis=1) % 2)[:, :, None]).sum(axis=1)
    expected = quiet_compare(batch, ["reinforce"], odd, reference="reinforce").to_frame()
    assert got["trace_cov"].iloc[1] == pytest.approx(expected["trace_cov"].iloc[0], rel=1e-10)
    with pytest.raises(ValueError, match=r"weights each token.*token_probes"):
        compare(batch, [alternating], whole)


@pytest.mark.parametrize("per_token", [False, True])
def test_sums_are_those_of_loops(per_token):
    rng = np.random.default_rng(0)
    tokens, mask = rng.normal(size=(4, 3, 2)), np.ones((4, 3), dtype=bool)
    scores = prepare_scores(tokens, mask, np.arange(4), False, None)
    rows = [np.array([0, 2]), np.array([3])]
    weights = [rng.normal(size=(len(each), 3) if per_token else len(each)) for each in rows]
    sums, surplus = scores.sums(rows, weights)
    for place, (each, weight) in enumerate(zip(rows, weights, strict=True)):
        by_token = weight if per_token else np.repeat(weight[:, None], 3, axis=1)
        expected = sum(by_token[i, t] * tokens[row, t] for i, row in enumerate(each) for t in range(3))
        np.testing.assert_allclose(sums[place], expected)
    np.testing.assert_array_equal(surplus, 0.0)


def test_exact_norms_of_sketched_scores_are_kept_beside_them():
    values = np.random.default_rng(0).normal(size=(3, 4))
    exact = np.array([9.0, 8.0, 7.0])
    scores = prepare_scores(values, np.ones((3, 5), dtype=bool), np.array([2, 0]), True, exact)
    np.testing.assert_allclose(scores.surplus_sq, exact[[2, 0]] - (values[[2, 0]] ** 2).sum(axis=1))
    _, surplus = scores.sums([np.array([0, 1])], [np.array([2.0, 3.0])])
    assert surplus[0] == pytest.approx(4 * scores.surplus_sq[0] + 9 * scores.surplus_sq[1])
