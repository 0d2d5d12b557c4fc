r"""How token terms are aggregated: the factor of each completion's tokens in the gradient of its group.

A batch's gradient is the mean over its groups. ``scope="group"`` normalises each group by itself, as the
papers write it; ``scope="batch"`` by the whole batch, as trainers do, which ties the groups together.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.expectations import is_batch_level
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.parameters import FINITE, Parameters
from gradstats.estimators.recipes.components import component


@component("aggregation", SEQUENCE_SUM)
def sequence_sum(batch: Batch) -> Float[np.ndarray, "n"]:
    """Return 1/N Σ_i Σ_t, with N the completions of the group."""
    return 1.0 / batch.group_sizes[batch.group_index]


@component("aggregation", "sequence_mean")
def sequence_mean(batch: Batch) -> Float[np.ndarray, "n"]:
    """Return 1/N Σ_i 1/T_i Σ_t. GRPO, 2402.03300."""
    return 1.0 / (batch.group_sizes[batch.group_index] * batch.lengths)


@component("aggregation", "token_mean", across_groups=is_batch_level)
def token_mean(batch: Batch, scope: str = "group") -> Float[np.ndarray, "n"]:
    """Return 1/ΣT Σ_i Σ_t. DAPO, 2503.14476.

    Args:
        batch: the completions.
        scope: ``"group"`` sums T over the group; ``"batch"`` over the batch, as verl and TRL do.
    """
    if scope == "batch":
        return np.full(batch.rewards.size, batch.n_groups / batch.lengths.sum())
    totals = np.bincount(batch.group_index, weights=batch.lengths, minlength=batch.n_groups)
    return 1.0 / totals[batch.group_index]


def _with_its_length(parameters: Parameters) -> str:
    return "constant" if parameters["max_tokens"] is None else f"constant(max_tokens={parameters['max_tokens']:g})"


@component("aggregation", "constant", unit=_with_its_length)
def constant(batch: Batch, max_tokens: float | None = None) -> Float[np.ndarray, "n"]:
    """Return 1/(N·L) Σ_i Σ_t, with one L for all. Dr. GRPO, 2503.20783.

    Args:
        batch: the completions.
        max_tokens: L, the cap on the completion's length; without it the width T of the batch, as in verl.
            It changes only the unit.
    """
    width = batch.mask.shape[1] if max_tokens is None else max_tokens
    return 1.0 / (batch.group_sizes[batch.group_index] * width)


@component("aggregation", "delta_l", rules={"alpha": FINITE})
def delta_l(batch: Batch, alpha: float = 1.0) -> Float[np.ndarray, "n"]:
    """Return T_i^{−α}/Σ_j T_j^{−α}·Σ_t over the completions of the group: ΔL normalisation, 2509.07558.

    The weights of least variance where that of a completion's gradient grows like T^α.

    Args:
        batch: the completions.
        alpha: α; 0 is the plain mean over completions.
    """
    shares = batch.lengths.astype(np.float64) ** -alpha
    totals = np.bincount(batch.group_index, weights=shares, minlength=batch.n_groups)
    return shares / totals[batch.group_index]
