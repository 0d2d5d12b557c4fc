"""The noise over prompts and completions per prompt, at an equal number of tokens."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from comparison_batches import correlated_batch, quiet_compare, quietly
from probed_policies import MANY_DIRECTIONS, probed

from gradstats import analyses
from gradstats import estimators as est
from gradstats.analyses import allocate, registry
from gradstats.analyses.allotment import RULES, Half, by_hits, proportional
from gradstats.analyses.group_sizes import variance_by_group_size
from gradstats.analyses.numbers import format_estimate, percentage
from gradstats.analyses.optimal_baselines import optimal_baselines
from gradstats.plots.marks import with_ends
from gradstats.reference import EnumeratedPolicy
from gradstats.report.analysis_tables import table_of

TOKENS = 2000.0


def exact_noise(policy, label, size, mean_length):
    """The variance of the mean of TOKENS/(N·L̄) groups at the scale of ∇J, by enumeration."""
    return policy.moments(est.get(label), size).matched_trace_cov * size * mean_length / TOKENS


def test_noise_is_the_exact_one_at_measured_and_extrapolated_sizes():
    policy = EnumeratedPolicy(2, 3, n_prompts=3, rng=4)
    batch, scores, _ = policy.sample(3000, 8, rng=0)
    labels = ["rloo", "group_mean", "recipe:grpo(scale=none)", "grpo"]
    found = allocate(batch, labels, scores, tokens=TOKENS, group_sizes=[2, 4, 8, 16])
    frame = found.to_frame(0.999)
    # Of what is not a multiple of RLOO only the measured sizes are known.
    assert frame["estimator"].tolist() == ["rloo"] * 4 + ["group_mean"] * 4 + [labels[2]] * 3 + ["grpo"] * 3
    assert frame["group_size"].tolist() == [2, 4, 8, 16] * 2 + [2, 4, 8] * 2
    assert frame["extrapolated"].tolist() == [False, False, False, True] * 2 + [False] * 6
    reference = exact_noise(policy, "rloo", 8, found.mean_length)
    for row in frame.to_dict("records"):
        size = int(row["group_size"])
        assert row["n_prompts"] == pytest.approx(TOKENS / (size * found.mean_length))
        noise = exact_noise(policy, row["estimator"], size, found.mean_length)
        assert row["relative_noise_low"] - 1e-9 <= noise / reference <= row["relative_noise_high"] + 1e-9
        assert row["tokens_saved"] == pytest.approx(1 - row["relative_noise"])
        assert row["tokens_saved_low"] == pytest.approx(1 - row["relative_noise_high"])
        moments = policy.moments(est.get(row["estimator"]), size)
        for name in ("within_prompt", "between_prompt"):
            if np.isfinite(row[name]):
                exact = getattr(moments, name) / moments.coefficient**2
                assert row[f"{name}_low"] < exact < row[f"{name}_high"], (row["estimator"], size, name)
    assert frame["within_prompt"].isna().sum() == 2  # a single group of 8, of what is not a multiple of RLOO
    # An own-sample mean is RLOO at another scale.
    shared = ["relative_noise", "within_prompt", "between_prompt"]
    np.testing.assert_allclose(frame[shared][:4], frame[shared][4:8])


@pytest.mark.parametrize("label", ["token_mean(loo=True)", "grpo"])
def test_one_quantity_has_one_interval_whatever_question_shows_it(label):
    batch, scores = correlated_batch(n_prompts=80, size=8)
    scores = scores + 5.0 * (batch.rewards - 0.5)[:, None]
    wide = np.random.default_rng(0).normal(size=(len(scores), 200))
    about = {"scores": np.concatenate([scores, wide], axis=1), "scores_are_sketches": True}
    expected = quiet_compare(batch, [label], **about).to_frame()[with_ends("matched_ratio")].to_numpy()
    along = analyses.variance_curve(batch, label, "group_size", [2, 8], **about).to_frame()
    sizes = along.query("group_size == 8")[with_ends("matched_ratio")]
    allocated = allocate(batch, [label], **about).to_frame().query("group_size == 8")[with_ends("relative_noise")]
    steps = analyses.batch_size(batch, [label], **about).to_frame()[with_ends("relative_prompts")]
    for name, found in (("curve", sizes), ("allocation", allocated), ("batch_size", steps)):
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-9, err_msg=name)


def test_where_few_completions_carry_the_noise_every_answer_leaves_an_end_open():
    batch, scores = correlated_batch(60, 8)
    scores = scores * np.exp(1.4 * np.random.default_rng(1).normal(size=(len(scores), 1)))
    batch, labels = batch.with_fields(sq_norms=(scores**2).sum(axis=1)), ["grpo", "reinforce"]
    allocated = quietly(allocate, batch, ["rloo"], scores, group_sizes=[2, 4, 16]).to_frame()
    compared = quiet_compare(batch, labels, scores, group_size=4).to_frame()
    by_size = quietly(variance_by_group_size, batch, labels, scores=scores).equivalents_frame()
    for frame, name, least, most in (
        (allocated, "relative_noise", 0.0, np.inf),
        (compared, "ratio", 0.0, np.inf),
        (by_size, "tokens_saved", -np.inf, 1.0),
    ):
        low, high = frame[[f"{name}_low", f"{name}_high"]].to_numpy(dtype=float).T
        assert not ((least < low) & (low < high) & (high < most)).any(), name
    assert np.isinf(allocated.loc[allocated["within_prompt"].notna(), "within_prompt_high"]).all()
    sentence = quietly(optimal_baselines, batch, scores).sentence()
    assert sentence.startswith("Too few prompts carry the variance to learn from")


@pytest.mark.slow
def test_token_level_estimators_from_probes():
    batch, _, tokens = MANY_DIRECTIONS.sample(800, 4, rng=0)
    measured = probed(batch, tokens, 16, 2, np.random.default_rng(0))
    found = allocate(measured, ["rloo", "otb(loo=True)"], tokens=TOKENS, group_sizes=[2, 4, 32])
    frame = found.to_frame(0.999)
    assert frame["group_size"].tolist() == [2, 4, 32, 2, 4]
    reference = exact_noise(MANY_DIRECTIONS, "rloo", 4, found.mean_length)
    for row in frame.query("group_size < 32").to_dict("records"):
        noise = exact_noise(MANY_DIRECTIONS, row["estimator"], int(row["group_size"]), found.mean_length)
        assert row["relative_noise_low"] - 1e-9 <= noise / reference <= row["relative_noise_high"] + 1e-9


def test_without_any_row_the_frame_has_its_columns_and_the_sentence_says_so():
    batch, scores = correlated_batch()
    found = quietly(allocate, batch, ["recipe:grpo"], scores, tokens=TOKENS, group_sizes=[4])
    assert found.rows == ()
    known = quietly(allocate, batch, ["rloo"], scores, tokens=TOKENS, group_sizes=[4]).to_frame()
    assert found.to_frame().columns.tolist() == known.columns.tolist()
    assert found.sentence() == "No noise could be estimated; the notes say why."
    assert "has no row: its scale relative to the target is not resolved" in " ".join(found.notes)
    assert table_of(registry.get("allocation"), found.to_frame()).rows == ()


def test_the_best_size_of_rloo_is_the_one_of_least_exact_noise():
    policy = EnumeratedPolicy(2, 3, n_prompts=6, rng=4)
    by_size = {n: policy.moments(est.get("rloo"), n) for n in (2, 3)}
    noise = {n: n * moments.within_prompt for n, moments in by_size.items()}
    exact = 1.0 + np.sqrt(2.0 * (noise[2] - noise[3]) / by_size[2].between_prompt)
    inside = 0
    for seed in range(12):
        batch, scores, _ = policy.sample(200, 8, rng=seed)
        found = allocate(batch, ["rloo"], scores)
        value, low, high = found.best_size.with_interval(0.95)
        inside += low <= exact <= high
        assert 2.0 <= low <= value <= high
        size = f"{format_estimate(value, low, high)} completions per prompt (95% interval)"
        assert f"the best size of rloo, whatever the tokens, is {size}" in found.notes
    assert inside >= 10
    # Three completions do not tell v_1 from v_2.
    batch, scores, _ = policy.sample(60, 3, rng=0)
    assert allocate(batch, ["rloo"], scores, group_sizes=[2, 3]).best_size is None


def test_sizes_of_which_the_tokens_pay_for_no_group_have_no_row():
    batch, scores = correlated_batch(n_prompts=60, size=8)
    found = allocate(batch, ["rloo"], scores, tokens=5.0 * batch.lengths.mean())
    assert (found.to_frame()["group_size"].tolist(), found.reference_size) == ([2, 4], 8)


def test_what_cannot_be_allocated_is_refused():
    batch, scores = correlated_batch(n_prompts=5, size=8)
    for given, label, asked, message in (
        (batch, "rloo", {"tokens": 0}, "tokens=0 must be a positive number"),
        (batch, "rloo", {"tokens": 3}, r"tokens=3 is below one group of 2, which takes \d+ completion tokens here"),
        (batch, "rloo", {"group_sizes": [1, 2]}, r"group_sizes=\[1, 2\] must be at least 2"),
        (batch.with_fields(groups=np.arange(40)), "rloo", {}, "a prompt has a single completion, and groups need two"),
        (batch, "batch_mean", {}, "batch_mean is a batch-level estimator"),
        (batch.with_fields(rewards=np.ones(40)), "rloo", {}, "rloo gives no completion any weight in groups of 8"),
        (batch.select(np.arange(16)), "rloo", {}, "fewer than 3 prompts have 8 completions"),
    ):
        with pytest.raises(ValueError, match=message):
            allocate(given, [label], scores[: len(given.rewards)], **{"tokens": TOKENS} | asked)


@pytest.mark.parametrize(("n_prompts", "noted"), [(49, True), (50, False)])
def test_few_prompts_are_noted(n_prompts, noted):
    batch, scores = correlated_batch(n_prompts=n_prompts, size=4)
    notes = allocate(batch, ["rloo"], scores, tokens=1000).notes
    assert any("fewer than 50 prompts: where the variance between prompts is small" in note for note in notes) == noted


def test_the_sentence_says_what_to_draw_and_what_other_sizes_cost_where_that_is_resolved():
    def allocated(size, estimators, sizes=None):
        batch, scores = correlated_batch(n_prompts=60, size=size)
        return quietly(allocate, batch, estimators, scores, tokens=1000, group_sizes=sizes)

    best = r"The best split \(token_mean\(loo=True\), .*\) needs \d+% more tokens than rloo with 16 for the same noise"
    for size, estimators, sizes, said in (
        (4, ["rloo"], [4], r"With 1,000 tokens, no other split here has less noise than rloo with 4\.$"),
        (4, ["rloo"], [2], "No split of 1,000 tokens is shown to beat rloo with 4; the lowest noise is "),
        (4, ["group_mean", "rloo"], None, "^(?!.*group_mean)"),  # rloo names what equals it
        (4, ["rloo"], [16], r"rloo, 16 completions of .* prompts, extrapolated\)"),
        (16, ["token_mean(loo=True)"], [2], best),
    ):
        assert re.search(said, allocated(size, estimators, sizes).sentence())
    found = allocated(16, ["rloo"])
    noisier = {row.group_size: [one - 1.0 for one in row.relative_noise.with_interval(0.95)] for row in found.rows}
    (first, more), *others = [
        (size, percentage(*ends)) for size, ends in reversed(noisier.items()) if size < 16 and ends[1] > 0.0
    ]
    assert others
    listed = "".join(f", and groups of {size} are {cost} noisier" for size, cost in others)
    end = f"With the same tokens, groups of {first} are {more} noisier than groups of 16{listed}."
    assert found.sentence().endswith(end)


def pair_halves(batch, scores):
    """Of 8 completions a prompt in pairs, what each half says: successes, and the variance between its two pairs."""
    rewards, scores = batch.rewards.reshape(-1, 2, 2, 2), scores.reshape(-1, 2, 2, 2, scores.shape[1])
    gradients = ((rewards - rewards[..., ::-1])[..., None] * scores / 2.0).sum(axis=3)
    within = ((gradients[:, :, 0] - gradients[:, :, 1]) ** 2).sum(axis=-1) / 2.0
    completions = np.full(len(rewards), 4)
    return [Half(within=within[:, h], successes=rewards[:, h].sum((1, 2)), completions=completions) for h in (0, 1)]


def noise_left(rule, halves, judging):
    """The noise within prompts of 4 pairs a prompt on average over that of equal numbers, each half deciding once."""
    left = [4.0 * of / RULES[rule](half, 4.0, 2) for half, of in zip(halves, judging, strict=True)]
    return np.sum(left) / np.sum(judging)


def test_unequal_groups_are_judged_by_the_completions_that_did_not_decide_them():
    batch, scores = correlated_batch(n_prompts=60, size=8)
    found = quietly(allocate, batch, ["rloo"], scores)
    halves = pair_halves(batch, scores)
    for rule in ("Neyman", "VIP"):
        expected = noise_left(rule, halves, [half.within for half in halves[::-1]])
        assert found.by_rule[rule].with_interval(0.95)[0] == pytest.approx(expected), rule
    assert list(found.to_frame().attrs["by_rule"]) == list(RULES)
    assert re.search(r"allotted unequally, in groups of 2 .*: .* \(Neyman\), .* \(VIP\), .* \(HORA\)", found.notes[-1])
    # Without a rate of success there is one rule, and of fewer than 8 completions no two halves that have two groups.
    graded = batch.with_fields(rewards=batch.rewards + 0.5)
    assert list(quietly(allocate, graded, ["rloo"], scores).by_rule) == ["Neyman"]
    seven = np.arange(len(scores)) % 8 < 7
    assert not quietly(allocate, batch.select(np.flatnonzero(seven)), ["rloo"], scores[seven]).by_rule


def test_unequal_groups_save_what_the_exact_variances_of_prompts_say():
    policy = EnumeratedPolicy(2, 3, n_prompts=6, rng=4)
    exact = np.array([one.trace_cov for one in policy.moments_by_prompt(est.get("rloo"), 2)])
    batch, scores, _ = policy.sample(5000, 8, rng=0)
    known = exact[np.random.default_rng(0).choice(6, size=5000, p=policy.prompt_probabilities)]  # as sample() draws
    halves = pair_halves(batch, scores)
    expected = {rule: noise_left(rule, halves, [known, known]) for rule in RULES}
    drawn = (policy.sample(100, 8, rng=seed) for seed in range(24))
    found = [quietly(allocate, batch, ["rloo"], scores, group_sizes=[8]).by_rule for batch, scores, _ in drawn]
    for rule, noise in expected.items():
        ends = np.array([one[rule].with_interval(0.9) for one in found])
        assert np.sum((ends[:, 1] <= noise) & (noise <= ends[:, 2])) >= 19, rule
        mean, error = ends[:, 0].mean(), ends[:, 0].std() / np.sqrt(24.0)
        assert abs(mean - noise) < 3.0 * error, rule
    # Known variances leave Neyman's (Σσ)², whose least number of groups is one.
    spread = np.sqrt(exact)
    allotted = proportional(spread, 4.0)
    assert allotted.sum() == pytest.approx(24.0)
    assert allotted[1] == 1.0  # of the prompt that has no variance
    assert np.sum(exact / allotted) == pytest.approx(spread.sum() ** 2 / 23.0)
    others = 1.0 + 18.0 * np.random.default_rng(0).dirichlet(np.ones(6), 2000)
    tight = proportional(spread, 1.5)
    assert (tight >= 1.0).all()
    assert (np.sum(exact / (1.0 + (others - 1.0) / 6.0), axis=1) >= np.sum(exact / tight)).all()


def test_hits_are_sought_where_most_are_expected():
    half = Half(within=np.zeros(4), successes=np.array([0.0, 1.0, 3.0, 4.0]), completions=np.full(4, 4))
    p = (np.arange(20_000) + 0.5) / 20_000
    weights = [p**r * (1.0 - p) ** (4.0 - r) for r in half.successes]
    missed = [[np.sum(w * (1.0 - p) ** (2 * more)) / np.sum(w) for more in range(7)] for w in weights]
    best = min(
        (one for one in itertools.product(range(7), repeat=4) if sum(one) == 6),
        key=lambda one: sum(misses[more] for misses, more in zip(missed, one, strict=True)),
    )
    assert by_hits(half, 2.5, 2).tolist() == [1.0 + more for more in best]
