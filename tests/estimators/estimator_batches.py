"""Random batches for hypothesis: ragged, uneven, interleaved; singletons, masked tokens, ties, equal rewards."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gradstats.estimators import Batch


@st.composite
def batches(draw: st.DrawFn, smallest: int = 1, holes: bool = True) -> Batch:
    n = draw(st.integers(smallest, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = np.array(["p", "q", "r", "s"])[: draw(st.integers(1, 4))]
    groups = rng.choice(labels, size=n)
    spans = rng.integers(1, 7, size=n)
    if draw(st.booleans()):
        spans[:] = spans.max()  # ties for the longest
    width = int(spans.max()) + draw(st.integers(0, 2))
    mask = np.arange(width) < spans[:, None]
    if holes and draw(st.booleans()):
        mask &= rng.random(mask.shape) < 0.6
        mask[np.arange(n), spans - 1] = True
    kind = draw(st.sampled_from(["binary", "equal", "graded"]))
    rewards = {
        "binary": rng.integers(0, 2, size=n).astype(float),
        "equal": np.full(n, 0.25 * rng.integers(0, 5)),
        "graded": 0.25 * rng.integers(0, 9, size=n),
    }[kind]
    dense = draw(st.booleans())
    shape = mask.shape
    return Batch(
        rewards=rewards,
        lengths=mask.sum(axis=1),
        groups=groups,
        mask=mask,
        token_rewards=rng.normal(size=shape) if dense else None,
        logprobs=np.log(rng.uniform(0.05, 0.95, size=shape)),
        old_logprobs=np.log(rng.uniform(0.05, 0.95, size=shape)),
        ref_logprobs=np.log(rng.uniform(0.05, 0.95, size=shape)),
        sum_pi_squared=rng.uniform(0.9, 1.0, size=shape),
        values=rng.normal(size=shape),
        greedy_rewards=rng.integers(0, 2, size=n).astype(float),
        sq_norms=rng.exponential(size=n) + 1e-3,
        token_energy=rng.exponential(size=shape) + 1e-3,
        token_cross=rng.normal(size=shape),
        importance=rng.uniform(0.5, 2.0, size=shape) if draw(st.booleans()) else None,
    )
