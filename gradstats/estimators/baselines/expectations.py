r"""The expectation E[ĝ], for the families of baselines for which it is known exactly.

For on-policy samples E[S_i] = 0 given all other samples. A baseline that does not depend on sample i therefore
leaves E[ĝ] = ∇J, and the mean of the whole group, in which R_i has the weight 1/N, gives (N−1)/N·∇J. A group of
one follows its ``singleton`` rule: the raw reward is unbiased, and an advantage of zero has E[ĝ] = 0.
"""

from __future__ import annotations

from gradstats.estimators.parameters import Parameters

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
