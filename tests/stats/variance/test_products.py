"""Products of large scores, against the explicit vectors of the same weighted sums."""

import pickle

import numpy as np
import pandas as pd
import pytest
from comparison_batches import quiet_compare

from gradstats.analyses import allocate, batch_size, compare, variance_by_group_size, variance_by_success
from gradstats.analyses.group_sizes import _equivalents
from gradstats.analyses.length_bins import variance_by_length
from gradstats.estimators import Batch
from gradstats.measurement import Measurement
from gradstats.rollouts.table import Rollouts
from gradstats.stats.intervals import completions_that_carry
from gradstats.stats.jackknife import Statistic, added_variance
from gradstats.stats.variance import products
from gradstats.stats.variance.moments import (
    Groups,
    cross_signal,
    cross_signal_among,
    moments_from_products,
    prompt_moments,
)
from gradstats.stats.variance.products import Forms, PooledProducts, PromptGrams, ScaleInvariantCache, ScoreProducts
from gradstats.stats.variance.sketch_error import SketchError

LABELS = ["rloo", "grpo", "dr_grpo", "length_weighted(alpha=0.8, loo=True)", "reinforce", "group_mean"]


def random_scores(sizes, dim, dtype, seed=0):
    """Completions in random order, of prompts with different success rates, whose scores differ with the reward."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    n, success = len(groups), rng.beta(0.7, 0.7, len(sizes))[groups]
    rewards, lengths = (rng.random(n) < success).astype(float), rng.integers(5, 80, n)
    scores = (rng.normal(size=(n, dim)) + 1.5 * (rewards - success)[:, None]) * np.sqrt(lengths)[:, None]
    scores = scores.astype(dtype)
    squares = (scores.astype(float) ** 2).sum(axis=1) * rng.uniform(0.9, 1.1, n)
    return Batch(rewards, lengths, groups, sq_norms=squares), scores


@pytest.fixture
def in_blocks(monkeypatch):
    """Return what makes every comparison multiply scores in blocks of a few completions."""

    def begin():
        monkeypatch.setattr(products, "FEWEST_NUMBERS", 0)
        monkeypatch.setattr(products, "FEW_BYTES", 5000)
        monkeypatch.setattr(products, "MANY_BYTES", 7000)
        monkeypatch.setattr(products, "FEWEST_ALIKE", 20)

    return begin


def asked(batch, scores):
    """Return the frame of each analysis that groups, splits or deals completions."""
    options = {"scores_are_sketches": True}
    yield quiet_compare(batch, [*LABELS, "batch_mean"], scores, n_resamples=4, **options).to_frame()
    yield quiet_compare(batch, LABELS[:2], scores, n_resamples=4, max_grad_norm=1.0, **options).to_frame()
    sizes = variance_by_group_size(batch, LABELS, [2, 3], scores, group_size=3, **options)
    yield from (sizes.to_frame(), sizes.equivalents_frame())
    yield allocate(batch, LABELS[:4], scores, tokens=1e5, group_sizes=[2, 4], **options).to_frame()
    yield variance_by_length(batch, LABELS[:3], scores, **options).to_frame()
    yield variance_by_success(batch, LABELS[:3], scores, bins=3, **options).to_frame()
    yield batch_size(batch, LABELS, scores, **options).to_frame()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("sizes", "dtype"), [([8] * 40, np.float64), ([8] * 40, np.float32), ([6, 7, 8, 9] * 12, np.float64)]
)
def test_analyses_in_blocks_are_those_of_vectors(sizes, dtype, in_blocks):
    batch, scores = random_scores(sizes, 30, dtype)
    vectors = list(asked(batch, scores))
    in_blocks()
    for before, after in zip(vectors, asked(batch, scores), strict=True):
        ends = [name for name in before.select_dtypes(float) if name.endswith(("_low", "_high"))]
        # Single-precision sketches are multiplied in single precision; a bias is a difference of larger numbers.
        single = dtype == np.float32
        values = [one.drop(columns=ends) for one in (before, after)]
        pd.testing.assert_frame_equal(*values, rtol=1e-5 if single else 1e-6, atol=1e-6 if single else 1e-9)
        tolerance = 1e-3 if single else 1e-6
        pd.testing.assert_frame_equal(before[ends], after[ends], rtol=tolerance, atol=1e-7)


def pooled(scores, groups, surplus, error):
    prompt = groups.prompt[groups.group]
    of_scores = ScoreProducts(scores, np.arange(len(scores)), prompt, PromptGrams.of(scores, prompt), error)
    share = 1.0 / groups.groups_per_prompt[prompt]
    return PooledProducts(of_scores, np.arange(len(scores)), groups.group, share, error is not None, surplus)


def sketched(two_groups, seed=2):
    scores, groups, _, surplus = two_groups
    return pooled(scores, groups, surplus, SketchError(25, 14, np.random.default_rng(seed)))


@pytest.fixture
def two_groups():
    """Return scores of prompts with one group or two, weightings with empty groups, and exact squares."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 3)
    prompt_of_group = np.repeat(np.arange(14), [2, 1] * 6 + [1, 1])
    groups = Groups(np.arange(60), group, prompt_of_group, 0)
    weights = rng.normal(size=(2, 60)) * (group % 4 > 0)
    return rng.normal(size=(60, 25)), groups, weights, rng.normal(size=60)


@pytest.mark.parametrize("sketched", [True, False])
def test_moments_are_those_of_explicit_gradients(two_groups, sketched, in_blocks):
    in_blocks()
    scores, groups, weights, surplus = two_groups
    surplus, error = (surplus, SketchError(25, 14, np.random.default_rng(2))) if sketched else (None, None)
    explicit = [prompt_moments(scores, one, groups, surplus, error) for one in weights]
    found = moments_from_products(pooled(scores, groups, surplus, error), list(weights), groups)
    inside, names = np.arange(14) % 3 > 0, ("second_moment", "signal", "within", "trace_cov")
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(explicit, found, strict=True) for name in names]
    pairs.append((cross_signal(*explicit, error), cross_signal(*found)))
    pairs.append((cross_signal_among(*explicit, inside, error), cross_signal_among(*found, inside)))
    for before, after in pairs:
        assert after.value == pytest.approx(before.value, rel=1e-12)
        np.testing.assert_allclose(after.replicates, before.replicates, rtol=1e-10, atol=1e-12)
        assert (after.sketch is None) == (before.sketch is None) == (not sketched)
        if sketched:
            assert added_variance(after.sketch) == pytest.approx(added_variance(before.sketch), rel=1e-9, abs=1e-12)
    squares = (scores**2).sum(axis=1) + (0.0 if surplus is None else surplus)
    for given, before, after in zip(weights, explicit, found, strict=True):
        np.testing.assert_allclose(after.means, before.means, atol=1e-12)
        np.testing.assert_allclose(after.first_means(5), before.means[:5], atol=1e-12)
        expected = completions_that_carry(given**2 * squares)
        assert (before.completions, after.completions) == pytest.approx((expected, expected), rel=1e-9)


def test_multiples_have_one_unit():
    weights = np.random.default_rng(0).normal(size=50)
    known = ScaleInvariantCache()
    first, factor = known.find(weights, lambda unit: unit)
    same, other_factor = known.find(-0.3 * weights, lambda unit: unit)
    assert same is first
    assert other_factor == pytest.approx(-0.3 * factor, rel=1e-15)
    assert known.find(weights + 1e-6, lambda unit: unit)[0] is not first
    assert known.find(np.zeros(50), lambda unit: unit)[1] == 1.0
    tied = np.array([1.0 - 2e-16, -1.0, 0.5])
    assert known.find(tied, lambda unit: unit)[0] is known.find(np.array([1.0, -1.0 + 2e-16, 0.5]), len)[0]


def test_errors_stay_known_without_the_scores(two_groups):
    _, groups, weights, _ = two_groups
    given, other = sketched(two_groups), sketched(two_groups, seed=3)
    first, second = (one.trace_cov for one in moments_from_products(given, list(weights), groups))
    ratio = first / second
    again = pickle.loads(pickle.dumps(ratio))
    assert isinstance(again, Statistic)
    assert len(pickle.dumps(again)) < 20_000
    given.products.forms.release()
    assert again.variance() == ratio.variance()
    assert again.sketch.covariance(again.sketch) == ratio.sketch.covariance(ratio.sketch) != 0.0
    with pytest.raises(RuntimeError, match="were released"):
        given.products.form(np.zeros((60, 16)), np.zeros(4))
    with pytest.raises(ValueError, match="different sketches"):
        moments_from_products(other, list(weights), groups)[0].trace_cov + first


def test_products_within_prompts_are_those_of_the_gram_matrix():
    rng = np.random.default_rng(0)
    scores, prompts = rng.normal(size=(9, 4)).astype(np.float32), np.array([1, 0, 1, 2, 0, 1, 0, 0, 2])
    found = PromptGrams.of(scores, prompts)
    gram = scores.astype(float) @ scores.astype(float).T
    np.testing.assert_allclose(found.squares, np.diag(gram))
    for row, prompt in enumerate(prompts):
        others = np.flatnonzero(prompts == prompt)
        np.testing.assert_allclose(found.products[row, found.place[others]], gram[row, others])
        assert not found.products[row, len(others) :].any()


def test_large_scores_that_are_not_finite_are_refused(in_blocks):
    in_blocks()
    batch, scores = random_scores([4] * 10, 8, np.float64)
    scores[7, 3] = np.nan
    with pytest.raises(ValueError, match="scores of completion 7 hold values that are not finite"):
        quiet_compare(batch, ["rloo"], scores)


def measurement_of(batch, scores):
    """A measurement with these scores as sketches."""
    tokens = [[1] * int(length) for length in batch.lengths]
    prompts = [f"p{group}" for group in batch.group_index]
    rollouts = Rollouts.from_sequences([[1]] * len(tokens), tokens, batch.rewards, prompts)
    logprobs = [np.zeros(len(row), dtype=np.float32) for row in tokens]
    return Measurement(rollouts, pd.DataFrame({"whole": batch.sq_norms}), scores, *[logprobs] * 4)


@pytest.mark.filterwarnings("ignore")
def test_questions_about_the_same_groups_share_what_is_multiplied(in_blocks, monkeypatch):
    in_blocks()
    batch, scores = random_scores([8] * 40, 30, np.float32)
    measured = measurement_of(batch, scores)
    alone = [compare(measured, LABELS).to_frame(), batch_size(measured, LABELS).to_frame()]
    made, multiplied = (counted(monkeypatch, *one) for one in ((ScoreProducts, "__init__"), (Forms, "_multiplied")))
    kept = measured.keeping_derived()
    together = [compare(kept, LABELS).to_frame(), batch_size(kept, LABELS).to_frame()]
    assert len(made) == len(multiplied) == 1
    for one, other in zip(alone, together, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


@pytest.mark.filterwarnings("ignore")
def test_several_group_sizes_are_multiplied_together(in_blocks, monkeypatch):
    in_blocks()
    batch, scores = random_scores([8] * 40, 30, np.float64)
    alone = [quiet_compare(batch, LABELS, scores, size, scores_are_sketches=True).to_frame() for size in (2, 4, 8)]
    made, evaluated = counted(monkeypatch, ScoreProducts, "__init__"), counted(monkeypatch, Forms, "_evaluate")
    together = quiet_compare(batch, LABELS, scores, [2, 4, 8], scores_are_sketches=True).to_frame()
    assert len(made) == len(evaluated) == 1
    pd.testing.assert_frame_equal(together, pd.concat(alone, ignore_index=True), rtol=1e-9)
    # Of a measurement that keeps what is derived from it, allocation reads the vectors of the first prompts at most,
    # and all for both halves that allotments are predicted from and judged on.
    kept = measurement_of(batch, scores).keeping_derived()
    variance_by_group_size(kept, LABELS, [2, 4, 8])
    read = counted(monkeypatch, ScoreProducts, "blocks")
    allocate(kept, LABELS[:4], tokens=1e5, group_sizes=[2, 4, 8])
    assert len([given for given in read if len(given) == 1]) == 2


@pytest.mark.filterwarnings("ignore")
def test_errors_of_several_estimators_are_estimated_together(in_blocks, monkeypatch):
    in_blocks()
    batch, scores = random_scores([8] * 60, 30, np.float64)
    evaluated = counted(monkeypatch, Forms, "_evaluate")
    asked = {"rng": 0, "target": "auto", "scores_are_sketches": True, "unresolved": "nan"}
    sizes, best = _equivalents(batch, LABELS[:4], 4, scores, **asked)
    assert (len(sizes), best is None) == (4, False)
    assert len(evaluated) == 1
    evaluated.clear()
    quiet_compare(batch, [*LABELS[:2], "batch_mean"], scores, n_resamples=4, scores_are_sketches=True)
    assert len(evaluated) == 1
    read = counted(monkeypatch, ScoreProducts, "blocks")
    # Sums and their products, then the errors, for the rows of each bin apart, and the first prompts of its target;
    # restricted sums once more by success.
    for question, most in ((variance_by_length, 11), (variance_by_success, 9)):
        evaluated.clear()
        read.clear()
        question(batch, LABELS[:3], scores, scores_are_sketches=True)
        assert len(evaluated) == 1, question
        assert len(read) <= most, question


@pytest.mark.filterwarnings("ignore")
def test_errors_do_not_wait_beyond_a_bound(in_blocks, monkeypatch):
    in_blocks()
    batch, scores = random_scores([8] * 60, 30, np.float64)
    together = compare(batch, LABELS, scores, scores_are_sketches=True).to_frame()
    evaluated = counted(monkeypatch, Forms, "_evaluate")
    monkeypatch.setattr(products, "MOST_PENDING_BYTES", 0)
    pd.testing.assert_frame_equal(compare(batch, LABELS, scores, scores_are_sketches=True).to_frame(), together)
    assert len(evaluated) > 5


def counted(monkeypatch, owner, name):
    """Return a list that grows with each call of a method."""
    calls, method = [], getattr(owner, name)

    def calling(self, *given, **options):
        calls.append(given)
        return method(self, *given, **options)

    monkeypatch.setattr(owner, name, calling)
    return calls
