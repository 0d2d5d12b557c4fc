"""Silent groups against the enumeration of subsets, moments of rates of success, and the interval's coverage."""

import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from gradstats.analyses import silent_groups
from gradstats.rollouts import Log
from gradstats.stats.silent_groups import (
    Resampled,
    beta_concentration,
    beta_silent,
    beta_size,
    equal_rewards,
    least_size,
)


def log_of(groups, lengths=None, prompts=None):
    """A log of groups of rewards."""
    number = np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    columns = {"step": 0, "prompt": number if prompts is None else np.asarray(prompts)[number], "group": number}
    frame = pd.DataFrame(columns | {"reward": np.concatenate(groups).astype(float)})
    return Log(frame if lengths is None else frame.assign(length=np.concatenate(lengths).astype(float)), "made up")


def enumerated(groups, lengths, number):
    """Shares of silent subsets, of all right and all wrong ones, and of their tokens, subset by subset."""
    silent = right = wrong = tokens = of = n = 0.0
    greatest, least = max(map(max, groups)), min(map(min, groups))
    for rewards, long in zip(groups, lengths, strict=True):
        subsets = list(combinations(range(len(rewards)), number))
        for some in subsets:
            values = {rewards[at] for at in some}
            weight, mean = 1.0 / len(subsets), np.mean([long[at] for at in some])
            n, of = n + weight, of + weight * mean
            if len(values) == 1:
                silent, tokens = silent + weight, tokens + weight * mean
                right, wrong = right + weight * (values == {greatest}), wrong + weight * (values == {least})
    return silent / n, right / n, wrong / n, tokens / of


@pytest.mark.parametrize("values", [(0, 1), (-1, 0.5, 2), (0, 0.3, 0.6, 1)])
def test_every_smaller_size_is_that_of_all_subsets(values):
    rng = np.random.default_rng(len(values))
    groups = [rng.choice(values, 6, p=rng.dirichlet(np.full(len(values), 0.4))) for _ in range(12)]
    groups[0], groups[1] = np.full(6, max(values)), np.full(6, min(values))
    lengths = [rng.integers(1, 50, 6) for _ in groups]
    found = silent_groups(log_of(groups, lengths)).to_frame().query("source != 'beta'")
    assert found["group_size"].tolist() == [2, 3, 4, 5, 6]
    expected = [enumerated(groups, lengths, number) for number in found["group_size"]]
    np.testing.assert_allclose(found[["silent", "all_right", "all_wrong", "silent_tokens"]], expected, atol=1e-12)


def test_smaller_groups_count_as_far_as_they_reach_and_rounding_is_no_difference():
    groups = [np.array([1, 1, 1, 1]), np.array([0, 1, 0, 1]), np.array([0.1 + 0.2, 0.3, 0.3, 0.3]), np.array([0, 0])]
    found = silent_groups(log_of(groups))
    frame = found.to_frame().set_index("group_size")
    assert frame.loc[4, "silent"] == pytest.approx(2 / 3)
    assert frame.loc[2, "silent"] == pytest.approx((1 + 2 / 6 + 1 + 1) / 4)
    assert frame["n_groups"].tolist() == [4, 3, 3]
    assert any("in 33.33% of the groups rewards differ by rounding alone" in note for note in found.notes)
    assert equal_rewards(np.array([0.3, 0.1 + 0.2]), np.zeros(2, int), np.ones(2)).rounded.tolist() == [True]


def test_groups_of_one_prompt_are_one_observation():
    groups = [np.array([0, 1]), np.array([1, 1])] * 10
    apart = silent_groups(log_of(groups)).drawn.silent
    together = silent_groups(log_of(groups, prompts=np.repeat(np.arange(5), 4))).drawn.silent
    assert together.value == apart.value
    assert np.isnan(together.stderr)  # every prompt has the same share
    assert apart.stderr > 0


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (2.0, 5.0)])
def test_beta_silent_is_the_moments_and_is_inverted(a, b):
    mean, total = np.array([a / (a + b)]), np.array([a + b])
    for size in (2, 8, 40):
        moments = [np.prod([(one + k) / (a + b + k) for k in range(size)]) for one in (a, b)]  # E p^N, E (1 − p)^N
        assert beta_silent(mean, total, size)[0] == pytest.approx(sum(moments))
    assert beta_concentration(mean, beta_silent(mean, total, 8), 8)[0] == pytest.approx(a + b, rel=1e-6)
    needed = beta_size(mean, total, 0.1)[0]
    assert beta_silent(mean, total, needed)[0] < 0.1 <= beta_silent(mean, total, needed - 1)[0]
    assert beta_size(mean, np.array([1e-7]), 0.1)[0] == np.inf  # of prompts that are always or never solved


def test_no_distribution_needs_fewer_completions_than_the_bound():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rates, weights = rng.beta(0.5, 0.5, 4), rng.dirichlet(np.ones(4))
        share = {n: float(weights @ (rates**n + (1 - rates) ** n)) for n in range(2, 200)}
        bound = least_size(np.array([share[6]]), np.array([share[5]]), 6, 0.9 * share[6])[0]
        assert all(share[n] >= 0.9 * share[6] for n in range(6, int(min(bound, 200))))


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([[0, 1], [1, 1]] * 4, r"^50% \[\d+, \d+\] of the groups of 2 are silent \(50% all right, 0% all wrong\)"),
        ([[0, 0, 0, 1]] * 30, r"^0% of the groups of 4 are silent\. Fewer than 10% take 4 \[4, 4\] .* as counted"),
        ([[1, 1, 1]] * 5, r"^100% of the groups of 3 are silent \(100% all at the greatest"),
        ([[0, 0.5, 1]] * 5 + [[1, 1, 1]] * 5, r"No number of completions is known to leave fewer than 10%"),
        ([[0, 0.5, 0.5, 0.5], [0, 0, 0, 0.5]] * 15 + [[1] * 4] * 9, r"Fewer than 10% would take \d+ completions a"),
    ],
)
def test_the_sentence_says_what_the_log_allows(groups, sentence):
    found = silent_groups(log_of([np.array(one) for one in groups]))
    assert re.search(sentence, found.sentence()), found.sentence()


def test_a_beta_distribution_that_misses_smaller_groups_is_said_to():
    rng = np.random.default_rng(0)
    rates = np.where(rng.random(600) < 0.4, 0.0, 0.5)[:, None]  # two kinds of prompts
    found = silent_groups(log_of(rng.random((600, 8)) < rates))
    assert found.misses
    assert "a rough beta distribution of success rates" in found.sentence()
    assert any(re.search(r"^at 4 completions .* is rough$", note) for note in found.notes)
    smooth = silent_groups(log_of(rng.random((600, 8)) < rng.beta(0.5, 0.5, (600, 1))))
    assert not smooth.misses


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="most_silent=1.5 must lie between 0 and 1"):
        silent_groups(log_of([np.array([0, 1])]), most_silent=1.5)
    with pytest.raises(ValueError, match="most groups of the log have a single completion: give group_size"):
        silent_groups(log_of([np.array([0]), np.array([1])]))


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b", "n_prompts", "size"), [(0.5, 0.6, 100, 8), (1.0, 3.0, 60, 8), (2.0, 2.0, 100, 4)])
def test_the_interval_of_the_completions_needed_covers(a, b, n_prompts, size):
    rng = np.random.default_rng(0)
    truth = beta_size(np.array([a / (a + b)]), np.array([a + b]), 0.1)[0]
    inside = []
    for _ in range(200):
        rates = rng.beta(a, b, (n_prompts, 1))
        needed = silent_groups(log_of(rng.random((n_prompts, size)) < rates)).needed.completions
        assert isinstance(needed, Resampled)
        _, low, high = needed.with_interval(0.95)
        inside.append(low <= truth <= high)
    # Whole numbers of few completions are wide steps, so that the interval covers more often there.
    assert 0.9 <= np.mean(inside) <= (0.99 if truth > 20 else 1.0)
