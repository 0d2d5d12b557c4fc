"""Learned, published and oracle baselines in one table."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly

import gradstats as gs
from gradstats.stats.variance.optimal_baselines import ORACLE, PUBLISHED, optimal_baselines


def inputs(n_prompts=40, size=4):
    batch, scores = correlated_batch(n_prompts, size)
    scores = scores + 2.0 * batch.rewards[:, None]
    return batch.with_fields(sq_norms=(scores**2).sum(axis=1)), scores


@pytest.fixture(scope="module")
def found():
    return quietly(optimal_baselines, *inputs())


def test_the_rows_are_learned_published_and_the_oracle(found):
    frame = found.to_frame()
    learned = ["learned exponent", "learned shift", "learned mixture"]
    assert list(frame["estimator"]) == [*learned, *PUBLISHED, ORACLE]
    assert list(frame["kind"]) == ["learned"] * 3 + ["published"] * len(PUBLISHED) + ["oracle"]
    assert frame["parameters"][0].startswith("alpha ")
    assert frame.attrs["best_learned"] == found.best == learned[int(np.argmin(frame["trace_cov"][:3]))]


def test_published_rows_are_those_of_a_comparison(found):
    batch, scores = inputs()
    frame = found.to_frame().set_index("estimator")
    labels = ["rloo", "token_mean(loo=True)", "length_weighted(alpha=within_prompt, loo=True)"]
    expected = quietly(gs.compare, batch, labels, scores, reference=ORACLE).to_frame().set_index("estimator")
    for name in ("trace_cov", "ratio", "ratio_low", "ratio_high"):
        np.testing.assert_allclose(frame.loc[labels, name], expected[name], rtol=1e-9)


def test_both_ratios_have_simultaneous_intervals(found):
    frame = found.to_frame()
    best = frame.set_index("estimator").loc[found.best, "trace_cov"]
    local = frame["estimator"].isin(["rloo", "token_mean(loo=True)", ORACLE])
    np.testing.assert_allclose(frame["ratio_to_learned"][local], frame["trace_cov"][local] / best)
    for name in ("ratio", "ratio_to_learned"):
        ends = frame[[f"{name}_simultaneous_low", f"{name}_low", f"{name}_high", f"{name}_simultaneous_high"]]
        assert (np.diff(ends.to_numpy(dtype=float), axis=1) >= -1e-12).all()


def test_the_sentence_states_the_gain(found):
    frame = found.to_frame().set_index("estimator")
    sentence = found.sentence()
    assert sentence.startswith(f"The best learned baseline is the {found.best}, {frame.loc[found.best, 'parameters']}")
    assert f"{frame.loc['rloo', 'ratio_to_learned']:.3g} [" in sentence


def test_refusals():
    batch, scores = inputs(3)
    with pytest.raises(ValueError, match="needs at least 4 prompts, got 3"):
        optimal_baselines(batch, scores, published=["rloo"])
    batch, scores = inputs()
    with pytest.raises(ValueError, match="needs sq_norms"):
        optimal_baselines(batch.with_fields(sq_norms=None), scores, published=["rloo"])
    rng = np.random.default_rng(0)
    logs = np.where(batch.mask, -1.0, 0.0)
    old = np.where(batch.mask, -1.0 + 0.3 * rng.normal(size=batch.mask.shape), 0.0)
    with pytest.raises(ValueError, match="leave-one-out baselines are biased for completions of another policy"):
        optimal_baselines(batch.with_fields(logprobs=logs, old_logprobs=old), scores)
