r"""The length exponent of each group's weights: a number, or fitted on the other groups."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gradstats.estimators.baselines.grouping import reduce_by_group, reduce_others
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Estimator, Level, Weighting, composition_of, unit_of

#: The value of ``alpha`` that stands for the exponent within prompts, fitted on the other groups.
WITHIN_PROMPT = "within_prompt"
#: The column of a batch that holds exponents fitted elsewhere, such as on all prompts of a measurement.
FITTED_ELSEWHERE = "exponent_of_other_prompts"


def length_exponents(batch: Batch, alpha: float | str) -> Float[np.ndarray, "n"]:
    """Return the exponent α with which each completion's group is weighted.

    Args:
        batch: the completions.
        alpha: a number, or ``"within_prompt"``: that of :func:`exponents_of_others`, or of the batch's column
            ``exponent_of_other_prompts`` where it has one.
    """
    if alpha != WITHIN_PROMPT:
        return np.full(batch.rewards.size, float(alpha))
    if FITTED_ELSEWHERE in batch.columns:
        return batch.columns[FITTED_ELSEWHERE]
    return exponents_of_others(batch)


def exponents_of_others(batch: Batch) -> Float[np.ndarray, "n"]:
    r"""Return, for each completion, the within-prompt exponent of all groups but its own.

    With :math:`x, y` the deviations of log T and log‖S‖² from their means over a group,
    :math:`2α_m = \sum_{k≠m}\sum_{i∈k} x_i y_i / \sum_{k≠m}\sum_{i∈k} x_i²`: the line with fixed effects of the prompts,
    without the group's own completions, so that the weights are independent of these and a leave-one-out mean stays
    unbiased. Completions with ‖S‖ = 0 take no part. Groups of one completion, or of one length, need no exponent and
    get 0. NaN, with a warning, where no other group has completions of different lengths.

    Args:
        batch: the completions, with ``sq_norms``.
    """
    assert batch.sq_norms is not None
    known, index = batch.sq_norms > 0, batch.group_index
    x, y = (_deviations(values, index, known, batch.n_groups) for values in _logarithms(batch, known))
    squares = np.bincount(index, weights=x * x, minlength=batch.n_groups)
    products = np.bincount(index, weights=x * y, minlength=batch.n_groups)
    one_set = np.zeros(batch.n_groups, dtype=np.int64)
    squares, products = (reduce_others(sums, one_set, 1) for sums in (squares, products))
    exponents = np.divide(products, 2.0 * squares, out=np.full(batch.n_groups, np.nan), where=squares > 0)
    lengths = batch.lengths.astype(np.float64)
    shortest, longest = (
        reduce_by_group(lengths, index, batch.n_groups, operation) for operation in (np.minimum, np.maximum)
    )
    exponents[shortest == longest] = 0.0
    if np.isnan(exponents).any():
        warnings.warn(
            f"the exponent within prompts of {int(np.isnan(exponents).sum())} groups is NaN: no other group has "
            "completions of different lengths, so measure more completions per prompt, or give alpha as a number",
            RuntimeWarning,
            stacklevel=2,
        )
    return exponents[index]


def fits_exponents(estimator: Weighting) -> bool:
    """Return whether an estimator, or a recipe's advantage, weights by exponents that are fitted on other prompts."""
    advantage = getattr(estimator, "advantage", estimator)
    return isinstance(advantage, Estimator) and advantage.parameters.get("alpha") == WITHIN_PROMPT


@dataclass(frozen=True)
class GivenExponents:
    """An estimator whose exponents were fitted beforehand, so that no group depends on the others of its batch.

    Attributes:
        estimator: the estimator; batches have the column ``exponent_of_other_prompts``.
    """

    estimator: Estimator

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
        """The estimator's level."""
        return self.estimator.level

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that the estimator requires."""
        return self.estimator.needs

    @property
    def across_groups(self) -> bool:
        """``False``."""
        return False

    @property
    def unit(self) -> str:
        """The estimator's unit."""
        return unit_of(self.estimator)

    def expected_scale(self, group_size: int) -> float | None:
        """Return the estimator's factor c in E[ĝ] = c·∇J."""
        return self.estimator.expected_scale(group_size)

    def weights(self, batch: Batch) -> np.ndarray:
        """Return the estimator's weights."""
        return self.estimator.weights(batch)


def _logarithms(batch: Batch, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    assert batch.sq_norms is not None
    return np.log(batch.lengths), np.log(np.where(known, batch.sq_norms, 1.0))


def _deviations(values: np.ndarray, index: Int[np.ndarray, "n"], known: np.ndarray, n_groups: int) -> np.ndarray:
    """Return values less the mean of their group's known ones; 0 where a value is not known."""
    counts = np.maximum(np.bincount(index, weights=known, minlength=n_groups), 1.0)
    means = np.bincount(index, weights=known * values, minlength=n_groups) / counts
    return np.where(known, values - means[index], 0.0)
