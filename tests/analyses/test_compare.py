"""Comparisons of estimators against brute force, their symmetries, rows without inputs, and what is refused."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from comparison_batches import correlated_batch, interleaved_batch, quiet_compare, quietly, sized_batch, warned_compare
from scipy import stats

from gradstats import estimators as est
from gradstats.analyses.variance import compare, variance
from gradstats.estimators import Batch
from gradstats.plots.marks import with_ends
from gradstats.rollouts.table import Rollouts
from tests.off_policy import ImportanceWeighted


def small_measurement(n_prompts: int = 12, per_prompt: int = 4) -> SimpleNamespace:
    """Random completions with sketches of their scores and the scored log-probabilities."""
    rng = np.random.default_rng(0)
    n = n_prompts * per_prompt
    lengths, rewards, vectors = rng.integers(2, 9, n), rng.random(n) < 0.5, rng.normal(size=(n, 5))
    prompts, samples = np.divmod(np.arange(n), per_prompt)
    rollouts = Rollouts.from_sequences(
        [[1]] * n, list(map(list, map(range, lengths))), rewards, prompts.astype(str), sample_ids=samples
    )
    logprobs = [-rng.random(length) for length in lengths]
    known = {"lengths": lengths, "sq_norms": (vectors**2).sum(axis=1) * 1.1, "sketches": vectors, "logprobs": logprobs}
    return SimpleNamespace(rollouts=rollouts, **known, old_logprobs=None)


LOCAL = ["reinforce", "constant(b=0.5)", "group_mean", "rloo", "grpo", "token_mean", "norm_weighted(loo=True)"]


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
    bias_sq = cross(difference, difference)
    return {
        "trace_cov": trace(gradients),
        "signal_sq": cross(mean, mean),
        "ratio": trace(gradients) / trace(reference),
        # What divides by a signal, as numerator and denominator.
        "noise_to_signal": (trace(gradients), cross(unb, unb)),
        "matched_ratio": (np.sqrt(trace(gradients) / trace(reference)) * cross(ref, unb), cross(mean, unb)),
        "cosine": (cross(mean, unb), np.sqrt(cross(mean, mean) * cross(unb, unb))),
        "bias_share": (bias_sq, bias_sq + trace(gradients) / 128),
    }


def jackknife(value, replicates):
    m = len(replicates)
    return np.sqrt((m - 1) / m * ((replicates - replicates.mean()) ** 2).sum())


def check_against_loops(batch, scores, name, group_size, row, level=0.95):
    """Every estimate, and ends of intervals, from statistics that are computed again for each prompt left out."""
    parts = [group_gradients(batch, scores, each, group_size) for each in (name, "grpo", "rloo")]
    m = len(parts[0])
    whole = brute_statistics(*parts)
    without = [brute_statistics(*[[g for j, g in enumerate(p) if j != i] for p in parts]) for i in range(m)]
    t = stats.t.ppf(0.5 + level / 2, m - 1)
    for quantity, value in whole.items():
        if quantity in ("trace_cov", "signal_sq", "ratio"):
            assert row[quantity] == pytest.approx(value, rel=1e-8), (name, quantity)
            replicates = np.array([each[quantity] for each in without])
            low = value - t * jackknife(value, replicates)
            if quantity != "signal_sq":
                low = value * np.exp(-t * jackknife(np.log(value), np.log(replicates)))
            # A bootstrap may widen the interval of a ratio beyond Student's.
            assert row[f"{quantity}_low"] <= low * (1 + 1e-8) + 1e-10, (name, quantity)
            assert quantity == "ratio" or row[f"{quantity}_low"] == pytest.approx(low, rel=1e-8, abs=1e-10)
        # What divides by a signal may not be resolved; noise to signal where the scale is 1.
        elif np.isfinite(row[quantity]) and (quantity != "noise_to_signal" or est.get(name).expected_scale(2) == 1.0):
            numerator, denominator = value
            if quantity == "cosine":  # the product of the norms is less its bias
                denominator = m * denominator - (m - 1) * np.mean([each[quantity][1] for each in without])
            expected = (numerator / denominator) ** (2 if quantity == "matched_ratio" else 1)
            if (name, quantity) != ("rloo", "cosine"):  # known exactly
                assert row[quantity] == pytest.approx(expected, rel=1e-8, abs=1e-12), (name, quantity)


@pytest.mark.parametrize(
    ("sizes", "group_size"),
    [([4] * 12, None), ([2, 3, 5, 4, 4, 6, 2, 3, 5, 4, 3, 4], None), ([5, 6, 4, 7, 5, 4, 6, 5, 4, 9], 2)],
)
def test_equals_brute_force(sizes, group_size):
    batch, scores = interleaved_batch(sizes, signal=2.0)
    frame = quiet_compare(batch, LOCAL, scores, group_size=group_size, reference="grpo").to_frame()
    for position, name in enumerate(LOCAL):
        check_against_loops(batch, scores, name, group_size, frame.iloc[position])


def test_several_groups_of_a_prompt_are_split_in_sample_order():
    batch, scores = interleaved_batch([5, 7, 4, 6] * 3)
    result = quiet_compare(batch, ["rloo"], scores, group_size=2)
    assert (result.n_prompts, result.n_groups, result.n_leftover) == (12, 3 * (2 + 3 + 2 + 3), 6)
    assert "6 completions did not fill a group of 2" in " ".join(result.notes)


def test_symmetries():
    batch, scores = interleaved_batch([4, 3, 5, 2] * 4, signal=3.0)
    names = ["rloo", "token_mean", "norm_weighted", "kimi(tau=0.5)"]
    plain = quiet_compare(batch, names, scores).to_frame()
    number = [c for c in plain.columns if plain[c].dtype == float and not c.startswith("ratio_")]
    order = np.random.default_rng(1).permutation(len(batch.rewards))
    renamed = batch.with_fields(groups=np.array([f"q{999 - int(g[1:])}" for g in batch.groups]))
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0]
    for other, of_other in ((renamed.select(order), scores[order]), (batch, scores @ rotation)):
        found = quiet_compare(other, names, of_other).to_frame()
        np.testing.assert_allclose(found[number], plain[number], rtol=1e-8)

    scaled = [c for c in number if c.startswith(("trace_cov", "signal_sq"))]
    same = [c for c in number if c not in scaled and not c.startswith("kept_share")]
    larger = quiet_compare(batch.with_fields(sq_norms=9 * batch.sq_norms), names, 3 * scores).to_frame()
    richer = quiet_compare(batch.with_fields(rewards=2 * batch.rewards + 5), names[:3], scores).to_frame()
    for found, factor in ((larger, 9), (richer, 4)):
        expected = plain[: len(found)]
        np.testing.assert_allclose(found[scaled], factor * expected[scaled], rtol=1e-8)
        np.testing.assert_allclose(found[same], expected[same], rtol=1e-7)


def test_groups_of_one_compare_to_reinforce():
    batch, scores = interleaved_batch([3] * 10)
    frame, text = warned_compare(batch, ["reinforce", "rloo"], scores, group_size=1, reference="reinforce")
    assert "single completion" in text
    assert frame["ratio"].iloc[0] == 1.0
    assert np.isnan(frame["trace_cov"].iloc[1])
    assert frame["bias_share"].iloc[0] == 0.0


#: Counts are refused whether or not an estimator uses them.
COUNTS = [(name, one) for name in ("prompts_per_batch", "n_resamples") for one in ("grpo", "batch_mean")]
ONE_UNKNOWN = np.where(np.arange(40)[:, None] == 7, np.nan, np.ones(3))


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, "a Batch has no gradients: pass scores", {"scores": None}),
        (ValueError, "estimators is empty", {"estimators": []}),
        (KeyError, "no estimator is called 'rlo'", {"estimators": ["rlo"]}),
        (ValueError, "group_size=5 must lie between 1 and .* at most 4 here", {"group_size": 5}),
        (ValueError, "group_size=5 must lie between 1 and .* at most 4 here", {"group_size": [4, 5]}),
        (ValueError, "group_size is empty: give one size, several, or None", {"group_size": []}),
        (ValueError, r"scores has shape \(39, 6\), expected \(40, D\)", {"scores": np.zeros((39, 6))}),
        (ValueError, r"scores has shape \(40,\)", {"scores": np.zeros(40)}),
        (ValueError, "scores holds 2 tokens per completion", {"scores": np.zeros((40, 2, 3))}),
        (ValueError, "completion 7 hold values that are not finite: measure", {"scores": ONE_UNKNOWN}),
        (ValueError, "reference='batch_mean' is a batch-level estimator", {"reference": "batch_mean"}),
        *((ValueError, f"^{name} is 0: it must be an integer", {"estimators": [one], name: 0}) for name, one in COUNTS),
        (ValueError, "prompts_per_batch=6 must be between 1 and half the 10 prompts", {"prompts_per_batch": 6}),
    ],
)
def test_unusable_arguments_are_refused(error, message, changes):
    batch, scores = interleaved_batch([4] * 10)
    with pytest.raises(error, match=message):
        compare(batch, **{"estimators": ["rloo", "batch_mean"], "scores": scores, **changes})


def test_unusable_batches_and_levels_are_refused():
    batch, scores = interleaved_batch([4] * 10)
    first = batch.group_index == 0
    with pytest.raises(ValueError, match="at least 2 prompts with a full group each, got 1"):
        compare(batch.select(first), ["rloo"], scores[first])
    with pytest.raises(ValueError, match="norm_weighted needs sq_norms"):
        compare(batch.with_fields(sq_norms=None), ["norm_weighted"], scores)
    comparison = quiet_compare(batch, ["rloo", "reinforce"], scores)
    for quantity in ("variance", "in_best_set"):
        with pytest.raises(ValueError, match=f"quantity='{quantity}' is not estimated: choose from trace_cov"):
            comparison.confidence_interval(0.95, quantity)
    for call in (comparison.to_frame, comparison.confidence_interval):
        with pytest.raises(ValueError, match="^confidence_level=1 must lie between 0 and 1"):
            call(1.0)


@pytest.mark.parametrize("sketched", [False, True])
def test_sizes_in_one_call_are_the_rows_of_each_size_alone(sketched):
    batch, scores = sized_batch()

    def compared(size):
        return quiet_compare(batch, ["group_mean", "rloo"], scores, group_size=size, scores_are_sketches=sketched)

    together, alone = compared([2, 4, 8]), [compared(size) for size in (2, 4, 8)]
    assert [one.group_size for one in (together, *alone)] == [(2, 4, 8), 2, 4, 8]
    assert (together.n_prompts, together.n_groups, together.n_leftover) == (20, 140, 0)
    expected = pd.concat([one.to_frame() for one in alone], ignore_index=True)
    pd.testing.assert_frame_equal(together.to_frame(), expected, check_dtype=False)
    assert list(together.variance_components()["within_prompt"].isna()) == [False] * 4 + [True] * 2
    assert list(quiet_compare(batch, ["rloo"], scores, group_size=[4, 4]).to_frame()["group_size"]) == [4]


def test_multiples_of_the_reference_are_exactly_matched():
    batch, scores = interleaved_batch([4] * 12)
    for reference in ("rloo", "grpo"):
        frame = quiet_compare(batch, [reference, "group_mean"], scores, reference=reference).to_frame()
        for quantity in ("ratio", "matched_ratio"):
            assert list(frame.loc[0, with_ends(quantity)]) == [1.0, 1.0, 1.0]
        if reference == "rloo":
            assert frame.loc[1, "ratio"] == pytest.approx(9 / 16, rel=1e-12)
            assert list(frame.loc[1, with_ends("matched_ratio")]) == pytest.approx([1.0, 1.0, 1.0], rel=1e-6)


def test_rows_do_not_depend_on_each_other():
    batch, scores = interleaved_batch([4] * 24)
    keywords = {"scores": scores, "n_resamples": 5, "scores_are_sketches": True}
    together, again = (
        quiet_compare(batch, ["batch_mean", "rloo", "constant"], **keywords).to_frame() for _ in range(2)
    )
    alone = quiet_compare(batch, ["constant"], **keywords).to_frame()
    beside = ("in_best_set", "most_influential_prompt")  # columns that compare the rows of a table
    number = [name for name in together.select_dtypes(float) if "simultaneous" not in name and name not in beside]
    np.testing.assert_array_equal(together[number].iloc[2].astype(float), alone[number].iloc[0].astype(float))
    np.testing.assert_array_equal(together[number].astype(float), again[number].astype(float))


def test_the_other_rows_stay_and_the_reason_is_given():
    measured = small_measurement()
    labels = ["rloo", "gae", "remax", "otb", "recipe:grpo", "group_mean"]
    with warnings.catch_warnings(record=True) as caught:  # more than one, of which each would be an error
        warnings.simplefilter("always")
        table = variance(measured, labels, group_size=[2, 4])
    assert any("the row is NaN: otb needs" in str(one.message) for one in caught)
    frame = table.to_frame()
    assert frame["estimator"].tolist() == labels * 2
    assert frame["group_size"].tolist() == [2] * 6 + [4] * 6
    unknown = frame["trace_cov"].isna()
    assert frame["estimator"][unknown].tolist() == ["gae", "remax", "otb"] * 2
    assert frame["kept_share"][unknown].isna().all()
    notes = " ".join(table.notes)
    assert "the row is NaN: gae needs values" in notes
    assert "the row is NaN: remax needs greedy_rewards, which this batch lacks (greedy_rewards: sample with" in notes
    expected = quietly(compare, measured, ["rloo", "recipe:grpo", "group_mean"], group_size=[2, 4]).to_frame()
    known = frame.loc[~unknown].drop(columns=["components", "unit"]).reset_index(drop=True)
    np.testing.assert_allclose(known["trace_cov"], expected["trace_cov"])


@pytest.mark.parametrize(("unavailable", "rows"), [("nan", ["gae", "rloo"]), ("leave_out", ["rloo"])])
def test_what_given_scores_do_not_allow_has_no_numbers_or_no_row(unavailable, rows, unchecked):
    batch, scores = correlated_batch(30, 4)
    table = quietly(compare, batch, ["gae", "rloo"], scores, unavailable=unavailable)
    frame = table.to_frame()
    assert frame["estimator"].tolist() == rows
    assert frame["ratio"].tolist()[-1] == 1.0
    assert frame["trace_cov"].isna().tolist()[:-1] == [True] * (len(rows) - 1)
    assert "gae needs values" in table.notes[0]
    for call in (lambda: compare(batch, ["gae", "rloo"], scores), lambda: variance(small_measurement(), ["gae"])):
        with pytest.raises(ValueError, match="gae needs values, which this batch lacks"):
            call()
    with pytest.raises(ValueError, match="unavailable='skip' must be one of refuse, nan, leave_out"):
        compare(batch, ["rloo"], scores, unavailable="skip")


def test_an_estimator_that_fails_for_its_parameters_leaves_the_other_rows(monkeypatch):
    contradictory = "recipe:rloo(mask=reject_completions(high=2, over=max))"
    monkeypatch.setattr(ImportanceWeighted, "weights", lambda self, batch: -"a")
    failing = ImportanceWeighted(name="mine", label="mine", needs=())
    table = quietly(variance, small_measurement(), ["rloo", contradictory, failing, "group_mean"])
    assert table.to_frame()["trace_cov"].isna().tolist() == [False, True, True, False]
    notes = " ".join(table.notes)
    assert "reject_completions(high=2, over=max)) cannot be computed: mask reject_completions: over='max' is" in notes
    assert "mine cannot be computed: bad operand type" in notes
