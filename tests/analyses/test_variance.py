"""Which estimators may be the lowest, the frame of a comparison, its quantities, and variances by block."""

import pickle
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from comparison_batches import assert_nested, interleaved_batch, quiet_compare, quietly
from conftest import ragged_rollouts, tiny_model
from measured_by_hand import measured_by_hand
from oracles.naive_estimators import sequence_gradients

import gradstats as gs
from gradstats.analyses import variance_by_length, variance_by_success
from gradstats.analyses.variance import compare
from gradstats.estimators import Batch
from gradstats.plots.variance import rows_shown_below
from gradstats.stats.jackknife import mean_statistic
from gradstats.stats.variance.best_set import pairwise_differences
from gradstats.stats.variance.quantities import COMPARED, QUANTITIES, VARIANCE_COMPONENTS, filled_in

EVERY = np.ones(3, dtype=bool)


ONE = np.exp(np.random.default_rng(0).normal(size=50))
NOISY = np.exp(0.1 * np.random.default_rng(0).normal(size=(3, 50))) * [[1.0], [2.0], [4.0]]
LOW, CLOSE, HIGH = np.exp(0.3 * np.random.default_rng(0).normal(size=(3, 100))) * [[1.0], [1.01], [3.0]]


@pytest.mark.parametrize(
    ("values", "judged", "best"),
    [
        ((HIGH, LOW, CLOSE), EVERY, [False, True, True]),  # a tie
        ((HIGH, LOW), EVERY[:2], [False, True]),
        ((ONE, ONE * (1 + 1e-7)), EVERY[:2], [True, True]),  # a difference that nobody would choose by
        ((ONE, ONE * (1 + 1e-3)), EVERY[:2], [True, False]),
        (NOISY, [False, True, True], [False, True, False]),  # what is not judged neither belongs nor excludes
        ((None, *NOISY[1:]), EVERY, [False, True, False]),
    ],
)
def test_what_is_not_excluded_as_the_lowest_is_in_the_best_set(values, judged, best):
    differences = pairwise_differences([None if one is None else mean_statistic(one) for one in values])
    assert differences.best_set(np.array(judged), 0.95).tolist() == best
    with pytest.raises(ValueError, match="confidence_level=0 must lie between 0 and 1"):
        differences.best_set(np.array(judged), 0.0)


def test_the_truly_lowest_is_kept_at_the_stated_rate():
    """Six equal means: each is the lowest, and any one is excluded in at most 5 % of 400 data sets (error 0.011)."""
    rng, every, found = np.random.default_rng(2), np.ones(6, dtype=bool), []
    for _ in range(400):
        means = [mean_statistic(each) for each in np.exp(0.8 * rng.normal(size=(6, 60)))]
        found.append(pairwise_differences(means).best_set(every, 0.95))
    assert np.mean(found, axis=0)[0] >= 0.95
    assert np.mean(np.all(found, axis=1)) >= 0.92


def test_simultaneous_intervals_widen_with_the_level_and_hold_the_single_ones():
    batch, scores = interleaved_batch([4] * 60)
    result = quiet_compare(batch, ["rloo", "reinforce", "grpo"], scores)
    narrow, wide = result.to_frame(0.5), result.to_frame(0.99)
    for frame in (narrow, wide):
        assert_nested(frame, "ratio", "matched_ratio")
    for name in ("ratio", "matched_ratio"):
        low, high = result.confidence_interval(0.5, name)
        np.testing.assert_array_equal(narrow[[f"{name}_low", f"{name}_high"]], np.transpose([low, high]))
        assert (wide[f"{name}_low"].iloc[1:] < low[1:]).all()
        assert (high[1:] < wide[f"{name}_high"].iloc[1:]).all()
    assert (wide["ratio_simultaneous_high"].iloc[1:] > narrow["ratio_simultaneous_high"].iloc[1:]).all()
    assert wide["ratio_simultaneous_low"].iloc[0] == wide["ratio_simultaneous_high"].iloc[0] == 1.0


def test_a_row_without_a_gradient_has_neither_verdict_nor_prompt():
    batch, scores = interleaved_batch([4] * 20)
    equal = batch.with_fields(rewards=np.ones(80))
    frame = quiet_compare(equal, ["rloo", "reinforce"], scores, reference="reinforce").to_frame()
    assert frame["in_best_set"].tolist() == [None, True]
    assert rows_shown_below(frame) == rows_shown_below(pd.read_csv(StringIO(frame.to_csv()))) == []
    assert frame["most_influential_prompt"].isna().tolist() == [True, False]
    assert np.isnan(frame["n_effective_prompts"].iloc[0])
    assert np.isnan(frame["ratio_simultaneous_low"].iloc[0])


def test_the_metric_of_a_measurement_stands_in_the_table_and_its_notes():
    measured = measured_by_hand(8)
    adam = {"name": "adam", "eps": 1e-8, "power": 0.5, "step": None, "beta2": 0.999, "moments": "1a2b"}
    scaled = replace(measured, metadata=measured.metadata | {"metric": adam | {"source": "a file"}})
    plain, table = (quiet_compare(one, ["rloo"]) for one in (measured, scaled))
    assert plain.to_frame().attrs["metric"] == "euclidean"
    assert not any("P·S" in note for note in plain.notes)
    assert table.to_frame().attrs["metric"] == table.metric == "adam(eps=1e-08, power=0.5, moments=1a2b)"
    bins = quietly(variance_by_length, scaled, "reinforce", n_bins=2).to_frame()
    split = quietly(variance_by_success, scaled, ["reinforce"], success=np.full(8, 0.5)).to_frame()
    assert bins.attrs["metric"] == split.attrs["metric"] == table.metric
    assert "norms and inner products are those of P·S with P = 1/(v̂^0.5 + 1e-08), v̂ from a file" in table.notes


def problem(noise):
    rng, size = np.random.default_rng(0), 120
    return Batch(5.0 + noise * rng.normal(size=size), [10] * size, np.arange(size) // 4), rng.normal(size=(size, 6))


CONSTANTS = ["rloo", "reinforce", "constant(b=0.5)", "constant(b=5)"]


@pytest.mark.parametrize(
    ("estimators", "options", "lowest_alone"),
    [
        (CONSTANTS, {}, True),
        ([*CONSTANTS, "constant(b=5.01)"], {}, False),  # a tie
        (["rloo", "reinforce"], {}, True),  # the reference
        (["rloo", "reinforce", "batch_mean(loo=True)"], {"n_resamples": 64}, True),
        (CONSTANTS, {"group_size": [2, 4]}, False),
        (["reinforce"], {}, False),  # a single row
    ],
)
def test_only_one_estimator_may_be_alone_in_the_best_set(estimators, options, lowest_alone):
    batch, scores = problem(noise=0.1 if "n_resamples" in options else 1.0)
    frame = quiet_compare(batch, estimators, scores, **options).to_frame()
    best = frame["estimator"][frame["in_best_set"].eq(True)].tolist()
    lowest = frame["estimator"][frame["matched_ratio"].astype(float).idxmin()] if lowest_alone else None
    assert (best == [lowest]) is lowest_alone


def test_a_row_is_shown_below_by_its_simultaneous_interval_alone():
    ends = {"low": [1.0 - 3e-12, 0.97, 0.9, np.nan, 0.1], "high": [1.0 - 1e-12, 0.99, 1.01, np.nan, 0.999]}
    frame = pd.DataFrame({f"matched_ratio_simultaneous_{end}": numbers for end, numbers in ends.items()})
    assert rows_shown_below(frame) == [1]  # the last one is written [0.10, 1.00]
    assert rows_shown_below(pd.DataFrame({"matched_ratio_high": [0.9]})) == []


LABELS = ["group_mean", "rloo", "norm_weighted(loo=True)"]
N_PROMPTS = 6


def measured_by_parameter(metric=None, **options):
    """A measurement in which the sketch of every parameter keeps inner products exactly."""
    model = tiny_model("qwen2")
    largest = max(parameter.numel() for parameter in model.parameters())
    fixed = {"engine": "loop", "blocks": "parameter", "block_sketches": True, "progress": False} | options
    return gs.measure(model, ragged_rollouts(2 * N_PROMPTS), metric=metric, sketch_dim=largest, **fixed)


@pytest.fixture(scope="module")
def measured():
    return measured_by_parameter(token_probes=4)


def trace_cov(weights, scores):
    """tr Cov of the gradient of a prompt, from explicit gradients."""
    prompts = (weights[:, None] * scores).reshape(N_PROMPTS, 2, -1).sum(axis=1)
    gram = prompts @ prompts.T
    return np.trace(gram) / N_PROMPTS - (gram.sum() - np.trace(gram)) / (N_PROMPTS * (N_PROMPTS - 1))


@pytest.mark.parametrize("in_metric", [False, True])
def test_variances_are_those_of_the_explicit_gradients_of_each_block(measured, in_metric):
    metric, rng = None, np.random.default_rng(3)
    if in_metric:
        shapes = {name: one.shape for name, one in tiny_model("qwen2").named_parameters()}
        moments = {name: torch.from_numpy(rng.random(tuple(shape))) for name, shape in shapes.items()}
        metric = gs.AdamMetric(moments, eps=0.1)
        measured = measured_by_parameter(metric)
    exact = sequence_gradients(tiny_model("qwen2"), ragged_rollouts(2 * N_PROMPTS))
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


def test_every_block_is_dealt_the_same_batches(measured):
    norms, sketches = measured.sq_norms_by_block.iloc[:, [0, 0]], measured.sketches_by_block[:, [0, 0]]
    same = replace(measured, sq_norms_by_block=norms.set_axis(["one", "other"], axis=1), sketches_by_block=sketches)
    options = {"prompts_per_batch": 2, "n_resamples": 3}
    frame = quiet_compare(same, ["reinforce_pp_baseline"], blocks=True, **options).to_frame().set_index("block")
    for column in ("trace_cov", "trace_cov_high"):
        assert frame.loc["one", column] == frame.loc["other", column]
    generators = [np.random.default_rng(0) for _ in range(2)]
    for blocks, rng in zip((True, False), generators, strict=True):
        quiet_compare(same, ["rloo"], blocks=blocks, rng=rng)
    assert generators[0].integers(2**40) == generators[1].integers(2**40)


def test_what_has_no_blocks_is_refused(measured):
    bare = SimpleNamespace(rollouts=measured.rollouts, sketches=measured.sketches, sq_norms=measured.sq_norms)
    none = "holds no sketches by block: measure with --set measurement.block_sketches=true"
    for given, labels, options, message in (
        (replace(measured, sketches_by_block=None), LABELS, {}, none),
        (bare, LABELS, {}, none),
        (measured, LABELS, {"max_grad_norm": 1.0}, "max_grad_norm clips whole gradients, which blocks=True divides"),
        (measured, LABELS, {"scores": measured.sketches}, "blocks=True takes the sketches of a measurement"),
        (measured, ["otb"], {}, "weights each token, whose scores are not kept by block"),
    ):
        with pytest.raises(ValueError, match=message):
            gs.compare(given, labels, **options, blocks=True)
    printed = repr(quiet_compare(measured, ["rloo"], blocks=True))
    assert printed.splitlines()[0].split()[:2] == ["block", "estimator"]


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=64) + 1.0, np.full(64, 10), np.repeat(np.arange(16), 4))
    scores = rng.normal(size=(64, 3)) + 0.5 * batch.rewards[:, None] ** 2
    return quiet_compare(batch, ["rloo", "reinforce"], scores, group_size=2)


def test_the_frame_holds_every_quantity_in_order_with_its_interval(comparison):
    ends = ("", "_low", "_high")
    expected = ["estimator", "group_size", "unit", "components", "target"]
    expected += [f"{one.name}{end}" for one in COMPARED for end in ends]
    beside = [f"{name}_simultaneous_{end}" for name in ("ratio", "matched_ratio") for end in ("low", "high")]
    beside += ["in_best_set", "n_effective_prompts", "most_influential_prompt"]
    assert list(comparison.to_frame().columns) == expected + beside
    components = comparison.variance_components()
    assert {f"{one.name}{end}" for one in VARIANCE_COMPONENTS for end in ends} <= set(components.columns)


def test_labels_are_filled_in_with_reference_and_target():
    for quantity in QUANTITIES.values():
        for text in (quantity.heading, quantity.axis_label, quantity.panel_label):
            assert "{" not in filled_in(text, {"reference": "rloo", "target": "importance"})
    # A frame of an earlier version has no target.
    assert filled_in(QUANTITIES["cosine"].axis_label, {}) == "cosine to the on-policy gradient"


def test_a_comparison_is_pickled(comparison):
    again = pickle.loads(pickle.dumps(comparison))
    assert again.to_frame().equals(comparison.to_frame())


def test_resolved_signal_is_given_in_full():
    batch, scores = interleaved_batch([4] * 60, signal=3.0)
    frame = compare(batch, ["rloo", "grpo"], scores).to_frame()
    assert frame[[f"{one.name}{end}" for one in COMPARED for end in ("", "_low", "_high")]].notna().all(axis=None)
    assert (frame["noise_to_signal_low"] < frame["noise_to_signal"]).all()
    assert frame["cosine"].iloc[0] == pytest.approx(1.0)


def test_kept_share_counts_groups_with_a_gradient():
    rewards = np.array([1, 1, 0, 1, 0, 0, 1, 0], dtype=float)
    batch = Batch(rewards, np.arange(1, 9), np.repeat(["a", "b", "c", "d"], 2))
    frame = quiet_compare(batch, ["rloo", "constant(b=0.5)"], np.random.default_rng(0).normal(size=(8, 3))).to_frame()
    assert list(frame["kept_share"]) == [0.5, 1.0]
    assert (frame["kept_share_low"] > 0).all()
    assert frame["kept_share_low"].iloc[1] < 1 >= frame["kept_share_high"].max()
