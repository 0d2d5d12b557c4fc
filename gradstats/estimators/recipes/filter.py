r"""Which groups count: DAPO's dynamic sampling drops those whose rewards are all equal."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from gradstats.estimators.baselines.grouping import reduce_by_group
from gradstats.estimators.batch import Batch
from gradstats.estimators.recipes.components import component


@component("filter", "none")
def none(batch: Batch) -> Bool[np.ndarray, "groups"]:
    """Every group."""
    return np.ones(batch.n_groups, dtype=bool)


@component("filter", "dynamic_sampling")
def dynamic_sampling(batch: Batch) -> Bool[np.ndarray, "groups"]:
    """Keep groups whose rewards are not all equal. DAPO, 2503.14476, draws other prompts for the rest."""
    greatest = reduce_by_group(batch.rewards, batch.group_index, batch.n_groups, np.maximum)
    least = reduce_by_group(batch.rewards, batch.group_index, batch.n_groups, np.minimum)
    return greatest > least
