"""What baselines are built from: sums over groups, weighted means, returns of tokens, and the exact E[ĝ]."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Parameters
from gradstats.estimators.ratios import sequence_log_ratios


def reference_sets(batch: Batch, scope: str) -> tuple[Int[np.ndarray, "n"], int]:
    """Return the set of each completion's baseline, its group or, with ``scope="batch"``, the batch; and how many."""
    if scope == "batch":
        return np.zeros(batch.rewards.size, dtype=np.int64), 1
    return batch.group_index, batch.n_groups


def reduce_by_group(
    values: Float[np.ndarray, "n ..."],
    index: Int[np.ndarray, "n"],
    n_groups: int,
    operation: np.ufunc | None = None,
) -> Float[np.ndarray, "groups ..."]:
    """Reduce the rows of each group with ``operation``, by default a sum; no group may be empty."""
    operation = operation or np.add
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(n_groups))
    return operation.reduceat(values[order], starts, axis=0)


def reduce_others(
    values: Float[np.ndarray, "n ..."],
    index: Int[np.ndarray, "n"],
    n_groups: int,
    operation: np.ufunc | None = None,
    identity: float = 0.0,
) -> Float[np.ndarray, "n ..."]:
    """Reduce, for each row, the other rows of its group; ``identity`` where it is alone.

    The rows before and the rows after it are accumulated separately: subtracting the row itself from the total
    would lose digits where that row dominates.
    """
    operation = operation or np.add
    if n_groups == 1:
        index, position, sizes = np.zeros(len(values), dtype=np.int64), np.arange(len(values)), np.array([len(values)])
    else:
        sizes = np.bincount(index, minlength=n_groups)
        order = np.argsort(index, kind="stable")
        position = np.empty(index.size, dtype=np.int64)
        position[order] = np.arange(index.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # one column of identity on either side, so that a shift by one makes the accumulation exclusive
    table = np.full((n_groups, int(sizes.max()) + 2, *values.shape[1:]), identity)
    table[index, position + 1] = values
    before = operation.accumulate(table, axis=1)
    after = operation.accumulate(table[:, ::-1], axis=1)[:, ::-1]
    return operation(before[index, position], after[index, position + 2])


def first_of_group(
    values: Float[np.ndarray, "n"], index: Int[np.ndarray, "n"], n_groups: int
) -> Float[np.ndarray, "n"]:
    """For each completion, the value of the first completion of its group.

    A baseline shifts with the rewards, so subtracting this value from all rewards of a group changes no
    advantage. It makes the advantages of a group whose rewards are all equal exactly 0, whatever the rounding.
    """
    first = np.empty(n_groups)
    first[index[::-1]] = values[::-1]
    return first[index]


def weighted_mean_advantages(
    batch: Batch,
    weights: Float[np.ndarray, "n"],
    loo: bool,
    scope: str,
    singleton: str,
    ratio_power: int = 0,
) -> Float[np.ndarray, "n"]:
    r"""Return A_i = R_i − Σ_j w_j R_j / Σ_j w_j over the completion's group or batch, without j = i when ``loo``.

    The weights, non-negative, are multiplied by a power of the completion's ratio π/π_old; NaN, with a warning, where
    they sum to zero. A completion beside which no other has a counted token, nor a weight, counts as alone.
    """
    index, n_sets = reference_sets(batch, scope)
    if ratio_power:
        weights = weights * relative_ratios(batch, index, n_sets, ratio_power)
    centred = batch.rewards - first_of_group(batch.rewards, index, n_sets)
    if loo:
        numerator = reduce_others(weights * centred, index, n_sets)
        denominator = reduce_others(weights, index, n_sets)
    else:
        numerator = reduce_by_group(weights * centred, index, n_sets)[index]
        denominator = reduce_by_group(weights, index, n_sets)[index]
    alone = np.bincount(index, minlength=n_sets)[index] == 1
    counted = batch.lengths > 0
    if not counted.all():
        alone |= (denominator == 0) & (np.bincount(index, weights=counted, minlength=n_sets)[index] <= 1)
    undefined = (denominator == 0) & ~alone & counted
    if undefined.any():
        warnings.warn(
            f"the baseline of {int(undefined.sum())} completions is NaN: all weights of its average are zero; "
            "check the lengths or norms that weight it",
            RuntimeWarning,
            stacklevel=2,
        )
    baseline = np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)
    return apply_singleton(centred - baseline, alone, batch.rewards, singleton)


def apply_singleton(
    advantages: Float[np.ndarray, "n"], alone: np.ndarray, rewards: Float[np.ndarray, "n"], singleton: str
) -> Float[np.ndarray, "n"]:
    """Set the advantages of completions that are alone in their set by the ``singleton`` rule."""
    rule = {"zero": np.zeros_like(rewards), "reward": rewards, "nan": np.full_like(rewards, np.nan)}
    return np.where(alone, rule[singleton], advantages)


def relative_ratios(batch: Batch, index: Int[np.ndarray, "n"], n_sets: int, power: int) -> Float[np.ndarray, "n"]:
    """Return a power of each completion's ratio π/π_old, divided by the greatest of its set."""
    log_weights = power * sequence_log_ratios(batch)
    return np.exp(log_weights - reduce_by_group(log_weights, index, n_sets, np.maximum)[index])


def _packing_order(mask: Bool[np.ndarray, "n t"]) -> Int[np.ndarray, "n t"]:
    """For each row, the indices of its counted columns followed by the others, each in ascending order."""
    return np.argsort(~mask, axis=1, kind="stable")


def pack(values: np.ndarray, mask: Bool[np.ndarray, "n t"]) -> np.ndarray:
    """Move the counted entries of each row to its left; masked-out entries follow."""
    return np.take_along_axis(values, _packing_order(mask), axis=1)


def unpack(packed: np.ndarray, mask: Bool[np.ndarray, "n t"]) -> np.ndarray:
    """Undo :func:`pack`."""
    values = np.empty_like(packed)
    np.put_along_axis(values, _packing_order(mask), packed, axis=1)
    return values


def packed_rewards(batch: Batch) -> Float[np.ndarray, "n t"]:
    """Return r_{i,t} in packed order; without ``token_rewards``, R_i on the last counted token."""
    if batch.token_rewards is not None:
        return pack(batch.token_rewards, batch.mask)
    rewards = np.zeros(batch.mask.shape)
    rewards[np.arange(batch.lengths.size), batch.lengths - 1] = batch.rewards
    return rewards


def discounted_sums(values: Float[np.ndarray, "n t"], discount: float) -> Float[np.ndarray, "n t"]:
    """Return Σ_{u≥t} discount^{u−t} · values_u along each row."""
    if discount == 0:
        return values
    if discount == 1:
        return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    sums = values.copy()
    for column in range(values.shape[1] - 2, -1, -1):
        sums[:, column] += discount * sums[:, column + 1]
    return sums


def rewards_to_go(batch: Batch, gamma: float = 1.0) -> Float[np.ndarray, "n t"]:
    r"""Return G_{i,t} = Σ_{u≥t} γ^{u−t} r_{i,u} over counted tokens, 0 where masked out."""
    if batch.token_rewards is None and gamma == 1:
        return np.where(batch.mask, batch.rewards[:, None], 0.0)
    sums = discounted_sums(packed_rewards(batch), gamma)
    return np.where(batch.mask, unpack(sums, batch.mask), 0.0)


# The expectation E[ĝ], for the families of baselines for which it is known exactly. For on-policy samples E[S_i] = 0
# given all other samples: a baseline that does not depend on sample i leaves E[ĝ] = ∇J, and the mean of the whole
# group, in which R_i has the weight 1/N, gives (N−1)/N·∇J. A group of one follows its ``singleton`` rule: the raw
# reward is unbiased, and an advantage of zero has E[ĝ] = 0.
TRUE_GRADIENT = "E[ĝ] = ∇J"
MEAN_BIAS = "own sample: E[ĝ] = (N−1)/N·∇J; LOO: ∇J"
WEIGHTED_BIAS = "own sample: biased in scale and direction; LOO: ∇J"


def unbiased(group_size: int, parameters: Parameters) -> float | None:
    """Return 1 at every group size; 0, 1 or unknown for a group of one with a ``singleton`` rule."""
    if group_size == 1 and parameters.get("scope", "group") == "group" and "singleton" in parameters:
        return {"zero": 0.0, "reward": 1.0, "nan": None}[parameters["singleton"]]
    return 1.0


def mean_scale(group_size: int, parameters: Parameters) -> float | None:
    """(N−1)/N for the mean of the whole group, 1 for the leave-one-out mean; unknown for one weighted by ratios."""
    if parameters["loo"] or group_size == 1:
        return unbiased(group_size, parameters)
    if parameters.get("off_policy"):
        return None
    return (group_size - 1) / group_size


def unbiased_if_loo(group_size: int, parameters: Parameters) -> float | None:
    """Return 1 for the leave-one-out version; unknown (None) with the own sample, except for a group of one."""
    if parameters["loo"] or (group_size == 1 and parameters.get("scope", "group") == "group"):
        return unbiased(group_size, parameters)
    return None


def is_batch_level(parameters: Parameters) -> bool:
    """Return whether the baseline is taken over the whole batch."""
    return parameters["scope"] == "batch"
