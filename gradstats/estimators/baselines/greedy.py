r"""ReMax: the reward of the greedy completion as the baseline."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.expectations import TRUE_GRADIENT, unbiased
from gradstats.estimators.baselines.packing import rewards_to_go
from gradstats.estimators.batch import Batch
from gradstats.estimators.registry import estimator


@estimator(
    "remax",
    display="ReMax",
    baseline="reward of the greedy completion",
    bias=TRUE_GRADIENT,
    source="Li et al. 2023, 2310.10505",
    level="token",
    needs=("greedy_rewards",),
    expected_scale=unbiased,
)
def remax(batch: Batch) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_{i,t} = G_{i,t} - R(\text{greedy completion of the prompt})`. ReMax, 2310.10505.

    Needs ``greedy_rewards``, one per completion. The baseline does not depend on the samples, so E[ĝ] = ∇J.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 0], lengths=[1, 2], groups=["a", "a"], greedy_rewards=[0.5, 0.5])
        >>> estimators.remax().advantages(batch)
        array([[ 0.5,  0. ],
               [-0.5, -0.5]])
    """
    assert batch.greedy_rewards is not None
    return rewards_to_go(batch) - batch.greedy_rewards[:, None]
