"""Intervals of the comparison against exact enumeration of a small policy."""

import itertools
import warnings

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.stats import compare

NAMES = ["reinforce", "grpo", "token_mean", "rloo"]


class EnumeratedPolicy:
    """A softmax policy that is linear in its parameters, over few answers to each of many prompts."""

    def __init__(self, n_prompts=60, n_answers=4, dim=5, seed=0):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(n_prompts, n_answers, dim))
        logits = features @ rng.normal(size=dim) * 0.5
        self.probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        mean = np.einsum("xa,xad->xd", self.probabilities, features)
        self.scores = features - mean[:, None]
        self.rewards = (rng.random((n_prompts, n_answers)) < 0.5).astype(float)
        self.lengths = rng.integers(1, 50, (n_prompts, n_answers))

    def truth(self, size):
        """trace_cov and signal_sq of every estimator, summed over all prompts and all groups of answers."""
        n_prompts, n_answers = self.probabilities.shape
        answers = np.array(list(itertools.product(range(n_answers), repeat=size)))
        prompts = np.repeat(np.arange(n_prompts), len(answers))
        answers = np.tile(answers, (n_prompts, 1))
        rows = np.repeat(prompts, size), answers.ravel()
        batch = Batch(self.rewards[rows], self.lengths[rows], np.repeat(np.arange(len(prompts)), size))
        chance = self.probabilities[prompts[:, None], answers].prod(axis=1) / n_prompts
        result = {}
        for name in NAMES:
            gradients = est.get(name).weights(batch)[:, None] * self.scores[rows]
            gradients = gradients.reshape(len(prompts), size, -1).sum(axis=1)
            signal = np.sum((chance @ gradients) ** 2)
            result[name] = (chance @ (gradients**2).sum(axis=1) - signal, signal)
        return result

    def sample(self, n_prompts, size, rng):
        """A batch of prompts drawn at random, with their answers' scores."""
        prompts = rng.integers(0, len(self.probabilities), n_prompts)
        draws = rng.random((n_prompts, size, 1))
        answers = (draws > np.cumsum(self.probabilities, axis=1)[prompts][:, None, :]).sum(axis=2)
        rows = np.repeat(prompts, size), np.minimum(answers, self.probabilities.shape[1] - 1).ravel()
        batch = Batch(self.rewards[rows], self.lengths[rows], np.repeat(np.arange(n_prompts), size))
        return batch, self.scores[rows]


def coverage(n_prompts, size, group_size, n_repeats):
    policy = EnumeratedPolicy()
    truth = policy.truth(group_size)
    hits = {quantity: np.zeros(len(NAMES)) for quantity in ("trace_cov", "signal_sq", "ratio")}
    for seed in range(n_repeats):
        batch, scores = policy.sample(n_prompts, size, np.random.default_rng(seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            frame = compare(batch, NAMES, scores, group_size=group_size).to_frame()
        for position, name in enumerate(NAMES):
            trace, signal = truth[name]
            exact = {"trace_cov": trace, "signal_sq": signal, "ratio": trace / truth["rloo"][0]}
            for quantity, value in exact.items():
                low, high = frame[f"{quantity}_low"].iloc[position], frame[f"{quantity}_high"].iloc[position]
                hits[quantity][position] += low - 1e-9 <= value <= high + 1e-9
    return {quantity: counts / n_repeats for quantity, counts in hits.items()}


def test_estimates_converge_to_the_enumerated_truth():
    policy = EnumeratedPolicy()
    truth = policy.truth(3)
    batch, scores = policy.sample(6000, 6, np.random.default_rng(0))
    frame = compare(batch, NAMES, scores, group_size=3).to_frame(0.999)
    for position, name in enumerate(NAMES):
        for quantity, exact in zip(("trace_cov", "signal_sq"), truth[name], strict=True):
            low, high = frame[f"{quantity}_low"].iloc[position], frame[f"{quantity}_high"].iloc[position]
            assert low < exact < high
            assert high - low < (0.25 if quantity == "trace_cov" else 1.5) * exact


@pytest.mark.slow
@pytest.mark.parametrize(("n_prompts", "size", "group_size"), [(30, 2, 2), (100, 3, 3), (100, 8, 4), (400, 4, 4)])
def test_intervals_cover(n_prompts, size, group_size):
    """95 % intervals hold the truth in about 92 to 98 of 100 data sets (2000 replications).

    Where the signal is all but nil (30 prompts in groups of 2) its interval errs on the wide side. For 0/1
    rewards in groups of 2 or 3, grpo is a multiple of rloo and their ratio has no error.
    """
    found = coverage(n_prompts, size, group_size, 2000)
    ratio = found["ratio"][:3] if group_size > 3 else found["ratio"][[0, 2]]
    assert (found["trace_cov"] >= 0.92).all(), found
    assert (found["trace_cov"] <= 0.98).all(), found
    assert (ratio >= 0.92 - 0.006).all(), found
    assert (ratio <= 0.98).all(), found
    assert (found["signal_sq"] >= 0.91).all(), found
