r"""State values as baselines: generalised advantage estimation, and VinePPO's Monte-Carlo values."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.grouping import discounted_sums, pack, packed_rewards, unpack
from gradstats.estimators.baselines.scaled import whiten as whiten_tokens
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.registry import estimator


@estimator(
    "gae",
    display="GAE",
    baseline="value, GAE",
    bias="γ = λ = 1: E[ĝ] = ∇J; else biased, unless V is exact and γ = 1",
    source="Schulman et al. 2015, 1506.02438",
    level="token",
    needs=("values",),
    across_groups=lambda parameters: parameters["whiten"],
    expected_scale=lambda group_size, parameters: (
        1.0 if parameters["gamma"] == parameters["lam"] == 1 and not parameters["whiten"] else None
    ),
    unit=lambda parameters: f"{SEQUENCE_SUM} / batch_token_std" if parameters["whiten"] else SEQUENCE_SUM,
)
def gae(batch: Batch, gamma: float = 1.0, lam: float = 1.0, whiten: bool = False) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_t = \sum_l (γλ)^l δ_{t+l},\ δ_t = r_t + γV_{t+1} - V_t`. Schulman et al. 1506.02438.

    Sums and :math:`V_{t+1}` run over counted tokens, and :math:`V_{T+1} = 0`. γ = λ = 1 gives :math:`G_t - V_t`, for
    which E[ĝ] = ∇J if the values were not fitted to the same completions. Other γ or λ trade bias for variance;
    whitening is batch-level and adds a bias.

    Args:
        batch: the completions, with ``fitted_values``, or else ``values``, at every counted token.
        gamma: the discount γ.
        lam: λ.
        whiten: whiten A over the batch's tokens, as PPO does (unbiased variance, √(var + 1e-8)).

    Raises:
        ValueError: when a value is NaN.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 0], lengths=[2, 2], groups=["a", "a"], values=[[0.5, 0.75], [0.5, 0.25]])
        >>> estimators.gae().advantages(batch)
        array([[ 0.5 ,  0.25],
               [-0.5 , -0.25]])
        >>> estimators.gae(lam=0).advantages(batch)
        array([[ 0.25,  0.25],
               [-0.25, -0.25]])
    """
    given = batch.values if batch.fitted_values is None else batch.fitted_values
    assert given is not None
    if np.isnan(given).any():
        raise ValueError(
            "gae needs a value at every counted token, but some values are NaN, which only vine accepts: pass those of "
            "a fitted head (gradstats.values.fit_values; in a run, set values.fitted)"
        )
    values = pack(given, batch.mask)
    following = np.pad(values[:, 1:], ((0, 0), (0, 1)))
    advantages = discounted_sums(packed_rewards(batch) + gamma * following - values, gamma * lam)
    unpacked = unpack(advantages, batch.mask)
    return whiten_tokens(np.where(batch.mask, unpacked, 0.0), batch.mask) if whiten else unpacked


@estimator(
    "vine",
    display="VinePPO values",
    baseline="Monte-Carlo value of the step",
    bias="E[ĝ] = ∇J, since the values come from independent completions",
    source="Kazemnejad et al. 2024, 2410.01679",
    level="token",
    needs=("values",),
    expected_scale=lambda group_size, parameters: 1.0,
)
def vine(batch: Batch, k: int = 9) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_t = \hat V(s_{t+1}) - \hat V(s_t) + r_t`. VinePPO, 2410.01679.

    V̂ is the mean reward of k independent completions, and ``values`` holds that of the state before each token. Where
    it is NaN the position lies inside a step: every token of the step that runs from a to b gets
    :math:`\hat V(s_b) - \hat V(s_a) + \sum_{a≤u<b} r_u`. V̂ = 0 past the end. Since V̂ is unbiased and independent of
    how this completion continues, E[ĝ] = ∇J for every k.

    Args:
        batch: the completions, with ``values`` at least at each one's first counted token.
        k: the number of completions averaged in each value, for the label and for what a comparison says of their
            cost: the variance depends on it, the formula does not.

    Raises:
        ValueError: when a completion's first counted token has no value, or only values of a fitted head are known.

    Example:
        >>> from gradstats import estimators
        >>> values = [[0.5, 0.75], [0.5, float("nan")]]
        >>> batch = estimators.Batch([1, 0], lengths=[2, 2], groups=["a", "a"], values=values)
        >>> estimators.vine().advantages(batch)
        array([[ 0.25,  0.25],
               [-0.5 , -0.5 ]])
    """
    if batch.values is None:
        raise ValueError(
            "vine needs means of further completions, and only values of a fitted head are known: pass those of "
            "gradstats.values.monte_carlo_values, or set values.monte_carlo in a run"
        )
    values = pack(batch.values, batch.mask)
    starts = ~np.isnan(values)
    if not starts[:, 0].all():
        raise ValueError("vine needs a value at the first counted token of every completion, but some are NaN")
    n, width = values.shape
    columns = np.arange(width)
    begin = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
    next_start = np.minimum.accumulate(np.where(starts, columns, width)[:, ::-1], axis=1)[:, ::-1]
    end = np.concatenate([next_start[:, 1:], np.full((n, 1), width)], axis=1)
    value_at = np.pad(values, ((0, 0), (0, 1)))
    reward_before = np.pad(np.cumsum(packed_rewards(batch), axis=1), ((0, 0), (1, 0)))
    rows = np.arange(n)[:, None]
    advantages = value_at[rows, end] - value_at[rows, begin]
    return unpack(advantages + reward_before[rows, end] - reward_before[rows, begin], batch.mask)
