"""Batches with scores for comparisons of estimators, and calls that ignore or collect warnings."""

import warnings

import numpy as np

from gradstats.analyses.variance import compare
from gradstats.estimators import Batch


def interleaved_batch(sizes, dim=6, seed=0, signal=0.0):
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


def correlated_batch(n_prompts=200, size=16, seed=0, dim=8):
    """Prompts of different difficulty, longer answers less often right, and scores that share a direction by prompt."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_prompts), size)
    n = len(groups)
    lengths = np.ceil(np.exp(rng.normal(3.5, 0.7, n))).astype(int)
    difficulty = rng.random(n_prompts)[groups]
    rewards = (rng.random(n) < np.clip(difficulty - 0.1 * (np.log(lengths) - 3.5), 0, 1)).astype(float)
    scores = rng.normal(size=(n, dim)) * np.sqrt(lengths)[:, None] + 0.5 * rng.normal(size=(n_prompts, dim))[groups]
    return Batch(rewards, lengths, groups), scores


def sized_batch(n_prompts=20, size=8, dim=6, seed=0):
    """A batch of prompts with the same number of completions, with scores whose mean is not zero."""
    rng = np.random.default_rng(seed)
    n = n_prompts * size
    scores = rng.normal(size=(n, dim)) + 0.3
    batch = Batch(
        (rng.random(n) < 0.5).astype(float),
        rng.integers(3, 60, n),
        np.repeat(np.arange(n_prompts), size),
        sq_norms=1.1 * (scores**2).sum(axis=1),
    )
    return batch, scores


def quietly(function, *arguments, **keywords):
    """The result of a function whose warnings are not of interest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*arguments, **keywords)


def quiet_compare(*arguments, **keywords):
    """`compare` without its warnings."""
    return quietly(compare, *arguments, **keywords)


def warned_compare(*arguments, **keywords):
    """The table, and every warning as one text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        frame = compare(*arguments, **keywords).to_frame()
    return frame, "\n".join(str(warning.message) for warning in caught)


def assert_nested(frame, *names):
    """Check that simultaneous intervals hold the single ones; both may have infinite ends."""
    for name in names:
        columns = [f"{name}_simultaneous_low", f"{name}_low", f"{name}_high", f"{name}_simultaneous_high"]
        ends = frame[columns].to_numpy(dtype=float)
        assert (ends[:, :-1] <= ends[:, 1:] + 1e-12).all(), name
