r"""Terms that are added to the rewards before anything else is computed from them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.recipes.components import component


@component("reward", "none")
def none(batch: Batch) -> Float[np.ndarray, "n"]:
    """Add nothing."""
    return np.zeros(batch.rewards.size)


@component("reward", "soft_overlong")
def soft_overlong(batch: Batch, max: float, cache: float) -> Float[np.ndarray, "n"]:  # DAPO's names
    r"""Return DAPO's soft overlong punishment, 2503.14476, equation 13, a term of the reward by length.

    .. math:: 0 \text{ for } T ≤ L_{max} − L_{cache}, \quad (L_{max} − L_{cache} − T)/L_{cache} \text{ up to } L_{max},
        \quad −1 \text{ beyond.}

    It is part of the reward: the estimator then estimates the gradient of the punished reward, while a comparison
    judges it against the gradient of the measured reward. Dynamic sampling looks at the rewards without it, as DAPO
    does.

    Args:
        batch: the completions.
        max: L_max, the greatest length, in counted tokens.
        cache: L_cache, the length over which the punishment sets in.

    Raises:
        ValueError: for a cache that is longer than the greatest length.
    """
    if cache > max:
        raise ValueError(f"reward soft_overlong: cache is {cache:g}, more than max, {max:g}: give at most max")
    return np.clip((max - cache - batch.lengths) / cache, -1.0, 0.0)
