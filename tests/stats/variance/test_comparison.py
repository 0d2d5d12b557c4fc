"""The comparison of estimators against brute force, its symmetries, and what it refuses."""

import dataclasses
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.rollouts.table import Rollouts
from gradstats.stats import compare

LOCAL = [
    "reinforce",
    "constant(b=0.5)",
    "group_mean",
    "rloo",
    "grpo",
    "token_mean",
    "norm_weighted(loo=True)",
]
EXACT = {
    "reinforce": 1.0,
    "constant(b=0.5)": 1.0,
    "group_mean": None,
    "rloo": 1.0,
    "norm_weighted(loo=True)": 1.0,
}
QUANTITIES = ("trace_cov", "signal_sq", "noise_to_signal", "ratio", "matched_ratio", "cosine", "bias_share")


def make(sizes, dim=6, seed=0, signal=0.0):
    """A batch of prompts with given numbers of completions, interleaved, and exact scores."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(np.arange(len(sizes)), sizes)
    n = len(prompts)
    lengths = rng.integers(3, 60, n)
    scores = rng.normal(size=(n, dim)) * np.sqrt(lengths)[:, None]
    rewards = (rng.random(n) < 0.5).astype(float)
    scores += signal * rewards[:, None] * np.sqrt(lengths).mean()
    order = rng.permutation(n)
    batch = Batch(
        rewards[order],
        lengths[order],
        np.array([f"p{p:03d}" for p in prompts])[order],
        sq_norms=(scores[order] ** 2).sum(axis=1),
    )
    return batch, scores[order]


def quiet_compare(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return compare(*arguments, **keywords)


def warned_compare(*arguments, **keywords):
    """The table, and every warning as one text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        frame = compare(*arguments, **keywords).to_frame()
    return frame, "\n".join(str(warning.message) for warning in caught)


def group_gradients(batch, scores, name, group_size):
    """A list over prompts of lists of group gradients, by loops."""
    result = []
    for label in sorted(set(batch.groups)):
        rows = [i for i in range(len(batch.groups)) if batch.groups[i] == label]
        size = len(rows) if group_size is None else group_size
        gradients = []
        for start in range(0, len(rows) - size + 1, size):
            part = np.array(rows[start : start + size])
            alone = Batch(batch.rewards[part], batch.lengths[part], np.zeros(size, int), sq_norms=batch.sq_norms[part])
            gradients.append(est.get(name).advantages(alone) @ scores[part] / size)
        if gradients:
            result.append(gradients)
    return result


def brute_statistics(gradients, reference, unbiased):
    """All point estimates, written from their definitions."""
    m = len(gradients)
    mean, ref, unb = ([np.mean(g, axis=0) for g in groups] for groups in (gradients, reference, unbiased))

    def cross(first, second):
        return np.mean([first[i] @ second[j] for i in range(m) for j in range(m) if i != j])

    def trace(groups):
        means = np.array([np.mean(g, axis=0) for g in groups])
        between = ((means - means.mean(axis=0)) ** 2).sum() / (m - 1)
        if all(len(g) == 1 for g in groups):
            return between
        within = [((np.array(g) - np.mean(g, axis=0)) ** 2).sum() / (len(g) - 1) for g in groups]
        return np.mean(within) + between - np.mean([w / len(g) for w, g in zip(within, groups, strict=True)])

    difference = [a - b for a, b in zip(mean, unb, strict=True)]
    coefficient = cross(mean, ref) / cross(ref, ref)
    return {
        "trace_cov": trace(gradients),
        "signal_sq": cross(mean, mean),
        "signal_to_noise": cross(mean, mean) / trace(gradients),
        "ratio": trace(gradients) / trace(reference),
        "matched_ratio": trace(gradients) / trace(reference) / coefficient**2,
        "cosine": cross(mean, unb) / np.sqrt(cross(mean, mean) * cross(unb, unb)),
        "bias_to_noise": cross(difference, difference) / trace(gradients),
    }


def brute_row(batch, scores, name, group_size, level=0.95):
    """Estimates with delete-one-prompt intervals, all recomputed from scratch for each prompt left out."""
    parts = [group_gradients(batch, scores, each, group_size) for each in (name, "grpo", "rloo")]
    m = len(parts[0])
    whole = brute_statistics(*parts)
    without = [brute_statistics(*[[g for j, g in enumerate(p) if j != i] for p in parts]) for i in range(m)]
    row = {}
    for quantity, value in whole.items():
        replicates = np.array([w[quantity] for w in without])
        log = quantity in ("trace_cov", "ratio", "matched_ratio")
        if log:
            replicates = np.log(replicates)
        margin = stats.t.ppf(0.5 + level / 2, m - 1) * np.sqrt(
            (m - 1) / m * ((replicates - replicates.mean()) ** 2).sum()
        )
        ends = value * np.exp([-margin, margin]) if log else value + np.array([-margin, margin])
        row[quantity] = (value, *ends)
    value, low, high = row["signal_to_noise"]
    row["noise_to_signal"] = (1 / value, 1 / high, 1 / low if low > 0 else np.inf)
    share = [128 * x / (1 + 128 * x) if 128 * x > -1 else -np.inf for x in row["bias_to_noise"]]
    row["bias_share"] = (share[0] if np.isfinite(share[0]) else np.nan, *share[1:])
    return row


@pytest.mark.parametrize(
    ("sizes", "group_size"),
    [([4] * 12, None), ([2, 3, 5, 4, 4, 6, 2, 3, 5, 4, 3, 4], None), ([5, 6, 4, 7, 5, 4, 6, 5, 4, 9], 2)],
)
def test_equals_brute_force(sizes, group_size):
    batch, scores = make(sizes, signal=2.0)
    frame = compare(batch, LOCAL, scores, group_size=group_size, reference="grpo").to_frame()
    for position, name in enumerate(LOCAL):
        expected = brute_row(batch, scores, name, group_size)
        for quantity in QUANTITIES:
            if name == "grpo" and quantity == "matched_ratio":
                continue
            got = frame.loc[position, [quantity, f"{quantity}_low", f"{quantity}_high"]].to_numpy(dtype=float)
            np.testing.assert_allclose(got, expected[quantity], rtol=1e-8, atol=1e-12, err_msg=f"{name} {quantity}")


def test_columns_and_order():
    batch, scores = make([4] * 10)
    frame = quiet_compare(batch, [est.rloo(), "reinforce"], scores).to_frame()
    quantities = [*QUANTITIES, "kept_share"]
    expected = ["estimator", "group_size", "unit", *[q + end for q in quantities for end in ("", "_low", "_high")]]
    assert list(frame.columns) == expected
    assert list(frame["estimator"]) == ["rloo", "reinforce"]
    assert set(frame["group_size"]) == {4}
    assert frame.attrs["reference"] == "rloo"


def test_any_constant_costs_the_square_of_its_distance_from_the_best():
    """E[(R−b)²‖S‖²] = E[(R−b*)²‖S‖²] + (b−b*)² E‖S‖², for second moments about zero."""
    batch, scores = make([1] * 40)
    best = est.optimal_constant(batch.rewards, batch.sq_norms)
    constants = [best, best - 0.7, best + 0.2]
    frame = quiet_compare(
        batch, [est.constant(b=float(b)) for b in constants], scores, reference="reinforce"
    ).to_frame()
    second = frame["trace_cov"] + frame["signal_sq"]
    for b, value in zip(constants, second, strict=True):
        assert value == pytest.approx(second[0] + (b - best) ** 2 * batch.sq_norms.mean(), rel=1e-10)


def test_own_sample_mean_is_exactly_matched():
    batch, scores = make([4] * 12)
    frame = quiet_compare(batch, ["group_mean"], scores).to_frame().iloc[0]
    assert frame["ratio"] == pytest.approx(9 / 16, rel=1e-12)
    for quantity in ("matched_ratio", "matched_ratio_low", "matched_ratio_high"):
        assert frame[quantity] == pytest.approx(1.0, rel=1e-6)


def test_the_reference_beside_itself_is_one_without_error():
    batch, scores = make([4] * 12)
    for reference in ("rloo", "grpo"):
        frame = quiet_compare(batch, [reference, "reinforce"], scores, reference=reference).to_frame()
        for quantity in ("ratio", "matched_ratio"):
            assert list(frame.loc[0, [quantity, f"{quantity}_low", f"{quantity}_high"]]) == [1.0, 1.0, 1.0]


def test_several_groups_of_a_prompt_are_split_in_sample_order():
    batch, scores = make([5, 7, 4, 6] * 3)
    with pytest.warns(UserWarning, match="not resolved"):
        result = compare(batch, ["rloo"], scores, group_size=2)
    assert (result.n_prompts, result.n_groups, result.n_leftover) == (12, 3 * (2 + 3 + 2 + 3), 6)
    assert "6 completions did not fill a group of 2" in " ".join(result.notes)


def test_symmetries():
    batch, scores = make([4, 3, 5, 2] * 4, signal=3.0)
    names = ["rloo", "token_mean", "norm_weighted", "kimi(tau=0.5)"]
    plain = quiet_compare(batch, names, scores).to_frame()
    number = [c for c in plain.columns if c not in ("estimator", "group_size", "unit")]
    columns = [c for c in number if not c.startswith("kept_share")]

    order = np.random.default_rng(1).permutation(len(batch.rewards))
    renamed = np.array([f"q{999 - int(g[1:])}" for g in batch.groups])
    shuffled = quiet_compare(batch.with_fields(groups=renamed).select(order), names, scores[order]).to_frame()
    np.testing.assert_allclose(shuffled[number], plain[number], rtol=1e-8)

    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0]
    np.testing.assert_allclose(
        quiet_compare(batch, names, scores @ rotation).to_frame()[number], plain[number], rtol=1e-8
    )

    larger = quiet_compare(batch.with_fields(sq_norms=9 * batch.sq_norms), names, 3 * scores).to_frame()
    scaled = [c for c in columns if c.startswith(("trace_cov", "signal_sq"))]
    same = [c for c in columns if c not in scaled]
    np.testing.assert_allclose(larger[scaled], 9 * plain[scaled], rtol=1e-8)
    np.testing.assert_allclose(larger[same], plain[same], rtol=1e-8)

    linear = names[:3]
    richer = quiet_compare(batch.with_fields(rewards=2 * batch.rewards + 5), linear, scores).to_frame()
    np.testing.assert_allclose(richer[scaled], 4 * plain[scaled][:3], rtol=1e-8)
    np.testing.assert_allclose(richer[same], plain[same][:3], rtol=1e-7)


def test_unresolved_signal_is_said_and_bounded():
    batch, scores = make([4] * 30, dim=200)
    with pytest.warns(UserWarning, match=r"not resolved for rloo and grpo.*at least about [\d,]+ prompts.*now 30"):
        result = compare(batch, ["rloo", "grpo"], scores)
    frame = result.to_frame()
    assert (frame["signal_sq_low"] <= 0).all()
    assert frame["noise_to_signal"].isna().all()
    assert (frame["noise_to_signal_low"] > 0).all()
    assert np.isinf(frame["noise_to_signal_high"]).all()
    assert frame["cosine"].isna().all()
    assert frame["matched_ratio"].iloc[0] == 1.0
    assert np.isnan(frame["matched_ratio"].iloc[1])
    assert "not resolved" in result.notes[0]


def test_resolved_signal_is_given_in_full():
    batch, scores = make([4] * 60, signal=3.0)
    frame = compare(batch, ["rloo", "grpo"], scores).to_frame()
    assert frame[[f"{q}{e}" for q in QUANTITIES for e in ("", "_low", "_high")]].notna().all().all()
    assert (frame["noise_to_signal_low"] < frame["noise_to_signal"]).all()
    assert frame["cosine"].iloc[0] == pytest.approx(1.0)


def test_intervals_widen_with_the_level():
    batch, scores = make([4] * 30)
    result = quiet_compare(batch, ["rloo", "reinforce"], scores)
    narrow, wide = result.confidence_interval(0.5), result.confidence_interval(0.99)
    assert (wide[0] < narrow[0]).all()
    assert (narrow[1] < wide[1]).all()
    low, high = result.confidence_interval(0.9, "ratio")
    np.testing.assert_array_equal(low, result.to_frame(0.9)["ratio_low"])
    np.testing.assert_array_equal(high, result.to_frame(0.9)["ratio_high"])


def test_kept_share_counts_groups_with_a_gradient():
    rewards = np.array([1, 1, 0, 1, 0, 0, 1, 0], dtype=float)
    batch = Batch(rewards, np.arange(1, 9), np.repeat(["a", "b", "c", "d"], 2))
    frame = quiet_compare(batch, ["rloo", "constant(b=0.5)"], np.random.default_rng(0).normal(size=(8, 3))).to_frame()
    assert list(frame["kept_share"]) == [0.5, 1.0]
    assert (frame["kept_share_low"] > 0).all()
    assert (frame["kept_share_high"] <= 1).all()
    assert frame["kept_share_low"].iloc[1] < 1


def test_equal_rewards_give_nan_with_the_reason():
    batch, scores = make([4] * 10)
    batch = batch.with_fields(rewards=np.ones(40))
    frame, text = warned_compare(batch, ["rloo", "grpo", "reinforce"], scores, reference="reinforce")
    assert "every reward equals 1 " in text
    assert "so rloo and grpo give no completion any weight" in text
    assert frame["trace_cov"].isna().tolist() == [True, True, False]
    assert frame["kept_share"].tolist() == [0.0, 0.0, 1.0]
    assert frame["ratio"].iloc[2] == 1.0


def test_rewards_equal_within_groups_give_nan_with_the_reason():
    batch, scores = make([4] * 10)
    batch = batch.with_fields(rewards=(batch.group_index % 2).astype(float))
    with pytest.warns(UserWarning, match=r"equal within every group.*so rloo give no completion any weight"):
        frame = compare(batch, ["rloo"], scores).to_frame()
    assert np.isnan(frame["trace_cov"].item())


def test_groups_of_one_compare_to_reinforce():
    batch, scores = make([3] * 10)
    frame, text = warned_compare(batch, ["reinforce", "rloo"], scores, group_size=1, reference="reinforce")
    assert "single completion" in text
    assert frame["ratio"].iloc[0] == 1.0
    assert np.isnan(frame["trace_cov"].iloc[1])
    assert frame["bias_share"].iloc[0] == 0.0


def test_two_prompts_have_no_interval():
    batch, scores = make([4, 4])
    with pytest.warns(UserWarning, match="2 prompts are too few"):
        frame = compare(batch, ["reinforce"], scores, reference="reinforce").to_frame()
    assert np.isfinite(frame["trace_cov"].item())
    assert np.isnan(frame["trace_cov_low"].item())


def across(name):
    """A group-local estimator that claims to look across groups."""
    local = est.get(name)
    definition = dataclasses.replace(local.definition, across_groups=lambda parameters: True)
    return est.Estimator(definition, local.parameters)


def test_batches_of_one_prompt_give_the_closed_form():
    batch, scores = make([4, 3, 5] * 4, signal=1.0)
    local = quiet_compare(batch, ["token_mean"], scores, reference="reinforce").to_frame()
    dealt = quiet_compare(
        batch, [across("token_mean")], scores, reference="reinforce", prompts_per_batch=1, n_resamples=3
    )
    number = [
        c for c in local.columns if c not in ("estimator", "group_size", "unit") and not c.startswith("bias_share")
    ]
    np.testing.assert_allclose(dealt.to_frame()[number].astype(float), local[number].astype(float), rtol=1e-8)
    assert "batches of 1 prompts, dealt 3 times" in " ".join(dealt.notes)


@pytest.mark.parametrize("group_size", [None, 2])
def test_batches_of_several_prompts_agree_with_the_closed_form(group_size):
    batch, scores = make([4] * 60, signal=1.0)
    keywords = {"group_size": group_size, "reference": "reinforce"}
    local = compare(batch, ["token_mean"], scores, **keywords).to_frame().iloc[0]
    dealt = compare(batch, [across("token_mean")], scores, prompts_per_batch=6, n_resamples=300, **keywords)
    dealt = dealt.to_frame().iloc[0]
    for quantity in ("trace_cov", "signal_sq", "ratio"):
        assert dealt[quantity] == pytest.approx(local[quantity], rel=0.05), quantity
        width = local[f"{quantity}_high"] - local[f"{quantity}_low"]
        assert dealt[f"{quantity}_high"] - dealt[f"{quantity}_low"] == pytest.approx(width, rel=0.25), quantity
    assert dealt["kept_share"] == pytest.approx(local["kept_share"], abs=0.01)


def test_an_estimator_that_looks_across_groups_sees_whole_batches():
    batch, scores = make([4] * 24)
    sizes = []
    local = est.reinforce()

    def spy(inner):
        sizes.append((inner.n_groups, len(inner.rewards)))
        return inner.rewards - inner.rewards.mean()

    definition = dataclasses.replace(local.definition, function=spy, across_groups=lambda parameters: True)
    quiet_compare(batch, [est.Estimator(definition, {})], scores, prompts_per_batch=8, n_resamples=2)
    assert sizes == [(8, 32)] * 6


def test_token_scores():
    batch, _ = make([3] * 12, signal=1.0)
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
        gram=lambda: vectors @ vectors.T,
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


def test_a_measurement_without_sketches_uses_its_gram_matrix():
    measured, vectors = measurement(sketches=False)
    result = quiet_compare(measured, ["rloo"])
    assert result.sketch_dim is None
    direct = quiet_compare(measured, ["rloo"], vectors)
    np.testing.assert_allclose(
        result.to_frame().iloc[:, 3:].astype(float), direct.to_frame().iloc[:, 3:].astype(float), rtol=1e-6
    )


def test_refusals():
    batch, scores = make([4] * 10)
    cases = [
        (TypeError, "a Batch has no gradients: pass scores", {"scores": None}),
        (ValueError, "estimators is empty", {"estimators": []}),
        (KeyError, "no estimator is called 'rlo'", {"estimators": ["rlo"]}),
        (ValueError, "group_size=5 must lie between 1 and .* at most 4 here", {"group_size": 5}),
        (ValueError, r"scores has shape \(39, 6\), expected \(40, D\)", {"scores": scores[:39]}),
        (ValueError, r"scores has shape \(40,\)", {"scores": scores[:, 0]}),
        (ValueError, "scores holds 2 tokens a completion", {"scores": np.zeros((40, 2, 3))}),
        (ValueError, "not finite: measure it again", {"scores": np.where(scores > 3, np.nan, scores)}),
        (ValueError, "reference='batch_mean' looks across groups", {"reference": "batch_mean"}),
        (
            ValueError,
            "prompts_per_batch=6 must be between 1 and half the 10 prompts",
            {"prompts_per_batch": 6},
        ),
    ]
    for error, message, changes in cases:
        arguments = {"estimators": ["rloo", "batch_mean"], "scores": scores, **changes}
        with pytest.raises(error, match=message):
            compare(batch, **arguments)
    with pytest.raises(ValueError, match="at least 2 prompts with a full group each, got 1"):
        compare(batch.select(batch.group_index == 0), ["rloo"], scores[batch.group_index == 0])
    with pytest.raises(ValueError, match="norm_weighted needs sq_norms"):
        compare(batch.with_fields(sq_norms=None), ["norm_weighted"], scores)
    result = quiet_compare(batch, ["rloo"], scores)
    with pytest.raises(ValueError, match="quantity='variance' is not estimated: choose from trace_cov"):
        result.confidence_interval(0.95, "variance")
    with pytest.raises(ValueError, match=r"confidence_level=1\.5 must lie between"):
        result.to_frame(1.5)


def test_rows_do_not_depend_on_each_other():
    batch, scores = make([4] * 24)
    keywords = {"scores": scores, "n_resamples": 5, "scores_are_sketches": True}
    together = quiet_compare(batch, ["batch_mean", "rloo", "constant"], **keywords).to_frame()
    alone = quiet_compare(batch, ["constant"], **keywords).to_frame()
    number = list(together.columns[3:])
    np.testing.assert_array_equal(together[number].iloc[2].astype(float), alone[number].iloc[0].astype(float))
    again = quiet_compare(batch, ["batch_mean", "rloo", "constant"], **keywords).to_frame()
    np.testing.assert_array_equal(together[number].astype(float), again[number].astype(float))


def test_two_batches_have_no_interval():
    batch, scores = make([4] * 10)
    frame, text = warned_compare(batch, ["batch_mean"], scores, prompts_per_batch=5, n_resamples=4)
    assert "only 2 disjoint batches of 5" in text
    assert np.isfinite(frame["trace_cov"].item())
    assert np.isnan(frame["signal_sq_low"].item())
