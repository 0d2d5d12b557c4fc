"""Estimators: the definition behind a name, the object with its parameters, and the protocol shared with recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.parameters import Parameters
from gradstats.estimators.parametrised import Parametrised

Level = Literal["sequence", "token"]

# The unit of a plain baseline: rewards times the scores summed over the tokens of a completion.
SEQUENCE_SUM = "sequence_sum"


@dataclass(frozen=True)
class Definition:
    """A named estimator, whatever its parameters.

    Attributes:
        name: canonical name.
        function: ``Batch`` (and parameters) → advantages, (N,) or (N, T).
        baseline: what is subtracted, in words, for the table.
        scale: what it is divided by, in words.
        bias: whether E[ĝ] is the true gradient ∇J, a multiple of it, or biased in direction, in words.
        source: paper or code.
        level: "sequence" for (N,) advantages, "token" for (N, T).
        needs: Batch fields that are required, given the parameters.
        across_groups: whether it is batch-level, that is, uses other groups than the prompt's, given the parameters.
        expected_scale: c with E[ĝ] = c·∇J, given the group size and the parameters; None where unknown.
        checked: whether values are checked against :data:`gradstats.estimators.parameters.RULES`.
        unit: what the gradient is measured in, given the parameters: ``"sequence_sum"``, followed by what the
            advantages are divided by, as in ``"sequence_sum / group_std"``.
        display: what figures and tables of a paper call it; empty: its label.
    """

    name: str
    function: Callable[..., np.ndarray]
    baseline: str
    scale: str
    bias: str
    source: str
    level: Level
    needs: Callable[[Parameters], tuple[str, ...]]
    across_groups: Callable[[Parameters], bool]
    expected_scale: Callable[[int, Parameters], float | None]
    checked: bool
    unit: Callable[[Parameters], str] = lambda parameters: SEQUENCE_SUM
    display: str = ""


class Estimator(Parametrised[Definition]):
    r"""One estimator with its parameters: rewards in, weights of the scores out.

    On group m of :math:`N_m` completions its gradient is :math:`g_m = \sum_{i \in m} w_i S_i` with
    ``w = weights(batch)`` (:math:`\sum_{i,t} w_{i,t} s_{i,t}` at token level): the ``sequence_sum`` aggregation,
    :math:`\frac1N\sum_i\sum_t`. The gradient of a batch is the mean over its groups.

    Attributes:
        definition: what the name stands for.
        parameters: every parameter, defaults included.
        written: the label it was found by; None for one that was built from its factory.
    """

    @property
    def level(self) -> Level:
        """``"sequence"``: advantages are (N,), constant along a completion. ``"token"``: (N, T)."""
        return self.definition.level

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that are required."""
        return self.definition.needs(self.parameters)

    def expected_scale(self, group_size: int) -> float | None:
        """Return the factor c in E[ĝ] = c·∇J for on-policy samples in groups of this size, where it is known exactly.

        Args:
            group_size: completions per group.

        Returns:
            1.0 for an unbiased estimator, (N−1)/N for the own-sample mean, None where c is unknown.
        """
        return self.definition.expected_scale(group_size, self.parameters)

    def advantages(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """Return the advantage of each completion or of each token.

        Args:
            batch: the completions.

        Returns:
            (N,) at sequence level; (N, T) at token level, 0 where masked out.

        Raises:
            ValueError: when the batch lacks a field, or a user's function returns another shape.
        """
        batch.require(self.needs, self)
        advantages = np.asarray(self.definition.function(batch, **self.parameters), dtype=np.float64)
        expected = batch.rewards.shape if self.level == "sequence" else batch.mask.shape
        if advantages.shape != expected:
            raise ValueError(
                f"{self.label} returned advantages of shape {advantages.shape}, but a {self.level}-level "
                f"estimator returns {expected} here: register it with the other level, or correct it"
            )
        return advantages if self.level == "sequence" else np.where(batch.mask, advantages, 0.0)

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """Return the advantages divided by the number of completions of the group, in the same shape."""
        advantages = self.advantages(batch)
        sizes = batch.group_sizes[batch.group_index]
        return advantages / (sizes if advantages.ndim == 1 else sizes[:, None])


@runtime_checkable
class Weighting(Protocol):
    """Anything that weights scores: an :class:`Estimator`, or a recipe."""

    @property
    def name(self) -> str:
        """The name, without parameters."""
        ...

    @property
    def label(self) -> str:
        """The name with its parameters."""
        ...

    @property
    def level(self) -> Level:
        """``"token"`` where weights may differ between the tokens of a completion, else ``"sequence"``."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that are required."""
        ...

    @property
    def across_groups(self) -> bool:
        """Whether a group's weights depend on other groups of the batch."""
        ...

    def expected_scale(self, group_size: int) -> float | None:
        """Return the factor c in E[ĝ] = c·∇J, where it is known."""
        ...

    def weights(self, batch: Batch) -> np.ndarray:
        """Return the weights of the scores in the gradient of each group."""
        ...


def composition_of(estimator: Weighting) -> str:
    """Return what an estimator is composed of; its label where it does not state that."""
    return getattr(estimator, "composition", estimator.label)


def unit_of(estimator: Weighting) -> str:
    """Return the unit of an estimator's gradient; an object that states no ``unit`` is taken as a plain sum."""
    return getattr(estimator, "unit", SEQUENCE_SUM)
