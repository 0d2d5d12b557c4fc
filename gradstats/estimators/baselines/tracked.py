"""Baselines from earlier rewards of the same prompt: the rollouts' column ``history``, oldest first.

The baseline was known before the completion was drawn, so it needs no group, and leaves the gradient unbiased.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.grouping import TRUE_GRADIENT
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.registry import estimator

HISTORY = "history"
_NEEDS = (f"column:{HISTORY}",)


def _histories(batch: Batch) -> list[np.ndarray]:
    """Return the earlier rewards of each completion's prompt; none without the column."""
    if HISTORY not in batch.columns:
        return [np.empty(0)] * batch.rewards.size
    return [np.asarray(past, dtype=np.float64).reshape(-1) for past in batch.columns[HISTORY]]


def _faded(past: np.ndarray, decay: float) -> tuple[float, float, float]:
    """Return Σ decay^age·r, Σ decay^age and decay^n of n earlier rewards, the latest of age 0."""
    weights = decay ** np.arange(past.size - 1, -1, -1.0)
    return float(weights @ past), float(weights.sum()), float(decay**past.size)


@estimator(
    "reward_ema",
    display="reward EMA",
    baseline="moving average of the prompt's earlier rewards",
    bias="own sample: E[ĝ] = decay·∇J; LOO: ∇J",
    source="SPIRAL 2506.24119 (RAE)",
    needs=_NEEDS,
    expected_scale=lambda group_size, parameters: 1.0 if parameters["loo"] else parameters["decay"],
)
def reward_ema(batch: Batch, decay: float = 0.95, start: float = 0.0, loo: bool = False) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - b`, :math:`b ← αb + (1-α)R` over the prompt's rewards. RAE of SPIRAL, 2506.24119.

    As published b takes in :math:`R_i` first, so that :math:`A_i = α(R_i - b_{before})`, and E[ĝ] = α·∇J.

    Args:
        batch: the completions, with the column ``history``: a list of earlier rewards for each, oldest first.
        decay: α.
        start: b before the first reward.
        loo: leave :math:`R_i` out of b.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 1], [1, 2], ["a", "b"], columns={"history": [[1, 0], []]})
        >>> estimators.reward_ema(decay=0.5, loo=True).advantages(batch)  # b = ¼ and 0
        array([0.75, 1.  ])
    """
    faded = [_faded(past, decay) for past in _histories(batch)]
    baseline = np.array([rest * start + (1 - decay) * total for total, _, rest in faded])
    return (batch.rewards - baseline) * (1.0 if loo else decay)


@estimator(
    "beta_tracker",
    display="Beta tracker",
    baseline="faded success rate of the prompt's earlier rewards",
    bias=TRUE_GRADIENT,
    source="SPO 2509.13232",
    needs=_NEEDS,
    expected_scale=lambda group_size, parameters: 1.0,
)
def beta_tracker(batch: Batch, decay: float = 0.9, start: float = 0.5, count: float = 8.0) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \frac{α}{α+β}`, with :math:`α ← ρα + r`, :math:`β ← ρβ + 1 - r`. SPO, 2509.13232.

    The mean of a Beta posterior that forgets, the first count included. SPO then whitens A over the batch. In verl's
    recipe ρ is :math:`2^{-D/0.06}` up to 0.96, of the mean distance D of a prompt's log-probabilities between visits,
    where it is not a constant, as here; the first count is 1/(1 − ρ) at the least ρ.

    Args:
        batch: the completions, with the column ``history``: a list of earlier rewards for each, oldest first.
        decay: ρ.
        start: α/(α+β) before the first reward.
        count: α+β before the first reward.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 1], [1, 2], ["a", "b"], columns={"history": [[1, 1], []]})
        >>> estimators.beta_tracker(decay=1.0, start=0.5, count=2.0).advantages(batch)  # b = (1 + 2)/4 and 1/2
        array([0.25, 0.5 ])
    """
    faded = [_faded(past, decay) for past in _histories(batch)]
    return batch.rewards - [(rest * count * start + total) / (rest * count + number) for total, number, rest in faded]


@estimator(
    "kalman",
    display="Kalman baseline",
    baseline="Kalman filter over the prompt's rewards",
    scale="√P + ε of the filter",
    bias="own sample: a known multiple of ∇J; LOO: another",
    source="KRPO 2505.07527",
    unit=f"{SEQUENCE_SUM} / kalman_std",
)
def kalman(
    batch: Batch,
    process: float = 1e-5,
    noise: float = 1e-2,
    start: float = 0.0,
    variance: float = 1.0,
    eps: float = 1e-8,
    loo: bool = False,
) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = (R_i - x_i)/(\sqrt{P_i} + ε)`, a filter over the group's rewards in order. KRPO, 2505.07527.

    :math:`P ← P + Q,\ K = P/(P + R),\ x_i = x_{i-1} + K(R_i - x_{i-1}),\ P_i = (1-K)P`. As :math:`x_{i-1}` holds
    earlier completions alone, :math:`A_i = (1-K_i)(R_i - x_{i-1})/(\sqrt{P_i}+ε)`, and E[ĝ] is the mean of
    :math:`(1-K_i)/(\sqrt{P_i}+ε)` times ∇J. Completions are weighted by their place, which carries no information: with
    the defaults, those of the authors' code, by 0.1 for the first of a group, 7 for the second and 25 for the eighth.

    Args:
        batch: the completions; a column ``history`` is filtered first.
        process: Q.
        noise: R.
        start: x before the first reward.
        variance: P before the first reward.
        eps: ε.
        loo: subtract :math:`x_{i-1}`.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0], lengths=[1, 2], groups=["a", "a"])
        >>> estimators.kalman(process=0, noise=1, eps=0, loo=True).advantages(batch).round(3)  # x = 0, ½; P = ½, ⅓
        array([ 1.414, -0.866])
    """
    histories, advantages = _histories(batch), np.empty(batch.rewards.size)
    for group in range(batch.n_groups):
        rows = np.flatnonzero(batch.group_index == group)
        x, p = start, variance
        for reward in histories[rows[0]]:
            x, p = _filtered(x, p, reward, process, noise)
        for row in rows:
            before = x
            x, p = _filtered(x, p, batch.rewards[row], process, noise)
            advantages[row] = (batch.rewards[row] - (before if loo else x)) / (np.sqrt(p) + eps)
    return advantages


def _filtered(x: float, p: float, reward: float, process: float, noise: float) -> tuple[float, float]:
    """Return mean and variance of the state after one more reward."""
    gain = (p + process) / (p + process + noise)
    return x + gain * (reward - x), (1 - gain) * (p + process)
