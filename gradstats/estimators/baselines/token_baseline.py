"""An advantage for each token: discounted, less the greedy reward, less the token baseline or the causal optimum."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from gradstats.estimators.baselines.grouping import (
    TRUE_GRADIENT,
    WEIGHTED_BIAS,
    is_batch_level,
    pack,
    reduce_by_group,
    reduce_others,
    reference_sets,
    rewards_to_go,
    unbiased,
    unpack,
)
from gradstats.estimators.batch import COLUMN, Batch
from gradstats.estimators.estimator import Estimator, Parameters
from gradstats.estimators.registry import estimator, get_estimator
from gradstats.rollouts.schema import ADAPTER_RESIDUAL


def _inner(parameters: Parameters) -> Estimator:
    try:
        return get_estimator(str(parameters["baseline"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"estimator discounted: baseline={parameters['baseline']}: {error.args[0]}") from error


@estimator(
    "discounted",
    display="discounted",
    baseline="γ^{T−t} times a group's",
    bias="γ < 1: biased towards late tokens; γ = 1: as the baseline's",
    source="verl's gamma, for group baselines",
    level="token",
    needs=lambda parameters: _inner(parameters).needs,
    across_groups=lambda parameters: _inner(parameters).across_groups,
    expected_scale=lambda group_size, parameters: (
        _inner(parameters).expected_scale(group_size) if parameters["gamma"] == 1 else None
    ),
    unit=lambda parameters: _inner(parameters).unit,
)
def discounted(batch: Batch, baseline: str = "rloo", gamma: float = 1.0) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_{i,t} = G_{i,t} - γ^{T_i-t}\,b_i`, the discounted rewards-to-go less a discounted baseline.

    Here :math:`G_{i,t} = \sum_{u≥t} γ^{u-t} r_{i,u}`, and :math:`b_i = R_i - A_i` is what the baseline subtracts
    from completion i, whose last counted token is number :math:`T_i`. With a reward at the end alone,
    :math:`A_{i,t} = γ^{T_i-t} A_i`; with γ = 1 as well it is the baseline's own advantage. A baseline of the other
    completions keeps the estimator unbiased for the discounted objective.

    Args:
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


def token_energy(batch: Batch, energy: str) -> Float[np.ndarray, "n t"]:
    r"""Return ‖s_t‖² as measured ("exact"), or w_t = 1 − 2π(y_t) + Σ_v π(v)² ("logit"), times ρ_t² where ρ is given.

    w_t is the squared norm of the gradient with respect to the logits. 0 where masked out.
    """
    measured = batch.token_energy if energy == "exact" else logit_energy(batch)
    assert measured is not None
    if batch.importance is not None:
        measured = batch.importance**2 * measured
    return np.where(batch.mask, measured, 0.0)


def logit_energy(batch: Batch) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`w_t = 1 - 2π(y_t) + \sum_v π(v)²`, the squared norm of the gradient of log π by the logits."""
    assert batch.logprobs is not None
    assert batch.sum_pi_squared is not None
    return 1 - 2 * np.exp(batch.logprobs) + batch.sum_pi_squared


def _otb_needs(parameters: Parameters) -> tuple[str, ...]:
    return ("token_energy",) if parameters["energy"] == "exact" else ("logprobs", "sum_pi_squared")


def _unbiased_with_loo(group_size: int, parameters: Parameters) -> float | None:
    # the advantage in a group of one is its return
    return 1.0 if parameters["loo"] or group_size == 1 else None


def _otb_advantages(
    batch: Batch,
    returns: Float[np.ndarray, "n t"],
    energy: Float[np.ndarray, "n t"],
    mask: Bool[np.ndarray, "n t"],
    zero_tail: bool,
    loo: bool,
) -> Float[np.ndarray, "n t"]:
    """Return (G − B)·m by column: columns are positions (``otb``) or counted tokens (``otb_turns``)."""
    index, n_groups = batch.group_index, batch.n_groups
    weight = np.cumsum(energy, axis=1) * mask
    if loo:
        numerator = reduce_others(returns * weight, index, n_groups)
        denominator = reduce_others(weight, index, n_groups)
    else:
        numerator = reduce_by_group(returns * weight, index, n_groups)[index]
        denominator = reduce_by_group(weight, index, n_groups)[index]
    baseline = numerator / (denominator + 1e-8)
    baseline[batch.group_sizes[index] == 1] = 0.0
    if zero_tail:
        longest_other = reduce_others(batch.lengths.astype(np.float64), index, n_groups, np.maximum, 0.0)
        tail = np.arange(mask.shape[1]) >= longest_other[:, None]
        baseline[tail & (batch.lengths > longest_other)[:, None]] = 0.0
    return (returns - baseline) * mask


@estimator(
    "otb",
    display="OTB",
    baseline="token baseline weighted by cumulative energy",
    bias=WEIGHTED_BIAS,
    source="2602.07078",
    level="token",
    needs=_otb_needs,
    expected_scale=_unbiased_with_loo,
)
def otb(batch: Batch, energy: str = "logit", zero_tail: bool = True, loo: bool = False) -> Float[np.ndarray, "n t"]:
    r""":math:`A_{i,t} = (G_{i,t} - B_t)m_{i,t},\ B_t = \sum_i G_{i,t}W_{i,t}m_{i,t}/(\sum_i W_{i,t}m_{i,t} + 10^{-8})`.

    The optimal token baseline, 2602.07078. Sums run over the prompt's group, m is the mask, and
    :math:`W_t = \sum_{u≤t} ‖s_u‖²` is the energy so far; with ``importance`` in the batch,
    :math:`W_t = \sum_{u≤t} ρ_u²‖s_u‖²` (ρ enters W only). :math:`B_t` minimises :math:`\sum_t E[W_t(G_t - B_t)²]`, not
    tr Cov itself. A group of one has B = 0.

    By default sample i enters its own baseline and E[ĝ] is not a multiple of ∇J. With ``loo=True``, :math:`B_t` sums
    over the others (0 where none is alive) and E[ĝ] = ∇J, exactly when ``zero_tail`` is off or masks have no
    holes.

    Args:
        energy: ``"logit"`` replaces :math:`‖s_u‖²` by :math:`w_u = 1 - 2π(y_u) + \sum_v π(v)²` and needs ``logprobs``
            and ``sum_pi_squared``; ``"exact"`` needs ``token_energy``.
        zero_tail: where exactly one completion counts the most tokens, :math:`B_t = 0` for it from the column
            (0-based) equal to the second-greatest count: verl's rule, not in the paper. Without it the
            own-sample advantage on that tail is 0.
        loo: leave sample i out of its own baseline.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 0], lengths=[2, 2], groups=["a", "a"], token_energy=[[1, 1], [3, 1]])
        >>> estimators.otb(energy="exact").advantages(batch).round(2)
        array([[ 0.75,  0.67],
               [-0.25, -0.33]])
    """
    returns, energies = rewards_to_go(batch), token_energy(batch, energy)
    return _otb_advantages(batch, returns, energies, batch.mask, zero_tail, loo)


@estimator(
    "otb_turns",
    display="OTB by turns",
    baseline="as otb, aligned by counted token",
    bias=WEIGHTED_BIAS,
    source="2602.07078",
    level="token",
    needs=_otb_needs,
    expected_scale=_unbiased_with_loo,
)
def otb_turns(
    batch: Batch, energy: str = "logit", zero_tail: bool = True, loo: bool = False
) -> Float[np.ndarray, "n t"]:
    r"""Return the advantage of ``otb`` after each completion's counted tokens are packed to the left. 2602.07078.

    Completions then align by counted token instead of by position (several turns, tool outputs masked out);
    equal to ``otb`` when masks have no holes. By default E[ĝ] is not a multiple of ∇J; with ``loo=True``
    E[ĝ] = ∇J, since packed masks have no holes.

    Args:
        energy: ``"logit"`` (needs ``logprobs``, ``sum_pi_squared``) or ``"exact"`` (``token_energy``).
        zero_tail: verl's rule for the tail of the longest completion.
        loo: leave sample i out of its own baseline.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(
        ...     [1, 0], [2, 2], groups=["a", "a"], mask=[[1, 0, 1], [1, 1, 0]], token_energy=[[1, 0, 1], [3, 1, 0]]
        ... )
        >>> estimators.otb_turns(energy="exact").advantages(batch).round(2)
        array([[ 0.75,  0.  ,  0.67],
               [-0.25, -0.33,  0.  ]])
    """
    returns, energies = rewards_to_go(batch), token_energy(batch, energy)
    packed = [pack(array, batch.mask) for array in (returns, energies, batch.mask)]
    return unpack(_otb_advantages(batch, packed[0], packed[1], packed[2], zero_tail, loo), batch.mask)


@estimator(
    "causal_optimal",
    display="causal optimal",
    baseline="B_t = E[R⟨s_t, S⟩]/E‖s_t‖²",
    bias=WEIGHTED_BIAS,
    source="Greensmith et al. 2004",
    level="token",
    needs=("token_energy", "token_cross"),
    across_groups=is_batch_level,
    expected_scale=lambda group_size, parameters: (
        1.0 if parameters["loo"] or (group_size == 1 and parameters["scope"] == "group") else None
    ),
)
def causal_optimal(batch: Batch, loo: bool = False, scope: str = "group") -> Float[np.ndarray, "n t"]:
    r""":math:`A_{i,t} = G_{i,t} - B_t,\ B_t = \sum_i R_i⟨s_{i,t}, S_i⟩/\sum_i‖s_{i,t}‖²` over completions alive at t.

    In expectation :math:`B_t` is the exact minimiser of tr Cov among baselines that depend on t alone, on-policy and
    for a terminal reward: setting the derivative of :math:`E‖\sum_t (R - B_t)s_t‖²` to zero, with
    :math:`E\langle s_t, s_u\rangle = 0`.
    (The argument of Greensmith, Bartlett & Baxter, JMLR 5, 2004, one position at a time.) Estimated from few
    completions it is noisy: prefer ``scope="batch"``. With ``loo=True`` the denominator is close to zero at
    positions where the other completions have little energy: use the result only where its interval is narrow.

    :math:`B_t = 0` where no completion of the sum has energy (every score is zero there, or no other completion is
    alive) and for a set of one. By default E[ĝ] is not a multiple of ∇J; with ``loo=True``, E[ĝ] = ∇J.

    Args:
        batch: the completions, with ``token_energy`` and ``token_cross``.
        loo: leave sample i out of its own baseline.
        scope: sum over the group or over the whole batch.

    Example:
        >>> from gradstats import estimators
        >>> energy = [[1, 1], [3, 1]]
        >>> batch = estimators.Batch([1, 0], [2, 2], ["a", "a"], token_energy=energy, token_cross=energy)
        >>> estimators.causal_optimal().advantages(batch)
        array([[ 0.75,  0.5 ],
               [-0.25, -0.5 ]])
    """
    assert batch.token_energy is not None
    assert batch.token_cross is not None
    index, n_sets = reference_sets(batch, scope)
    cross = batch.rewards[:, None] * batch.token_cross
    if loo:
        numerator = reduce_others(cross, index, n_sets)
        denominator = reduce_others(batch.token_energy, index, n_sets)
    else:
        numerator = reduce_by_group(cross, index, n_sets)[index]
        denominator = reduce_by_group(batch.token_energy, index, n_sets)[index]
    baseline = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)
    baseline[np.bincount(index, minlength=n_sets)[index] == 1] = 0.0
    return rewards_to_go(batch) - baseline


@estimator(
    "arca",
    display="ARCA",
    baseline="group mean × adapter's residual",
    bias="biased towards tokens it moves",
    source="Lafuente-Mercado 2026, 2606.00257",
    level="token",
    needs=(f"{COLUMN}{ADAPTER_RESIDUAL}",),
)
def arca(batch: Batch) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_{i,t} = (R_i - \bar R)\,r_{i,t}/\bar r_i`, :math:`r_t = ‖h_t^{adapted} - h_t^{base}‖_2`. ARCA.

    2606.00257 takes credit from the adapter's residual in the last hidden state; that it is divided by its mean over
    the completion's counted tokens is an assumption here, from its abstract: weights of mean 1 in each completion.
    Where the residual is 0 throughout all tokens have weight 1. With ``scale=group_std`` in a recipe the advantage is
    GRPO's.

    Args:
        batch: the completions, with the column ``adapter_residual``, one number per token.

    Example:
        >>> from gradstats import estimators
        >>> residuals = {"adapter_residual": [[1.0, 3.0], [2.0, 2.0]]}
        >>> estimators.arca().advantages(estimators.Batch([1, 0], [2, 2], ["a", "a"], columns=residuals))
        array([[ 0.25,  0.75],
               [-0.5 , -0.5 ]])
    """
    residual = np.where(batch.mask, batch.columns[ADAPTER_RESIDUAL], 0.0)
    mean = residual.sum(axis=1, keepdims=True) / np.maximum(batch.lengths, 1)[:, None]
    share = np.divide(residual, mean, out=np.where(batch.mask, 1.0, 0.0), where=mean > 0)
    return get_estimator("group_mean").advantages(batch)[:, None] * share
