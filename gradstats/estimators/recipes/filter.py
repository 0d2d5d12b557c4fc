r"""Which completions count: DAPO's dynamic sampling drops groups whose rewards are all equal, and its overlong
filtering completions that were cut off.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from gradstats.estimators.baselines.grouping import reduce_by_group
from gradstats.estimators.batch import Batch
from gradstats.estimators.recipes.components import component


@component("filter", "none")
def none(batch: Batch) -> Bool[np.ndarray, "n"]:
    """Return every completion."""
    return np.ones(batch.rewards.size, dtype=bool)


@component("filter", "dynamic_sampling")
def dynamic_sampling(batch: Batch) -> Bool[np.ndarray, "n"]:
    """Keep groups whose rewards are not all equal. DAPO, 2503.14476, draws other prompts for the rest."""
    return _differing(batch.rewards, batch)[batch.group_index]


@component("filter", "mask_truncated", needs=("truncated",))
def mask_truncated(batch: Batch, dynamic_sampling: bool = False, rescale: bool = False) -> Bool[np.ndarray, "n"]:
    """Drop completions that were cut off at the cap of new tokens: DAPO's overlong filtering, 2503.14476, section 3.4.

    Their rewards stay in the baselines of the others, as in TRL's ``mask_truncated_completions``. The gradient lacks
    the contribution of the longest completions and is therefore biased.

    Args:
        batch: the completions, with ``truncated``.
        dynamic_sampling: also drop groups whose rewards are all equal, as DAPO does.
        rescale: whether the aggregation's denominators count only the kept completions; by default they count all.
    """
    assert batch.truncated is not None
    kept = ~batch.truncated
    return kept & _differing(batch.rewards, batch)[batch.group_index] if dynamic_sampling else kept


def _differing(rewards: Float[np.ndarray, "n"], batch: Batch) -> Bool[np.ndarray, "groups"]:
    greatest = reduce_by_group(rewards, batch.group_index, batch.n_groups, np.maximum)
    least = reduce_by_group(rewards, batch.group_index, batch.n_groups, np.minimum)
    return greatest > least
