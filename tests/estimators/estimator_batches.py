"""Random batches for hypothesis: ragged, interleaved, singletons, holes, ties, equal rewards; exact expectations."""

import itertools
from collections.abc import Callable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from gradstats.estimators import Batch

FEW = settings(max_examples=40, deadline=None)
#: Parameters without defaults.
GIVEN = {
    "fspo": {"width": 0.5},
    "gdpo": {"columns": "accuracy=1, format=0.5"},
    "kimi_k15": {"tau": 1.0},
    "kimi": {"tau": 1.0},
    "length_weighted": {"alpha": 0.8},
}


@st.composite
def batches(draw: st.DrawFn, smallest: int = 1) -> Batch:
    n = draw(st.integers(smallest, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = np.array(["p", "q", "r", "s"])[: draw(st.integers(1, 4))]
    groups = rng.choice(labels, size=n)
    spans = rng.integers(1, 7, size=n)
    if draw(st.booleans()):
        spans[:] = spans.max()  # ties for the longest
    width = int(spans.max()) + draw(st.integers(0, 2))
    mask = np.arange(width) < spans[:, None]
    if draw(st.booleans()):
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
        entropy=rng.exponential(size=shape),
        truncated=rng.integers(0, 2, size=n),
        sum_pi_squared=rng.uniform(0.9, 1.0, size=shape),
        values=rng.normal(size=shape),
        greedy_rewards=rng.integers(0, 2, size=n).astype(float),
        sq_norms=rng.exponential(size=n) + 1e-3,
        token_energy=rng.exponential(size=shape) + 1e-3,
        token_cross=rng.normal(size=shape),
        importance=rng.uniform(0.5, 2.0, size=shape) if draw(st.booleans()) else None,
        columns=columns_of(groups, shape[1]),
    )


def columns_of(groups: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """Two further rewards of each completion, the earlier rewards of its prompt (none, one, two …), and residuals."""
    rng = np.random.default_rng(len(groups))
    _, index = np.unique(groups, return_inverse=True)
    history = np.empty(len(groups), dtype=object)
    history[:] = [np.arange(place, dtype=float) % 2 for place in index]
    accuracy, form = rng.integers(0, 2, size=(2, len(groups))).astype(float)
    residual = rng.exponential(size=(len(groups), width)) * rng.integers(0, 2, (len(groups), 1))  # 0 throughout, some
    return {"history": history, "accuracy": accuracy, "format": form, "adapter_residual": residual}


def expected_gradient(weights: Callable[[Batch], np.ndarray], p: float, group_size: int) -> float:
    """E[ĝ] for one prompt, a policy that succeeds with probability p, and the reward 1 for a success: ∇J = ∂p/∂p = 1.

    Enumerates the outcomes of a group; the score is ∂ log Pr/∂p.
    """
    total = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=group_size):
        rewards = np.array(outcome)
        batch = Batch(rewards, np.ones(group_size, dtype=int), np.zeros(group_size, dtype=int))
        probability = np.prod(np.where(rewards == 1, p, 1 - p))
        scores = np.where(rewards == 1, 1 / p, -1 / (1 - p))
        total += probability * float(weights(batch) @ scores)
    return total
