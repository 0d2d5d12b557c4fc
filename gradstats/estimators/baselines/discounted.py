r"""The advantage of a group baseline, discounted by the distance to the end of the completion."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.packing import rewards_to_go
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Estimator
from gradstats.estimators.parameters import Parameters
from gradstats.estimators.registry import estimator, get_estimator


def _inner(parameters: Parameters) -> Estimator:
    try:
        return get_estimator(str(parameters["baseline"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"estimator discounted: baseline={parameters['baseline']}: {error.args[0]}") from error


def _scale(group_size: int, parameters: Parameters) -> float | None:
    return _inner(parameters).expected_scale(group_size) if parameters["gamma"] == 1 else None


@estimator(
    "discounted",
    display="discounted",
    baseline="γ^{T−t} times a group's",
    bias="γ < 1: biased towards late tokens; γ = 1: as the baseline's",
    source="verl's gamma, for group baselines",
    level="token",
    needs=lambda parameters: _inner(parameters).needs,
    across_groups=lambda parameters: _inner(parameters).across_groups,
    expected_scale=_scale,
    unit=lambda parameters: _inner(parameters).unit,
)
def discounted(batch: Batch, baseline: str = "rloo", gamma: float = 1.0) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_{i,t} = G_{i,t} - γ^{T_i-t}\,b_i`, the discounted rewards-to-go less a discounted baseline.

    Here :math:`G_{i,t} = \sum_{u≥t} γ^{u-t} r_{i,u}`, and :math:`b_i = R_i - A_i` is what the baseline subtracts
    from completion i, whose last counted token is number :math:`T_i`. With a reward at the end alone,
    :math:`A_{i,t} = γ^{T_i-t} A_i`; with γ = 1 as well it is the baseline's own advantage. A baseline of the other
    completions keeps the estimator unbiased for the discounted objective.

    Args:
        batch: the completions.
        baseline: the label of an estimator with one advantage per completion, not divided by anything.
        gamma: γ, the discount per token.

    Raises:
        ValueError: for a baseline that does not subtract one number from the reward.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0], lengths=[3, 1], groups=["a", "a"])
        >>> estimators.discounted(gamma=0.5).advantages(batch)
        array([[ 0.25,  0.5 ,  1.  ],
               [-1.  ,  0.  ,  0.  ]])
    """
    inner = _inner({"baseline": baseline})
    if inner.level != "sequence" or inner.definition.scale != "–":
        raise ValueError(
            f"discounted: baseline is {baseline!r}, which does not subtract one number from each reward: choose one "
            "such as 'rloo' or 'group_mean', and divide by the spread with the scale of a recipe"
        )
    subtracted = batch.rewards - inner.advantages(batch)
    left = batch.lengths[:, None] - np.cumsum(batch.mask, axis=1)
    return np.where(batch.mask, rewards_to_go(batch, gamma) - gamma ** np.maximum(left, 0) * subtracted[:, None], 0.0)
