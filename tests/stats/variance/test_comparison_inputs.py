"""What a comparison takes from a measurement."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from comparison_batches import quiet_compare
from off_policy_pair import policy_pair

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.measurement.measurement import WeightedGradients
from gradstats.rollouts.table import Rollouts
from gradstats.stats import compare
from gradstats.stats.variance.inputs import comparison_inputs
from gradstats.stats.variance.length_bins import variances_by_length


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
    assert "sketches of dimension 5 (squared norms are exact)" in " ".join(result.notes)
    order = np.lexsort((measured.rollouts.sample_id, measured.rollouts.prompt_id))
    batch = Batch.from_measurement(measured).select(order)
    by_hand = quiet_compare(batch, ["rloo", "norm_weighted"], vectors[order], group_size=2, scores_are_sketches=True)
    np.testing.assert_allclose(
        result.to_frame().select_dtypes("number"), by_hand.to_frame().select_dtypes("number"), rtol=1e-8
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


def off_policy_measurement(label: str):
    """An off-policy sample: the weightings that a recipe needs, as measured, and the exact scores of every token."""
    scored, sampler = policy_pair()
    rng = np.random.default_rng(1)
    rows = rng.choice(len(scored.rewards), 160, p=sampler.probabilities)
    widths = scored.lengths[rows]
    rollouts = Rollouts.from_sequences(
        [[1]] * len(rows),
        [list(range(width)) for width in widths],
        scored.rewards[rows],
        np.repeat(np.arange(40), 4).astype(str),
        sample_ids=np.tile(np.arange(4), 40),
    )
    ragged = {
        name: [values[row, :width] for row, width in zip(rows, widths, strict=True)]
        for name, values in (
            ("logprobs", scored.logprobs),
            ("old_logprobs", sampler.logprobs),
            ("ref_logprobs", sampler.logprobs),
        )
    }
    measured = SimpleNamespace(
        rollouts=rollouts,
        lengths=widths,
        sq_norms=scored.sq_norms[rows],
        sketches=scored.sequence_scores[rows],
        **ragged,
    )
    tokens = scored.token_scores[rows]
    measured.weighted = {}
    for name, weights in est.token_weightings([label], measured).items():
        padded = np.stack([np.pad(row, (0, tokens.shape[1] - len(row))) for row in weights])
        vectors = np.einsum("nt,ntd->nd", padded, tokens)
        measured.weighted[name] = WeightedGradients(pd.DataFrame({"all": (vectors**2).sum(axis=1)}), vectors)
    return measured, tokens


@pytest.mark.parametrize("group_size", [2, 4])
@pytest.mark.parametrize("label", ["recipe:grpo", "recipe:grpo(kl=in_loss(beta=0.3))", "recipe:dapo(scope=batch)"])
def test_measured_weightings_give_what_token_scores_give(label, group_size):
    measured, tokens = off_policy_measurement(label)
    options = {"group_size": group_size, "n_resamples": 4}
    combined = quiet_compare(measured, [label, "rloo"], scores_are_sketches=False, **options).to_frame()
    sketched = quiet_compare(measured, [label, "rloo"], **options).to_frame()
    batch = Batch.from_measurement(measured)
    exact = quiet_compare(batch, [label, "rloo"], tokens[:, : batch.mask.shape[1]], **options).to_frame()
    for column in ("trace_cov", "trace_cov_low", "signal_sq", "matched_ratio", "cosine"):
        np.testing.assert_allclose(combined[column], exact[column], rtol=1e-8)
    for column in ("trace_cov", "signal_sq"):  # the sketch's error widens intervals, and no more
        np.testing.assert_allclose(sketched[column], exact[column], rtol=1e-8)
    measured.weighted = {}
    with pytest.raises(
        ValueError, match=r"χ² .* is [\d.]+\): measure again with token_weights=.*token_weightings\(\['reci"
    ):
        quiet_compare(measured, [label])


def with_probes(measured, tokens, n_heavy):
    """Add token scores along as many orthogonal probes as there are parameters, which is exact."""
    dim = tokens.shape[-1]
    basis = np.linalg.qr(np.random.default_rng(2).normal(size=(dim, dim)))[0] * np.sqrt(dim)
    of_completion = [token[:width] for token, width in zip(tokens, measured.lengths, strict=True)]
    measured.token_projections = [token @ basis for token in of_completion]
    measured.heavy_positions = [np.arange(n_heavy)] * len(tokens)
    measured.heavy_sketches = [token[:n_heavy] for token in of_completion]
    measured.heavy_sq_norms = [(token[:n_heavy] ** 2).sum(axis=1) for token in of_completion]


def test_measured_weightings_are_split_by_length_beside_probes():
    labels = ["recipe:grpo", "discounted(gamma=0.8)", "rloo"]
    measured, tokens = off_policy_measurement("recipe:grpo")
    with_probes(measured, tokens, n_heavy=1)
    batch = Batch.from_measurement(measured)
    found = variances_by_length(measured, labels, n_bins=2, group_size=2, scores_are_sketches=False)
    exact = variances_by_length(batch, labels, tokens[:, : batch.mask.shape[1]], n_bins=2, group_size=2)
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one.to_frame()["trace_cov"], other.to_frame()["trace_cov"], rtol=1e-8)


@pytest.mark.parametrize("n_heavy", [0, 1])
def test_measured_weightings_and_probes_of_tokens_serve_side_by_side(n_heavy):
    """Along as many orthogonal probes as there are parameters, probes are exact; so are weightings without them."""
    labels = ["recipe:grpo", "discounted(gamma=0.8)", "rloo", "recipe:dapo(scope=batch)"]
    measured, tokens = off_policy_measurement("recipe:grpo")
    measured.weighted |= off_policy_measurement("recipe:dapo(scope=batch)")[0].weighted
    with_probes(measured, tokens, n_heavy)
    options = {"group_size": 2, "n_resamples": 4, "reference": "discounted(gamma=0.8)"}
    found = quiet_compare(measured, labels, scores_are_sketches=False, **options).to_frame()
    batch = Batch.from_measurement(measured)
    exact = quiet_compare(batch, labels, tokens[:, : batch.mask.shape[1]], **options).to_frame()
    for column in ("trace_cov", "signal_sq", "ratio", "matched_ratio", "cosine", "matched_bias_share"):
        np.testing.assert_allclose(found[column], exact[column], rtol=1e-8)
    # That of grpo was measured and rests on no probe, whose error widens the interval of the other.
    alone, _ = off_policy_measurement("recipe:grpo")
    without = quiet_compare(alone, ["recipe:grpo"], scores_are_sketches=False, group_size=2).to_frame()
    widths = found["trace_cov_high"] - found["trace_cov_low"]
    assert widths[0] == pytest.approx(without["trace_cov_high"].item() - without["trace_cov_low"].item(), rel=1e-6)

    inputs = comparison_inputs(measured, None, False, [est.get(label) for label in labels])
    inputs, (grpo, *_) = inputs.with_combined([est.get("recipe:grpo"), est.get("discounted(gamma=0.8)")])
    rows = np.arange(len(tokens))
    scores, of_tokens = inputs.prepared(rows), est.get("discounted(gamma=0.8)").weights(batch)
    assert scores.combined is not None
    combined = scores.combined.weighted(grpo.weights(batch)).vectors
    probed = scores.weighted(of_tokens).vectors
    by_token = [est.get(label).weights(batch) for label in ("recipe:grpo", "discounted(gamma=0.8)")]
    first, second = (np.einsum("nt,ntd->nd", one, tokens[:, : one.shape[1]]) for one in by_token)
    signs = scores.signs[: probed.shape[1]]
    np.testing.assert_allclose((combined * signs) @ probed.T, first @ second.T, atol=1e-12)
