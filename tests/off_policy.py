"""An enumerated policy scored away from where its completions are drawn, on which plain RLOO points elsewhere."""

from dataclasses import dataclass

import numpy as np

from gradstats.estimators import Batch, Recipe
from gradstats.estimators.estimator import Level
from gradstats.reference import EnumeratedPolicy

#: PPO's surrogate with clips that no ratio reaches: every token weighted by its own ratio.
TOKEN_RATIOS = Recipe("rloo", ratio="token_clip(eps_low=0.99, eps_high=100)")


def turned_policy(distance: float = 0.2) -> EnumeratedPolicy:
    """Token ratios between 0.38 and 1.49 and χ² = 0.15, and yet E[RLOO] is far from ∇J; less so at less distance."""
    rng = np.random.default_rng(244)
    theta = rng.normal(scale=0.5, size=4)
    return EnumeratedPolicy(3, 4, n_prompts=2, theta=theta, old_theta=theta + distance * rng.normal(size=4), rng=144)


@dataclass(frozen=True)
class ImportanceWeighted:
    """ρ_i (R_i − b_{−i})/N with b_{−i} the ρ-weighted mean reward of the others, by a loop over completions."""

    name: str = "importance"
    label: str = "importance"
    level: Level = "sequence"
    needs: tuple[str, ...] = ("logprobs", "old_logprobs")
    across_groups: bool = False

    def expected_scale(self, group_size: int) -> float | None:
        """It is unbiased."""
        return 1.0

    def weights(self, batch: Batch) -> np.ndarray:
        """(N,)."""
        assert batch.logprobs is not None
        assert batch.old_logprobs is not None
        ratios = [
            float(np.exp(np.sum((new - old)[mask])))
            for new, old, mask in zip(batch.logprobs, batch.old_logprobs, batch.mask, strict=True)
        ]
        members: dict[object, list[int]] = {}
        for i, group in enumerate(batch.groups):
            members.setdefault(group, []).append(i)
        weights = []
        for i, group in enumerate(batch.groups):
            others = [j for j in members[group] if j != i]
            total = sum(ratios[j] for j in others)
            baseline = sum(ratios[j] * batch.rewards[j] for j in others) / total if others else 0.0
            weights.append(ratios[i] * (batch.rewards[i] - baseline) / len(members[group]))
        return np.array(weights)
