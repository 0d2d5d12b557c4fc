r"""Baselines that weight the group's rewards by length, a power of it, or the measured gradient norm."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.expectations import WEIGHTED_BIAS, is_batch_level, unbiased_if_loo
from gradstats.estimators.baselines.grouping import reduce_by_group, reference_sets
from gradstats.estimators.baselines.length_exponent import WITHIN_PROMPT, length_exponents
from gradstats.estimators.baselines.weighted_mean import weighted_mean_advantages
from gradstats.estimators.batch import Batch
from gradstats.estimators.registry import estimator

# Under the weights ρS of an off-policy gradient the optimal constant is E[ρ²R‖S‖²]/E[ρ²‖S‖²].
RATIO_POWER = 2


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
        batch: the completions.
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
        batch, batch.lengths.astype(np.float64), loo, scope, singleton, RATIO_POWER * off_policy
    )


@estimator(
    "length_weighted",
    display="length-weighted",
    baseline="group mean weighted by T^{2α}",
    bias=WEIGHTED_BIAS,
    source="Gloeckle 2026",
    needs=lambda parameters: ("sq_norms",) if parameters.get("alpha") == WITHIN_PROMPT else (),
    across_groups=lambda parameters: is_batch_level(parameters) or parameters["alpha"] == WITHIN_PROMPT,
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
        batch: the completions.
        alpha: the exponent α of :math:`‖S‖ \propto T^α`; there is no default because it is a property of the policy.
            ``"within_prompt"`` fits it on the other groups of the batch, with fixed effects of the prompts and
            ``sq_norms`` (:func:`gradstats.estimators.baselines.length_exponent.exponents_of_others`), which costs no
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
    if alpha == WITHIN_PROMPT and scope == "batch":
        raise ValueError("alpha='within_prompt' has an exponent for each group: choose scope='group', or a number")
    # only ratios of weights matter: scaling the greatest of each set to 1 avoids overflow and underflow
    log_weights = 2 * length_exponents(batch, alpha) * np.log(batch.lengths)
    index, n_sets = reference_sets(batch, scope)
    greatest = reduce_by_group(log_weights, index, n_sets, np.maximum)[index]
    return weighted_mean_advantages(
        batch, np.exp(log_weights - greatest), loo, scope, singleton, RATIO_POWER * off_policy
    )


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
        batch: the completions.
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
    return weighted_mean_advantages(batch, batch.sq_norms, loo, scope, singleton, RATIO_POWER * off_policy)
