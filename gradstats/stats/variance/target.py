"""What bias and cosine are judged against."""

from __future__ import annotations

from dataclasses import dataclass

from gradstats import estimators as families
from gradstats.stats.variance.pooled_completions import PooledCompletions, Weighted


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

    Groups of one completion have no baseline: there it is `reinforce`.
    """
    estimator = families.get("rloo" if pool.groups.sizes.max() > 1 else "reinforce")
    return Target(estimator.label, pool.local(estimator))
