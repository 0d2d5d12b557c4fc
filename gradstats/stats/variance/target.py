"""What bias and cosine are judged against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradstats import estimators as families
from gradstats.estimators import Batch
from gradstats.stats.on_policy.check import departures_of
from gradstats.stats.variance.pooled_completions import PooledCompletions, Weighted

# Ratios of whole completions that are worth less than this share of the completions are another policy's; rounding
# between two engines leaves more.
LEAST_SHARE = 0.95


@dataclass(frozen=True)
class Target:
    """An estimator whose expected gradient is that of the objective.

    Attributes:
        label: of the estimator.
        weighted: its weights on the completions of a comparison, and their moments.
    """

    label: str
    weighted: Weighted


def on_policy_target(pool: PooledCompletions) -> Target:
    """`rloo`, which is unbiased where completions were drawn from the scored policy.

    A group of one completion has no baseline, and `rloo` would leave it out; here it keeps its reward, so that the
    expectation over all prompts is that of the objective.
    """
    sizes = pool.groups.sizes
    label = "reinforce" if sizes.max() == 1 else "rloo" if sizes.min() > 1 else "rloo(singleton=reward)"
    estimator = families.get(label)
    return Target(estimator.label, pool.local(estimator))


def drawn_from_the_scored_policy(
    batch: Batch, sampler: Mapping[str, object] | None = None, scorer_temperature: float | None = None
) -> bool:
    r"""Whether sampler and scorer agree, as far as it is known.

    They do not where recorded settings differ, or where the ratios of whole completions,
    :math:`ρ_i = π(y_i)/π_{old}(y_i)`, are not nearly 1: where
    :math:`(\sum_i ρ_i)²/\sum_i ρ_i²` falls below 95 % of the completions.

    Args:
        batch: the completions, with ``logprobs`` and ``old_logprobs`` where these are known.
        sampler: recorded settings of the sampler.
        scorer_temperature: of the scored distribution, where it is recorded.
    """
    if departures_of(sampler or {}, scorer_temperature):
        return False
    if batch.logprobs is None or batch.old_logprobs is None:
        return True
    log_ratios = np.where(batch.mask, batch.logprobs - batch.old_logprobs, 0.0).sum(axis=1)
    ratios = np.exp(log_ratios - log_ratios.max())
    return bool(ratios.sum() ** 2 >= LEAST_SHARE * len(ratios) * np.sum(ratios**2))
