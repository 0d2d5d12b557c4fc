r"""Pass@k training: only the best completion of a group counts, with its lead over the second best."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.group_std import divide_by_deviation, standard_deviation
from gradstats.estimators.baselines.grouping import reduce_others
from gradstats.estimators.baselines.weighted_mean import apply_singleton
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.registry import estimator


@estimator(
    "pass_at_k",
    display="pass@k",
    baseline="best of the others, for the best alone",
    scale="– (normalize: group std + ε)",
    bias="another objective: E[ĝ] = 1/N·∇E[max R of the group]",
    source="Tang et al. 2025, 2503.19595",
    unit=lambda parameters: f"{SEQUENCE_SUM} / group_std" if parameters["normalize"] else SEQUENCE_SUM,
)
def pass_at_k(
    batch: Batch, normalize: bool = False, ddof: int = 1, eps: float = 1e-6, singleton: str = "zero"
) -> Float[np.ndarray, "n"]:
    r""":math:`A_i = r_\mathrm{max} - r_\mathrm{second}` for the best completion of the group, otherwise 0. 2503.19595.

    Equal to :math:`\max(R_i - \max_{j≠i} R_j, 0)`, a leave-one-out baseline for the objective :math:`E[\max_j R_j]`:
    E[ĝ] is 1/N of the gradient of that objective, and not a multiple of ∇J. A tie for the best gives 0 to all.

    Args:
        batch: the completions.
        normalize: divide by the group's standard deviation + ε, as verl does, which adds a bias.
        ddof: the divisor of that variance is N − ddof.
        eps: ε.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0], lengths=[1, 2, 3], groups=["a"] * 3)
        >>> estimators.pass_at_k().advantages(batch)
        array([1., 0., 0.])
    """
    index, n_groups = batch.group_index, batch.n_groups
    alone = batch.group_sizes[index] == 1
    lead = np.maximum(batch.rewards - reduce_others(batch.rewards, index, n_groups, np.maximum, -np.inf), 0.0)
    if normalize:
        deviation = standard_deviation(batch.rewards, index, n_groups, ddof)
        lead = divide_by_deviation(lead, np.where(alone, 1.0, deviation), eps, "pass_at_k")
    return apply_singleton(lead, alone, batch.rewards, singleton)
