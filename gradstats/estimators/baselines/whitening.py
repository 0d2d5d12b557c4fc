r"""REINFORCE++: returns, or rewards minus the group mean, whitened over the tokens of the batch."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.packing import rewards_to_go
from gradstats.estimators.baselines.weighted_mean import weighted_mean_advantages
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.registry import estimator


def whiten(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Return (v − mean)·(var + 1e-8)^{−1/2}, with mean and unbiased variance over tokens.

    Args:
        values: (N, T) with the mask as weights, or (N,) with the lengths as weights.
        weights: the number of tokens that each entry represents.

    Returns:
        The same shape; NaN, with a warning, for a batch of one token, whose variance is undefined.
    """
    count = weights.sum()
    if count < 2:
        warnings.warn(
            "whitened advantages are NaN: one token has no variance; give a larger batch",
            RuntimeWarning,
            stacklevel=2,
        )
        return np.full_like(values, np.nan)
    mean = (weights * values).sum() / count
    variance = (weights * (values - mean) ** 2).sum() / (count - 1)
    return (values - mean) / np.sqrt(variance + 1e-8)


@estimator(
    "reinforce_pp",
    display="REINFORCE++",
    baseline="token mean of the batch's returns",
    scale="batch token std",
    bias="biased: mean and std of the batch include the sample",
    source="Hu et al. 2025, 2501.03262",
    level="token",
    across_groups=True,
    unit=f"{SEQUENCE_SUM} / batch_token_std",
)
def reinforce_pp(batch: Batch, gamma: float = 1.0) -> Float[np.ndarray, "n t"]:
    r""":math:`A_{i,t} = (G_{i,t} - \bar G)/\sqrt{\mathrm{var}\,G + 10^{-8}}` over all tokens. REINFORCE++, 2501.03262.

    Token-weighted mean, unbiased variance, divided by √(var + 1e-8). Batch-level; mean and variance include the
    sample itself, and E[ĝ] is not a known multiple of ∇J.

    Args:
        batch: the completions; with ``token_rewards``, G sums them, else G is :math:`R_i` at every counted token.
        gamma: the discount per counted token.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.reinforce_pp().advantages(batch).round(2)
        array([[ 0.54,  0.  ,  0.  ],
               [-1.62, -1.62,  0.  ],
               [ 0.54,  0.54,  0.54],
               [ 0.54,  0.54,  0.  ]])
    """
    return whiten(rewards_to_go(batch, gamma), batch.mask)


@estimator(
    "reinforce_pp_baseline",
    display="REINFORCE++ baseline",
    baseline="group mean, then token mean of the batch",
    scale="batch token std",
    bias="biased: mean and std of the batch include the sample",
    source="Hu et al. 2025, 2501.03262",
    across_groups=True,
    unit=f"{SEQUENCE_SUM} / batch_token_std",
)
def reinforce_pp_baseline(batch: Batch, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \bar R`, whitened over the batch's tokens. REINFORCE++-baseline, 2501.03262.

    Every token of a completion has the same value, so the result is (N,), and a completion counts :math:`T_i` times in
    mean and variance. Batch-level; both include the sample itself, and E[ĝ] is not a known multiple of ∇J.

    Args:
        batch: the completions.
        loo: take the mean of the others before whitening.
        singleton: what a group of one gets before whitening: 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN
            (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.reinforce_pp_baseline().advantages(batch).round(2)
        array([ 1.76, -1.37,  0.2 ,  0.2 ])
    """
    ones = np.ones_like(batch.rewards)
    return whiten(weighted_mean_advantages(batch, ones, loo, "group", singleton), batch.lengths)
