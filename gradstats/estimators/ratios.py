"""Ratios of the scored policy to the sampler, and weights of whole completions or of a few prompts at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Int

from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Level, Weighting, Wrapped


def log_ratios(batch: Batch, name: str = "the importance ratio") -> Float[np.ndarray, "n t"]:
    r"""Log ρ of each token, (N, T), 0 where masked out."""
    if batch.old_logprobs is None:
        return np.zeros(batch.mask.shape)
    batch.require(["logprobs"], name)
    assert batch.logprobs is not None
    return batch.logprobs - batch.old_logprobs


def log_mismatch(batch: Batch, name: str = "a correction") -> Float[np.ndarray, "n t"]:
    r"""Log π_prox/π_old of each token, (N, T): the trainer's policy as the step began over the engine that sampled.

    Without ``proximal_logprobs`` the step has just begun: π_prox is the scored policy, and this is log ρ.
    """
    if batch.old_logprobs is None or batch.proximal_logprobs is None:
        return log_ratios(batch, name)
    return batch.proximal_logprobs - batch.old_logprobs


def log_staleness(batch: Batch, name: str = "the importance ratio") -> Float[np.ndarray, "n t"]:
    r"""Log π/π_prox of each token, (N, T): log ρ without the mismatch, 0 where no ``proximal_logprobs`` are known."""
    return log_ratios(batch, name) - log_mismatch(batch, name)


def sequence_log_ratios(batch: Batch, name: str = "the importance ratio") -> Float[np.ndarray, "n"]:
    r"""Log ρ_i = Σ_t log ρ_{i,t} of each completion, (N,)."""
    return log_ratios(batch, name).sum(axis=1)


#: exp(709.8) is the greatest double; a product with an advantage needs some room.
LARGEST_LOG_RATIO = 700.0


def exponential(log_ratio: np.ndarray) -> np.ndarray:
    """Return ρ from log ρ, completion by completion along the first axis."""
    greatest = log_ratio.reshape(len(log_ratio), -1).max(axis=1)
    if greatest.size and greatest.max() > LARGEST_LOG_RATIO:
        row = int(np.argmax(greatest))
        raise ValueError(
            f"the ratio π/π_old of completion {row} is e^{greatest[row]:.0f}, which overflows: old_logprobs must be "
            "natural logarithms of the probabilities that these tokens were drawn with, by a policy close to the "
            "scored one"
        )
    return np.exp(log_ratio)


def chi_squared(batch: Batch) -> float:
    r"""Return the :math:`χ^2` divergence of the policies over whole completions, as the mean of :math:`(ρ_i - 1)^2`.

    Where the sampler can draw whatever the scored policy can, E[ρ] = 1 and this is E[ρ²] − 1; where it cannot, the
    missing mass counts as well. Without ``old_logprobs`` it is 0; it is infinite where a ratio overflows.
    """
    return _chi_squared(log_ratios(batch))


def _chi_squared(log_ratio: Float[np.ndarray, "n t"]) -> float:
    with np.errstate(over="ignore"):
        return float(np.mean(np.expm1(log_ratio.sum(axis=1)) ** 2))


def largest_chi_squared(batch: Batch) -> float:
    r"""Return the greatest :math:`χ^2` among scored policy, trainer's policy as the step began, and sampler."""
    if batch.proximal_logprobs is None:
        return chi_squared(batch)
    return max(map(_chi_squared, (log_ratios(batch), log_mismatch(batch), log_staleness(batch))))


#: Below this :math:`χ^2 = E[ρ_i^2] - 1` of whole completions, sampler and scorer count as one policy: rounding of
#: float32 leaves less, another checkpoint or temperature more, and bfloat16 as well over a few hundred tokens.
NEGLIGIBLE_CHI_SQUARED = 0.01


def without_negligible_ratios(batch: Batch) -> Batch:
    r"""Set every ratio of a batch to exactly 1 where :math:`χ^2` is below :data:`NEGLIGIBLE_CHI_SQUARED`.

    Rounding then neither makes the weights of a completion's tokens differ nor triggers a clip or a rejection; GSPO's
    lies at 3e-4.
    """
    if batch.old_logprobs is None or largest_chi_squared(batch) > NEGLIGIBLE_CHI_SQUARED:
        return batch
    return batch.with_fields(old_logprobs=None, proximal_logprobs=None)


class AlongCompletions(Wrapped[Weighting]):
    """A token-level estimator with constant weights along completions, which needs only the scores of completions."""

    @property
    def level(self) -> Level:
        """``"sequence"``."""
        return "sequence"

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"]:
        """Return the weight of each completion."""
        weights = self.estimator.weights(batch)
        if weights.ndim == 1:
            return weights
        first = weights[np.arange(len(weights)), batch.mask.argmax(axis=1)]
        if not np.array_equal(weights, np.where(batch.mask, first[:, None], 0.0)):
            raise ValueError(f"{self.label} weights the tokens of a completion differently: it needs scores of tokens")
        return first


def as_sequence_level(estimator: Weighting, batch: Batch) -> Weighting:
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


#: Tokens, padding included, whose weights are formed together: 32 MiB in float64.
TOKENS_AT_ONCE = 2**22


def in_blocks_of_groups(weights_of: Callable[[Batch], np.ndarray], batch: Batch) -> np.ndarray:
    """Return ``weights_of(batch)``, called on whole groups, as many at a time as :data:`TOKENS_AT_ONCE` allows.

    The values of a completion, (n,) or (n, T), may depend on its group alone.
    """
    if batch.mask.size <= TOKENS_AT_ONCE:
        return weights_of(batch)
    weights = None
    for rows in _blocks(batch):
        of_rows = weights_of(batch.select(rows))
        if weights is None:
            weights = np.empty((len(batch.rewards), *of_rows.shape[1:]), dtype=of_rows.dtype)
        weights[rows] = of_rows
    assert weights is not None
    return weights


def _blocks(batch: Batch) -> Iterator[Int[np.ndarray, " rows"]]:
    """Yield positions of the completions of consecutive groups, at least one group at a time."""
    order = np.argsort(batch.group_index, kind="stable")
    ends = np.cumsum(batch.group_sizes)
    most = TOKENS_AT_ONCE // batch.mask.shape[1]
    start = 0
    while start < len(order):
        within = int(np.searchsorted(ends, start + most, side="right"))
        stop = int(ends[max(within - 1, int(np.searchsorted(ends, start, side="right")))])
        yield order[start:stop]
        start = stop
