"""What statistics need of a measurement, and how many equally weighted items a weighted sum is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from gradstats.estimators.batch import CompletionTable, MeasuredCompletions, checked_groups
from gradstats.stats.jackknife import Statistic
from gradstats.system.lazy_imports import pd


@runtime_checkable
class Completions(CompletionTable, Protocol):
    """The columns of a table of completions that statistics read; see :class:`gradstats.Rollouts`."""

    @property
    def sample_id(self) -> np.ndarray:
        """(N,) its number within the prompt."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """(N,) its number of counted tokens."""
        ...

    @property
    def masks(self) -> list[np.ndarray]:
        """For each completion, which of its tokens count."""
        ...

    @property
    def truncated(self) -> np.ndarray:
        """(N,) whether it was cut off at the length cap."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How the completions were sampled."""
        ...


@runtime_checkable
class MeasuredRollouts(MeasuredCompletions, Protocol):
    """Anything that knows which completions it measured."""

    @property
    def rollouts(self) -> Completions:
        """The N completions."""
        ...


@runtime_checkable
class MeasuredNorms(MeasuredRollouts, Protocol):
    """Squared norms of the scores of whole completions."""

    @property
    def lengths(self) -> np.ndarray:
        """(N,) number of counted tokens."""
        ...

    @property
    def sq_norms(self) -> np.ndarray:
        """(N,) ‖S_i‖²."""
        ...


@runtime_checkable
class MeasuredBlocks(MeasuredNorms, Protocol):
    """Squared norms by block of parameters."""

    @property
    def sq_norms_by_block(self) -> pd.DataFrame:
        """(N, blocks) squared norms, which sum to ‖S_i‖²."""
        ...


@runtime_checkable
class MeasuredLogprobs(MeasuredRollouts, Protocol):
    """The scored distribution at every token, from a forward pass."""

    @property
    def logprobs(self) -> list[np.ndarray]:
        """For each completion, log π of its tokens."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How it was measured."""
        ...


@runtime_checkable
class MeasuredEntropies(MeasuredLogprobs, Protocol):
    """The same with entropies."""

    @property
    def entropy(self) -> list[np.ndarray]:
        """For each completion, the entropy of π at its tokens."""
        ...


@runtime_checkable
class MeasuredPolicy(MeasuredEntropies, Protocol):
    """What the on-policy check needs."""

    @property
    def sq_norms(self) -> np.ndarray:
        """(N,) ‖S_i‖²."""
        ...

    @property
    def sketches(self) -> np.ndarray | None:
        """(N, D) random projections of the S_i."""
        ...


@runtime_checkable
class MeasuredSampler(MeasuredLogprobs, Protocol):
    """Log-probabilities under the sampler as well."""

    @property
    def old_logprobs(self) -> list[np.ndarray] | None:
        """For each completion, what the sampler recorded of its tokens."""
        ...


@runtime_checkable
class MeasuredGradients(MeasuredRollouts, Protocol):
    """Random projections of the scores of whole completions."""

    @property
    def sketches(self) -> np.ndarray | None:
        """(N, D) random projections of the S_i."""
        ...


def effective_sample_size(weights: npt.ArrayLike) -> float:
    r"""Return :math:`(\sum_i w_i)²/\sum_i w_i²`: n of equal weights, 1 where one holds all; NaN where all are 0.

    Args:
        weights: (n,) w, such as importance ratios or squared norms; they may be in any unit.

    Example:
        >>> from gradstats.stats.protocols import effective_sample_size
        >>> effective_sample_size([1.0, 1.0, 1.0, 1.0]), effective_sample_size([3.0, 1.0])
        (4.0, 1.6)
    """
    values = np.asarray(weights, dtype=np.float64)
    squares = float(values @ values)
    return float(values.sum()) ** 2 / squares if squares > 0 else np.nan


def effective_sample_size_of_means(first: Statistic, second: Statistic, n: int) -> Statistic:
    r"""Return :math:`n\,\bar w²/\overline{w²}`, which is the same number, with its replicates."""
    return (first * first / second).scaled(float(n))


def prompt_numbers(groups: npt.ArrayLike) -> Int[np.ndarray, " n"]:
    """Return the prompt of each completion, numbered from 0 in the order of the labels; a missing one is refused."""
    return np.unique(checked_groups(groups, len(np.atleast_1d(groups))), return_inverse=True)[1]
