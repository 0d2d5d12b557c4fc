r"""What E[ĝ] is, for the families where it is known exactly.

For on-policy samples E[S_i] = 0 given everything else, so a baseline that does not depend on sample i leaves
E[ĝ] = ∇J, and the own-sample mean, which holds a share 1/N of the sample's own reward, gives (N−1)/N of it.
A group of one follows the rule for singletons: the raw reward is unbiased, advantage zero has E[ĝ] = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRUE_GRADIENT = "E[ĝ] = ∇J"
MEAN_BIAS = "own: E[ĝ] = (N−1)/N·∇J; LOO: ∇J"
WEIGHTED_BIAS = "own: neither (shrunk and turned); LOO: ∇J"


def unbiased(group_size: int, parameters: Mapping[str, Any]) -> float | None:
    """1 at every group size; 0, 1 or unknown for a group of one with a ``singleton`` rule."""
    if group_size == 1 and parameters.get("scope", "group") == "group" and "singleton" in parameters:
        return {"zero": 0.0, "reward": 1.0, "nan": None}[parameters["singleton"]]
    return 1.0


def mean_scale(group_size: int, parameters: Mapping[str, Any]) -> float | None:
    """(N−1)/N for the own-sample mean of a group, 1 for the leave-one-out mean."""
    if parameters["loo"] or group_size == 1:
        return unbiased(group_size, parameters)
    return (group_size - 1) / group_size


def unbiased_if_loo(group_size: int, parameters: Mapping[str, Any]) -> float | None:
    """1 for the leave-one-out version, unknown for the own-sample one (except a group of one)."""
    if parameters["loo"] or (group_size == 1 and parameters.get("scope", "group") == "group"):
        return unbiased(group_size, parameters)
    return None


def looks_across_groups(parameters: Mapping[str, Any]) -> bool:
    """Whether ``scope`` is the batch."""
    return parameters["scope"] == "batch"
