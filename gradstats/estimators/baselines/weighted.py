"""Baselines that weight the group's rewards by length, a power of it, or the measured gradient norm."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float, Int

from gradstats.estimators.baselines.grouping import (
    WEIGHTED_BIAS,
    is_batch_level,
    reduce_by_group,
    reduce_others,
    reference_sets,
    unbiased_if_loo,
    weighted_mean_advantages,
)
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Estimator, Weighting, Wrapped
from gradstats.estimators.registry import estimator

#: The value of ``alpha`` that stands for the exponent within prompts, fitted on the other groups.
_WITHIN_PROMPT = "within_prompt"
#: The column of a batch that holds exponents fitted elsewhere, such as on all prompts of a measurement.
FITTED_ELSEWHERE = "exponent_of_other_prompts"


def length_exponents(batch: Batch, alpha: float | str) -> Float[np.ndarray, "n"]:
    """Return the exponent α with which each completion's group is weighted."""
    if alpha != _WITHIN_PROMPT:
        return np.full(batch.rewards.size, float(alpha))
    if FITTED_ELSEWHERE in batch.columns:
        return batch.columns[FITTED_ELSEWHERE]
    return exponents_of_others(batch)


def exponents_of_others(batch: Batch) -> Float[np.ndarray, "n"]:
    r"""Return, for each completion, the within-prompt exponent of all groups but its own.

    With :math:`x, y` the deviations of log T and log‖S‖² from their means over a group,
    :math:`2α_m = \sum_{k≠m}\sum_{i∈k} x_i y_i / \sum_{k≠m}\sum_{i∈k} x_i²`: the line with fixed effects of the prompts,
    without the group's own completions, so that the weights are independent of these and a leave-one-out mean stays
    unbiased. Completions with ‖S‖ = 0 take no part. Groups of one completion, or of one length, need no exponent and
    get 0. NaN, with a warning, where no other group has completions of different lengths.
    """
    assert batch.sq_norms is not None
    known, index = (batch.sq_norms > 0) & (batch.lengths > 0), batch.group_index
    logarithms = np.log(np.where(known, batch.lengths, 1)), np.log(np.where(known, batch.sq_norms, 1.0))
    x, y = (_deviations(values, index, known, batch.n_groups) for values in logarithms)
    squares = np.bincount(index, weights=x * x, minlength=batch.n_groups)
    products = np.bincount(index, weights=x * y, minlength=batch.n_groups)
    one_set = np.zeros(batch.n_groups, dtype=np.int64)
    squares, products = (reduce_others(sums, one_set, 1) for sums in (squares, products))
    exponents = np.divide(products, 2.0 * squares, out=np.full(batch.n_groups, np.nan), where=squares > 0)
    lengths = batch.lengths.astype(np.float64)
    shortest, longest = (
        reduce_by_group(lengths, index, batch.n_groups, operation) for operation in (np.minimum, np.maximum)
    )
    exponents[shortest == longest] = 0.0
    if np.isnan(exponents).any():
        warnings.warn(
            f"the exponent within prompts of {int(np.isnan(exponents).sum())} groups is NaN: no other group has "
            "completions of different lengths, so measure more completions per prompt, or give alpha as a number",
            RuntimeWarning,
            stacklevel=2,
        )
    return exponents[index]


def _deviations(values: np.ndarray, index: Int[np.ndarray, "n"], known: np.ndarray, n_groups: int) -> np.ndarray:
    """Return values less the mean of their group's known ones; 0 where a value is not known."""
    counts = np.maximum(np.bincount(index, weights=known, minlength=n_groups), 1.0)
    means = np.bincount(index, weights=known * values, minlength=n_groups) / counts
    return np.where(known, values - means[index], 0.0)


def fits_exponents(estimator: Weighting) -> bool:
    """Return whether an estimator, or a recipe's advantage, weights by exponents that are fitted on other prompts."""
    advantage = getattr(estimator, "advantage", estimator)
    return isinstance(advantage, Estimator) and advantage.parameters.get("alpha") == _WITHIN_PROMPT


class GivenExponents(Wrapped[Estimator]):
    """An estimator whose exponents are a column of the batch, so that no group depends on the others of its batch."""

    @property
    def across_groups(self) -> bool:
        """``False``."""
        return False


# Under the weights ρS of an off-policy gradient the optimal constant is E[ρ²R‖S‖²]/E[ρ²‖S‖²].
_RATIO_POWER = 2


@estimator(
    "token_mean",
    display="token mean",
    baseline="length-weighted group mean",
    bias=WEIGHTED_BIAS,
    source="Hao et al. 2025, 2505.23585 (OPO); CWM 2025, 2510.02387",
    across_groups=is_batch_level,
    expected_scale=unbiased_if_loo,
    aliases=("opo", "cwm"),
)
def token_mean(
    batch: Batch, loo: bool = False, scope: str = "group", singleton: str = "zero", off_policy: bool = False
) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \sum_j T_jR_j/\sum_j T_j`. OPO (2505.23585), CWM (2510.02387).

    The optimal constant if ‖S‖² is proportional to T (α = ½). By default :math:`R_i` enters its own baseline, weighted
    by its length, and E[ĝ] is not a multiple of ∇J; ``loo=True`` is unbiased.

    Args:
        loo: leave sample i out of its own baseline.
        scope: average over the group or over the whole batch.
        singleton: what a set of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).
        off_policy: weight each completion by ρ² as well, :math:`ρ = π/π_\mathrm{old}` of the whole completion.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.token_mean().advantages(batch)
        array([ 0.625, -0.375, -0.375,  0.625])
    """
    return weighted_mean_advantages(
        batch, batch.lengths.astype(np.float64), loo, scope, singleton, _RATIO_POWER * off_policy
    )


@estimator(
    "length_weighted",
    display="length-weighted",
    baseline="group mean weighted by T^{2α}",
    bias=WEIGHTED_BIAS,
    source="Gloeckle 2026",
    needs=lambda parameters: ("sq_norms",) if parameters.get("alpha") == _WITHIN_PROMPT else (),
    across_groups=lambda parameters: is_batch_level(parameters) or parameters["alpha"] == _WITHIN_PROMPT,
    expected_scale=unbiased_if_loo,
)
def length_weighted(
    batch: Batch,
    alpha: float | str,
    loo: bool = False,
    scope: str = "group",
    singleton: str = "zero",
    off_policy: bool = False,
) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \sum_j T_j^{2α} R_j/\sum_j T_j^{2α}`.

    The optimal constant if :math:`‖S‖ \propto T^α`: the weight is :math:`T^{2α}`. α = 0 is the group mean and α = ½ the
    token mean. Gloeckle, "Length-controlled Baselines in RL with Language Models", 2026. By default :math:`R_i` enters
    its own baseline and E[ĝ] is not a multiple of ∇J; ``loo=True`` is unbiased.

    Args:
        alpha: the exponent α of :math:`‖S‖ \propto T^α`; there is no default because it is a property of the policy.
            ``"within_prompt"`` fits it on the other groups of the batch, with fixed effects of the prompts and
            ``sq_norms`` (:func:`gradstats.estimators.baselines.weighted.exponents_of_others`), which costs no
            bias and makes it batch-level; :func:`gradstats.compare` fits it on all other prompts of the measurement,
            and takes these exponents as given.
        loo: leave sample i out of its own baseline.
        scope: average over the group or over the whole batch.
        singleton: what a set of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).
        off_policy: weight each completion by ρ² as well, :math:`ρ = π/π_\mathrm{old}` of the whole completion.

    Raises:
        ValueError: for ``alpha="within_prompt"`` with ``scope="batch"``, whose completions have no common exponent.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0], lengths=[10, 30], groups=["a", "a"])
        >>> estimators.length_weighted(alpha=0.5).advantages(batch)
        array([ 0.75, -0.25])
        >>> estimators.length_weighted(alpha=0.5, loo=True).advantages(batch)
        array([ 1., -1.])
    """
    if alpha == _WITHIN_PROMPT and scope == "batch":
        raise ValueError("alpha='within_prompt' has an exponent for each group: choose scope='group', or a number")
    # only ratios of weights matter: scaling the greatest of each set to 1 avoids overflow and underflow
    exponents, counted = length_exponents(batch, alpha), batch.lengths > 0
    log_weights = 2 * exponents * np.log(np.where(counted, batch.lengths, 1))
    votes = counted | (exponents == 0)  # 0^0 = 1: the group mean counts completions
    index, n_sets = reference_sets(batch, scope)
    greatest = reduce_by_group(np.where(votes, log_weights, -np.inf), index, n_sets, np.maximum)
    greatest = np.where(np.isfinite(greatest), greatest, 0.0)[index]
    weights = np.where(votes, np.exp(log_weights - greatest), 0.0)
    return weighted_mean_advantages(batch, weights, loo, scope, singleton, _RATIO_POWER * off_policy)


@estimator(
    "norm_weighted",
    display="norm-weighted",
    baseline="group mean weighted by ‖S‖²",
    bias=WEIGHTED_BIAS,
    source="Weaver & Tao 2001; Greensmith et al. 2004",
    needs=("sq_norms",),
    across_groups=is_batch_level,
    expected_scale=unbiased_if_loo,
    aliases=("ogb",),
)
def norm_weighted(
    batch: Batch, loo: bool = False, scope: str = "group", singleton: str = "zero", off_policy: bool = False
) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \sum_j‖S_j‖² R_j/\sum_j‖S_j‖²`, with the measured norms (``sq_norms``).

    The sample version of the optimal constant b* on one group (the optimal group baseline, OGB). By default
    :math:`R_i` enters its own baseline and E[ĝ] is not a multiple of ∇J; ``loo=True`` is unbiased.

    Args:
        loo: leave sample i out of its own baseline.
        scope: average over the group or over the whole batch.
        singleton: what a set of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).
        off_policy: weight each completion by ρ² as well, :math:`ρ = π/π_\mathrm{old}` of the whole completion.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4, sq_norms=[2, 3, 4, 1])
        >>> estimators.norm_weighted().advantages(batch)
        array([ 0.7, -0.3, -0.3,  0.7])
    """
    assert batch.sq_norms is not None
    return weighted_mean_advantages(batch, batch.sq_norms, loo, scope, singleton, _RATIO_POWER * off_policy)
