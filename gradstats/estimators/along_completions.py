"""Token-level estimators whose weights are constant along each completion of a given batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Level, Weighting, composition_of, unit_of


@dataclass(frozen=True)
class AlongCompletions:
    """A token-level estimator used at the level of completions, which needs only the scores of completions.

    Attributes:
        estimator: an estimator whose weights are constant along each completion.
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
    def composition(self) -> str:
        """What the estimator is composed of."""
        return composition_of(self.estimator)

    @property
    def level(self) -> Level:
        """``"sequence"``."""
        return "sequence"

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that the estimator requires."""
        return self.estimator.needs

    @property
    def across_groups(self) -> bool:
        """Whether the estimator is batch-level."""
        return self.estimator.across_groups

    @property
    def unit(self) -> str:
        """The estimator's unit."""
        return unit_of(self.estimator)

    def expected_scale(self, group_size: int) -> float | None:
        """Return the estimator's factor c in E[ĝ] = c·∇J."""
        return self.estimator.expected_scale(group_size)

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"]:
        """Return the weight of each completion.

        Raises:
            ValueError: when the weights differ between the tokens of a completion.
        """
        weights = self.estimator.weights(batch)
        if weights.ndim == 1:
            return weights
        first = weights[np.arange(len(weights)), batch.mask.argmax(axis=1)]
        if not np.array_equal(weights, np.where(batch.mask, first[:, None], 0.0)):
            raise ValueError(f"{self.label} weights the tokens of a completion differently: it needs scores of tokens")
        return first


def along_completions(estimator: Weighting, batch: Batch) -> Weighting:
    """Return the estimator at the level of completions where its weights on this batch allow it, else unchanged.

    ReMax with a terminal reward is an example: its baseline is one number per prompt.
    """
    if estimator.level != "token" or any(not batch.has(need) for need in estimator.needs):
        return estimator
    candidate = AlongCompletions(estimator)
    try:
        candidate.weights(batch)
    except ValueError:
        return estimator
    return candidate
