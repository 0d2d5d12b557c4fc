"""Cast a policy to another dtype."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from gradstats.policy.policy import Policy


def with_dtype(policy: Policy, dtype: torch.dtype) -> Policy:
    """Copy a policy with parameters of another dtype; return the policy itself where they have that dtype.

    Buffers keep their dtype, as they do when weights are loaded in that dtype: rotary frequencies rounded to bfloat16
    would define another model.
    """
    if policy.dtype == dtype:
        return policy
    model = copy.deepcopy(policy.model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return replace(policy, model=model)
