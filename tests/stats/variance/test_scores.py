"""Token-level estimators from probes: unbiased against exact token scores, and covering enumerated variances."""

from dataclasses import replace

import numpy as np
import pytest
from comparison_batches import quiet_compare
from probed_policies import enumerated, probed

from gradstats import estimators as est
from gradstats.analyses.variance import compare
from gradstats.estimators import Batch, Recipe
from gradstats.stats.variance.inputs import comparison_inputs
from gradstats.stats.variance.scores import prepare_scores, probe_blocks, probe_thirds

EVERY_LEVEL = ["rloo", "grpo", "otb", "otb(energy=exact, loo=True)", "otb_turns(energy=exact)", "gae", "gae(lam=0.9)"]


POLICY = enumerated()


def drawn(n_groups=30, group_size=3, seed=0):
    batch, _, scores = POLICY.sample(n_groups, group_size, seed)
    return batch, scores


def prepared(measured, estimator):
    inputs = comparison_inputs(measured, None, False, [est.get(estimator)])
    return inputs.batch, inputs.prepared(np.arange(len(inputs.batch.rewards))).probed


@pytest.mark.parametrize("n_heavy", [0, 1, 4])
def test_inner_products_of_weighted_sums_are_unbiased(n_heavy):
    """Over many draws of the probes, features give the inner products of the sums they stand for."""
    batch, scores = drawn(4)
    rng = np.random.default_rng(1)
    weights = rng.normal(size=batch.mask.shape) * batch.mask
    exact = np.einsum("nt,ntd->nd", weights, scores)
    found = []
    for _ in range(60 if n_heavy < 4 else 2):
        tokens = prepared(probed(batch, scores, 8, n_heavy, rng), "otb")[1]
        n = np.arange(len(weights))
        features, surplus = tokens.sums(weights, n, n, len(n))
        found.append((features * tokens.signs[: features.shape[1]]) @ features.T + np.diag(surplus))
    error = np.std(found, axis=0) / np.sqrt(len(found))
    # All tokens heavy: nothing is left to the probes, and nothing to chance.
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - exact @ exact.T), 4.5 * error + 1e-9)
    assert n_heavy < 4 or np.max(error) < 1e-9


def test_noise_of_estimated_weights_does_not_count():
    """Weights that are noise along the probes: products across thirds give the square of their mean."""
    batch, scores = drawn(3)
    rng = np.random.default_rng(2)
    mean = rng.normal(size=batch.mask.shape) * batch.mask
    exact = (np.einsum("nt,ntd->nd", mean, scores) ** 2).sum(axis=1)
    n, found, naive = np.arange(len(mean)), [], []
    for _ in range(80):
        tokens = prepared(probed(batch, scores, 9, 1, rng), "otb")[1]
        weights = mean + rng.normal(size=(3, *mean.shape)) * batch.mask
        for squares, given in ((found, weights), (naive, weights[0])):
            features, surplus = tokens.sums(given, n, n, len(n))
            squares.append((features**2) @ tokens.signs[: features.shape[1]] + surplus)
    error = np.std(found, axis=0) / np.sqrt(80)
    assert np.all(np.abs(np.mean(found, axis=0) - exact) < 4.5 * error)
    assert np.mean(naive) > exact.mean() + 5 * np.std(np.mean(naive, axis=1)) / np.sqrt(80)


def test_with_every_token_heavy_the_table_is_that_of_exact_scores():
    batch, scores = drawn(40)
    measured = probed(batch, scores, 6, 4, np.random.default_rng(0))
    optimal = ["causal_optimal", est.causal_optimal(scope="batch", loo=True)]
    names = [*EVERY_LEVEL, Recipe("otb", aggregation="sequence_mean"), *optimal]
    shared = {"group_size": 3, "prompts_per_batch": 8, "n_resamples": 6}
    table = quiet_compare(measured, names, scores_are_sketches=False, values=batch.values, **shared).to_frame()
    exact = quiet_compare(batch, names, scores, **shared).to_frame()
    for column in ("trace_cov", "trace_cov_low", "trace_cov_high", "signal_sq", "ratio", "ratio_low", "kept_share"):
        np.testing.assert_allclose(table[column], exact[column], rtol=1e-6, err_msg=column)


def test_rows_of_whole_completions_are_those_of_sketches_alone():
    batch, scores = drawn(40)
    measured = probed(batch, scores, 12, 1, np.random.default_rng(0), sketch_dim=40)
    mixed = quiet_compare(measured, ["rloo", "token_mean", "otb"]).to_frame()
    alone = quiet_compare(measured, ["rloo", "token_mean"]).to_frame()
    for column in ("trace_cov", "trace_cov_low", "signal_sq", "signal_sq_high", "ratio_high"):
        np.testing.assert_allclose(mixed[column][:2], alone[column], rtol=1e-9)


def test_masked_tokens_do_not_enter():
    batch, scores = drawn(40)
    mask = batch.mask & ((np.arange(4) != 1) | (batch.lengths < 3)[:, None])
    known = {"logprobs": batch.logprobs, "sum_pi_squared": batch.sum_pi_squared}
    holed = Batch(batch.rewards, mask.sum(axis=1), batch.groups, mask, **known)
    measured = probed(holed, scores, 6, 4, np.random.default_rng(0))
    table = quiet_compare(measured, ["otb", "otb_turns"], scores_are_sketches=False).to_frame()
    exact = quiet_compare(holed, ["otb", "otb_turns"], scores).to_frame()
    np.testing.assert_allclose(table["trace_cov"], exact["trace_cov"], rtol=1e-6)


def test_thirds_and_blocks_hold_every_probe_once():
    for n_probes in (1, 2, 3, 7, 32, 100):
        parts = np.concatenate(probe_thirds(n_probes))
        blocks = np.concatenate([block for blocks in probe_blocks(n_probes) for block in blocks])
        np.testing.assert_array_equal(parts, np.arange(n_probes))
        np.testing.assert_array_equal(blocks, np.arange(n_probes))


def test_what_is_refused():
    batch, scores = drawn(20)
    few = probed(batch, scores, 5, 1, np.random.default_rng(0))
    for given, label, asked, message in (
        (few, "otb", {"token_energy": np.ones(batch.mask.shape)}, "token_energy come from the measurement: pass"),
        (batch, "gae", {"scores": scores, "values": batch.values}, r"give values to the Batch .*\(values=…\)"),
        (few, "otb", {"valuse": batch.values}, "'valuse' is not a field of a Batch: choose from .* values"),
        (few, "otb", {"confidence_level": 0.9}, r"give confidence_level to what it returns, as to .to_frame\(\)"),
    ):
        with pytest.raises(TypeError, match=message):
            compare(given, [label], **asked)
    with pytest.raises(ValueError, match="token_probes=5 are too few .* measurement.token_probes.*or at least 6"):
        compare(few, ["causal_optimal"])
    few.token_projections[3][0] = np.nan
    with pytest.raises(ValueError, match="token_projections of completion 3 hold values that are not finite"):
        compare(few, ["otb"])


@pytest.mark.slow
@pytest.mark.parametrize(("n_probes", "n_heavy", "sketch_dim"), [(32, 1, None), (32, 0, None), (32, 1, 512)])
def test_intervals_from_probes_cover_enumerated_variances(n_probes, n_heavy, sketch_dim):
    """As often as those of exact token scores do, and no more than a few per cent below the nominal rate."""
    names = ["otb", "otb(energy=exact)", "otb(energy=exact, loo=True)", "gae", "causal_optimal"]
    exact = {name: POLICY.moments(est.get(name), 3).trace_cov for name in names}
    replications = 300 if sketch_dim is None else 150
    hits, reference = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for seed in range(replications):
        batch, scores = drawn(150, 3, seed)
        measured = probed(batch, scores, n_probes, n_heavy, np.random.default_rng(seed), sketch_dim)
        table = quiet_compare(measured, names, scores_are_sketches=sketch_dim is not None, values=batch.values).rows
        plain = quiet_compare(batch, names, scores).rows
        for name, row, other in zip(names, table, plain, strict=True):
            for count, estimate in ((hits, row.trace_cov), (reference, other.trace_cov)):
                low, high = estimate.confidence_interval(0.95)
                count[name] += low <= exact[name] <= high
    for name in names:
        assert hits[name] >= reference[name] - 0.03 * replications, (name, hits, reference)
        assert hits[name] >= 0.88 * replications, (name, hits, reference)


def test_one_large_sample_agrees_with_enumerated_variances():
    """One large sample: 99.9 % intervals from probes hold the exact traces, and are narrow."""
    names = ["otb", "otb(energy=exact)", "gae", "causal_optimal"]
    batch, scores = drawn(800, 3, 11)
    measured = probed(batch, scores, 48, 1, np.random.default_rng(11))
    frame = quiet_compare(measured, names, scores_are_sketches=False, values=batch.values).to_frame(0.999)
    for name, row in zip(names, frame.to_dict("records"), strict=True):
        exact = POLICY.moments(est.get(name), 3).trace_cov
        assert row["trace_cov_low"] <= exact <= row["trace_cov_high"], name
        assert row["trace_cov_high"] < (4.0 if name == "causal_optimal" else 2.0) * row["trace_cov_low"], name


def test_fields_of_a_batch_may_be_ragged():
    batch, scores = drawn(10)
    measured = probed(batch, scores, 6, 1, np.random.default_rng(0))
    ragged = [np.arange(length, dtype=float) for length in batch.lengths]
    found = Batch.from_measurement(measured, values=ragged)
    assert found.values.shape == batch.mask.shape
    np.testing.assert_array_equal(found.values[3, : batch.lengths[3]], ragged[3])
    with pytest.raises(ValueError, match="values does not have one value per completion token"):
        Batch.from_measurement(measured, values=[row[:-1] for row in ragged])
    # Energies of some tokens alone are left out.
    assert Batch.from_measurement(replace(measured, token_projections=None)).token_energy is None
    every = replace(probed(batch, scores, 6, 4, np.random.default_rng(0)), token_projections=None)
    np.testing.assert_allclose(Batch.from_measurement(every).token_energy, (scores**2).sum(axis=2))


@pytest.mark.parametrize("n_heavy", [1, 4])
def test_products_take_sides_from_different_thirds_and_probes_from_the_remaining_one(n_heavy):
    """The signed features against the average written out over thirds of the probes."""
    batch, scores = drawn(5)
    rng = np.random.default_rng(3)
    tokens = prepared(probed(batch, scores, 8, n_heavy, rng), "otb")[1]
    weights = rng.normal(size=(3, *batch.mask.shape)) * batch.mask
    n = np.arange(len(weights[0]))
    features, _ = tokens.sums(weights, n, n, len(n))
    single = [tokens.sums(part, n, n, len(n))[0] for part in weights]
    dim, expected = scores.shape[2], np.zeros((len(n), len(n)))
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            mine, theirs = single[first], single[second]
            expected += mine[:, :dim] @ theirs[:, :dim].T / 6.0
            # Each probe belongs to one remaining third, which two of the six ordered pairs share.
            along = dim + probe_thirds(8)[3 - first - second]
            expected += (mine[:, along] @ theirs[:, along].T - mine[:, along + 8] @ theirs[:, along + 8].T) / 2.0
    found = (features * tokens.signs[: features.shape[1]]) @ features.T
    np.testing.assert_allclose(found, 0.5 * (expected + expected.T), rtol=1e-9, atol=1e-9)


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
