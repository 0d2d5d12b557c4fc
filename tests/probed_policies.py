"""Measurements of enumerated policies: exact token scores reduced to sketches, heavy tokens and random probes."""

import numpy as np
import pandas as pd

from gradstats.measurement.measurement import Measurement
from gradstats.reference import EnumeratedPolicy
from gradstats.rollouts.table import Rollouts


def count_sketch(vectors, dim, rng):
    """Each coordinate goes to one random bucket with a random sign."""
    buckets, signs = rng.integers(0, dim, vectors.shape[-1]), rng.choice([-1.0, 1.0], vectors.shape[-1])
    projection = np.zeros((vectors.shape[-1], dim))
    projection[np.arange(vectors.shape[-1]), buckets] = signs
    return vectors @ projection


def probed(batch, token_scores, n_probes, n_heavy, rng, sketch_dim=None):
    """A measurement of the tokens of a batch, whose groups are its prompts.

    Without ``sketch_dim`` sketches hold the scores themselves.
    """
    lengths, mask = batch.lengths, batch.mask
    n, width, dim = token_scores.shape
    spans = [int(np.flatnonzero(row)[-1]) + 1 for row in mask]
    token_scores = np.where(mask[:, :, None], token_scores, 0.0)
    projections = token_scores @ rng.normal(size=(dim, n_probes))
    proxy = np.where(mask, 1 - 2 * np.exp(batch.logprobs) + batch.sum_pi_squared, -np.inf)
    heavy = [np.sort(np.argsort(-proxy[i])[: min(n_heavy, lengths[i])]) for i in range(n)]
    sketched = token_scores if sketch_dim is None else count_sketch(token_scores, sketch_dim, rng)
    exact = (token_scores**2).sum(axis=2)

    def ragged(values):
        return [values[i, : spans[i]] for i in range(n)]

    rollouts = Rollouts.from_sequences(
        prompt_tokens=[[1]] * n,
        completion_tokens=[[1] * span for span in spans],
        rewards=batch.rewards,
        prompt_ids=[f"p{group:04d}" for group in batch.groups],
        completion_mask=ragged(mask),
    )
    return Measurement(
        rollouts,
        pd.DataFrame({"all": (token_scores.sum(axis=1) ** 2).sum(axis=1)}),
        sketched.sum(axis=1),
        logprobs=ragged(batch.logprobs),
        entropy=ragged(np.zeros((n, width))),
        sum_pi_squared=ragged(batch.sum_pi_squared),
        hidden_sq_norms=ragged(np.ones((n, width))),
        token_projections=ragged(projections),
        heavy_positions=heavy,
        heavy_sq_norms=[exact[i, positions] for i, positions in enumerate(heavy)],
        heavy_sketches=[sketched[i, positions] for i, positions in enumerate(heavy)],
    )


def enumerated(**settings):
    """A policy whose scores have many directions, few of which have large energy."""
    rng = np.random.default_rng(5)
    nodes: dict = {}

    def features(prompt, prefix):
        if (prompt, prefix) not in nodes:
            scale = np.exp(0.5 * rng.normal()) / np.sqrt(1.0 + np.arange(12.0))
            nodes[prompt, prefix] = rng.normal(size=(3, 12)) * scale
        return nodes[prompt, prefix]

    return EnumeratedPolicy(
        **{
            "vocabulary": 3,
            "max_length": 4,
            "n_prompts": 8,
            "features": features,
            "theta": rng.normal(size=12),
            "rng": 7,
            **settings,
        }
    )


MANY_DIRECTIONS = enumerated()


def drawn_tokens(n_probes=8, n_heavy=4, n_groups=40, seed=0, scale=1.0):
    """Groups of three completions: the measurement, the batch, and the exact token scores."""
    batch, _, scores = MANY_DIRECTIONS.sample(n_groups, 3, seed)
    return probed(batch, scale * scores, n_probes, n_heavy, np.random.default_rng(seed)), batch, scores
