"""Two enumerated policies that draw the same trajectories with different probabilities: a sampler and a scorer."""

from itertools import product

import numpy as np

from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting
from gradstats.reference import EnumeratedPolicy

_FEATURES = np.random.default_rng(5).normal(size=(40, 3, 4))


def _features(prompt: int, prefix: tuple[int, ...]) -> np.ndarray:
    return _FEATURES[sum((token + 1) * 3**place for place, token in enumerate(prefix))]


def _reward(prompt: int, tokens: tuple[int, ...]) -> float:
    return float(sum(tokens) % 2)


def policy_pair() -> tuple[EnumeratedPolicy, EnumeratedPolicy]:
    """The scored policy and the one that samples; token ratios between about 0.2 and 3."""
    scored, sampler = (
        EnumeratedPolicy(3, 3, features=_features, reward=_reward, theta=np.array(theta))
        for theta in ([0.5, -0.4, 0.3, 0.6], [0.1, 0.3, 0.0, 0.3])
    )
    return scored, sampler


def off_policy_batch(
    scored: EnumeratedPolicy, sampler: EnumeratedPolicy, rows: np.ndarray, groups: np.ndarray
) -> Batch:
    """Trajectories with the log-probabilities of both policies."""
    return scored.batch(rows, groups).with_fields(old_logprobs=sampler.logprobs[rows])


def expected_off_policy(
    scored: EnumeratedPolicy, sampler: EnumeratedPolicy, estimator: Weighting, group_size: int
) -> np.ndarray:
    """E[ĝ] over all ordered groups of the sampler's trajectories."""
    listed = np.array(list(product(range(len(scored.rewards)), repeat=group_size)))
    batch = off_policy_batch(scored, sampler, listed.reshape(-1), np.repeat(np.arange(len(listed)), group_size))
    weights = estimator.weights(batch)
    weights = np.where(batch.mask, weights[:, None], 0.0) if weights.ndim == 1 else weights
    each = np.einsum("nt,ntd->nd", weights, scored.token_scores[listed.reshape(-1)])
    chance = sampler.probabilities[listed].prod(axis=1)
    return chance @ each.reshape(len(listed), group_size, -1).sum(axis=1)
