"""Token-level estimators whose weights are one per completion on the rewards at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Level, Weighting, unit_of


@dataclass(frozen=True)
class AlongCompletions:
    """A token-level estimator taken at the level of completions, which needs the scores of completions alone.

    Attributes:
        estimator: one whose weights do not differ between the tokens of a completion.
    """

    estimator: Weighting

    @property
    def name(self) -> str:
        """The estimator's name."""
        return self.estimator.name

    @property
    def label(self) -> str:
        """The estimator's label."""
        return self.estimator.label

    @property
    def level(self) -> Level:
        """Completions."""
        return "sequence"

    @property
    def needs(self) -> tuple[str, ...]:
        """What the estimator needs."""
        return self.estimator.needs

    @property
    def across_groups(self) -> bool:
        """Whether the estimator looks across groups."""
        return self.estimator.across_groups

    @property
    def unit(self) -> str:
        """The estimator's unit."""
        return unit_of(self.estimator)

    def expected_scale(self, group_size: int) -> float | None:
        """The estimator's."""
        return self.estimator.expected_scale(group_size)

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"]:
        """The weight of each completion.

        Raises:
            ValueError: when the weights differ along a completion after all.
        """
        weights = self.estimator.weights(batch)
        first = weights[np.arange(len(weights)), batch.mask.argmax(axis=1)]
        if not np.array_equal(weights, np.where(batch.mask, first[:, None], 0.0)):
            raise ValueError(f"{self.label} weights the tokens of a completion differently: it needs scores of tokens")
        return first


def along_completions(estimator: Weighting, batch: Batch) -> Weighting:
    """The estimator at the level of completions where its weights on this batch allow it, else as it is.

    ReMax with a terminal reward is one: its baseline is a number of the prompt.
    """
    if estimator.level != "token" or any(getattr(batch, need) is None for need in estimator.needs):
        return estimator
    candidate = AlongCompletions(estimator)
    try:
        candidate.weights(batch)
    except ValueError:
        return estimator
    return candidate
