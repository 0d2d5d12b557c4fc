"""A measurement of whole completions, without a model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from gradstats.rollouts.table import Rollouts


def small_measurement(n_prompts: int = 12, per_prompt: int = 4) -> SimpleNamespace:
    """Random completions with sketches of their scores and the scored log-probabilities."""
    rng = np.random.default_rng(0)
    n = n_prompts * per_prompt
    lengths = rng.integers(2, 9, n)
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [list(range(length)) for length in lengths],
        (rng.random(n) < 0.5).astype(float),
        np.repeat(np.arange(n_prompts), per_prompt).astype(str),
        sample_ids=np.tile(np.arange(per_prompt), n_prompts),
    )
    vectors = rng.normal(size=(n, 5))
    return SimpleNamespace(
        rollouts=rollouts,
        lengths=lengths,
        sq_norms=(vectors**2).sum(axis=1) * 1.1,
        sketches=vectors,
        logprobs=[-rng.random(length) for length in lengths],
        old_logprobs=None,
    )
