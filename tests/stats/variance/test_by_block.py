"""The variance of estimators block by block, against the explicit gradients of a tiny model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison_batches import quiet_compare
from conftest import ragged_rollouts, tiny_model

import gradstats as gs
from gradstats.estimators import Batch
from gradstats.reference.naive_estimators import sequence_gradients

LABELS = ["group_mean", "rloo", "norm_weighted(loo=True)"]
N_PROMPTS = 6


def measured_by_parameter(metric=None, **options):
    """A measurement in which the sketch of every parameter keeps inner products exactly, and autograd's gradients."""
    model, rollouts = tiny_model("qwen2"), ragged_rollouts(2 * N_PROMPTS)
    largest = max(parameter.numel() for parameter in model.parameters())
    fixed = {"engine": "loop", "blocks": "parameter", "block_sketches": True, "progress": False} | options
    measured = gs.measure(model, rollouts, metric=metric, sketch_dim=largest, **fixed)
    return measured, sequence_gradients(model, rollouts)


def trace_cov(weights, scores):
    """tr Cov of the gradient of a prompt, from explicit gradients."""
    prompts = (weights[:, None] * scores).reshape(N_PROMPTS, 2, -1).sum(axis=1)
    gram = prompts @ prompts.T
    return np.trace(gram) / N_PROMPTS - (gram.sum() - np.trace(gram)) / (N_PROMPTS * (N_PROMPTS - 1))


@pytest.mark.parametrize("in_metric", [False, True])
def test_variances_are_those_of_the_explicit_gradients_of_each_block(in_metric):
    metric, rng = None, np.random.default_rng(3)
    if in_metric:
        shapes = {name: one.shape for name, one in tiny_model("qwen2").named_parameters()}
        moments = {name: torch.from_numpy(rng.random(tuple(shape))) for name, shape in shapes.items()}
        metric = gs.AdamMetric(moments, eps=0.1)
    measured, exact = measured_by_parameter(metric)
    scores = {
        block: np.stack([one[block].numpy().ravel() for one in exact])
        * (1.0 if metric is None else 1 / (np.sqrt(moments[block].numpy().ravel()) + 0.1))
        for block in exact[0]
    }
    batch = Batch.from_measurement(measured)
    # Those of norm_weighted come from norms of the whole gradient, in every block.
    weights = {label: gs.estimators.get(label).weights(batch) for label in LABELS}
    frame = quiet_compare(measured, LABELS, blocks=True).to_frame()
    assert list(dict.fromkeys(frame["block"])) == list(measured.sq_norms_by_block)
    for row in frame.to_dict("records"):
        variance, reference = (trace_cov(weights[one], scores[row["block"]]) for one in (row["estimator"], "rloo"))
        assert row["trace_cov"] == pytest.approx(variance, rel=1e-8)
        assert row["ratio"] == pytest.approx(variance / reference, rel=1e-8)
    whole = np.concatenate(list(scores.values()), axis=1)
    for label, total in frame.groupby("estimator")["trace_cov"].sum().items():
        assert total == pytest.approx(trace_cov(weights[label], whole), rel=1e-8)


def test_every_block_is_dealt_the_same_batches():
    measured, _ = measured_by_parameter()
    same = replace(
        measured,
        sq_norms_by_block=measured.sq_norms_by_block.iloc[:, [0, 0]].set_axis(["one", "other"], axis=1),
        sketches_by_block=measured.sketches_by_block[:, [0, 0]],
    )
    options = {"prompts_per_batch": 2, "n_resamples": 3}
    frame = quiet_compare(same, ["reinforce_pp_baseline"], blocks=True, **options).to_frame()
    one, other = (frame[frame["block"] == name].drop(columns="block") for name in ("one", "other"))
    assert one["trace_cov"].tolist() == other["trace_cov"].tolist()
    assert one["trace_cov_high"].tolist() == other["trace_cov_high"].tolist()
    generators = [np.random.default_rng(0) for _ in range(2)]
    quiet_compare(same, ["rloo"], blocks=True, rng=generators[0])
    quiet_compare(same, ["rloo"], rng=generators[1])
    assert generators[0].integers(2**40) == generators[1].integers(2**40)


def test_what_has_no_blocks_is_refused():
    measured, _ = measured_by_parameter(token_probes=4)
    with pytest.raises(ValueError, match="holds no sketches by block: measure with block_sketches=True"):
        gs.compare(replace(measured, sketches_by_block=None), LABELS, blocks=True)
    bare = SimpleNamespace(rollouts=measured.rollouts, sketches=measured.sketches, sq_norms=measured.sq_norms)
    with pytest.raises(ValueError, match="holds no sketches by block"):
        gs.compare(bare, LABELS, blocks=True)
    with pytest.raises(ValueError, match="max_grad_norm clips whole gradients, which blocks=True divides"):
        gs.compare(measured, LABELS, blocks=True, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="blocks=True takes the sketches of a measurement"):
        gs.compare(measured, LABELS, measured.sketches, blocks=True)
    with pytest.raises(ValueError, match="weights each token, whose scores are not kept by block"):
        gs.compare(measured, ["otb"], blocks=True)


def test_the_table_prints_with_its_blocks():
    measured, _ = measured_by_parameter()
    found = quiet_compare(measured, ["rloo"], blocks=True)
    assert repr(found).splitlines()[0].split()[:2] == ["block", "estimator"]
    assert "lowest_beyond_doubt" not in found.to_frame().attrs
