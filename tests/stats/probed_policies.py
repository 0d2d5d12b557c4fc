"""Measurements of enumerated policies: exact token scores seen through sketches, heavy tokens and random probes."""

from types import SimpleNamespace

import numpy as np

from gradstats.reference import EnumeratedPolicy


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
    n, _, dim = token_scores.shape
    probes = rng.normal(size=(dim, n_probes))
    projections = token_scores @ probes
    proxy = 1 - 2 * np.exp(batch.logprobs) + batch.sum_pi_squared
    heavy = [np.sort(np.argsort(-proxy[i, : lengths[i]])[:n_heavy]) for i in range(n)]
    sketched = token_scores if sketch_dim is None else count_sketch(token_scores, sketch_dim, rng)
    sample_id = np.zeros(n, dtype=int)
    for group in np.unique(batch.groups):
        own = batch.groups == group
        sample_id[own] = np.arange(own.sum())

    def ragged(values):
        return [values[i, : lengths[i]] for i in range(n)]

    energy = (projections**2).mean(axis=2)
    exact = (token_scores**2).sum(axis=2)
    for i, positions in enumerate(heavy):
        energy[i, positions] = exact[i, positions]
    return SimpleNamespace(
        rollouts=SimpleNamespace(
            prompt_id=batch.groups.astype(str),
            sample_id=sample_id,
            rewards=batch.rewards,
            lengths=lengths,
            masks=[mask[i, : lengths[i]] for i in range(n)],
            truncated=np.zeros(n, dtype=bool),
            frame={},
            metadata={},
        ),
        lengths=lengths,
        sq_norms=(token_scores.sum(axis=1) ** 2).sum(axis=1),
        sketches=sketched.sum(axis=1),
        logprobs=ragged(batch.logprobs),
        sum_pi_squared=ragged(batch.sum_pi_squared),
        token_projections=ragged(projections),
        heavy_positions=heavy,
        heavy_sq_norms=[exact[i, positions] for i, positions in enumerate(heavy)],
        heavy_sketches=[sketched[i, positions] for i, positions in enumerate(heavy)],
        token_energy=ragged(energy),
        token_cross=ragged(np.einsum("ntk,nk->nt", projections, projections.sum(axis=1)) / n_probes),
        metadata={},
    )


def enumerated(**settings):
    """A policy of long enough trajectories, with scores of many directions of which few carry much."""
    rng = np.random.default_rng(5)
    nodes: dict = {}

    def features(prompt, prefix):
        if (prompt, prefix) not in nodes:
            nodes[prompt, prefix] = rng.normal(size=(3, 12)) * np.exp(0.5 * rng.normal()) / np.sqrt(1.0 + np.arange(12.0))
        return nodes[prompt, prefix]

    return EnumeratedPolicy(
        vocabulary=3, max_length=4, n_prompts=8, features=features, theta=rng.normal(size=12), rng=7, **settings
    )
