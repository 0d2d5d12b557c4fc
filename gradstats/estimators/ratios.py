r"""Ratios of the scored policy to the policy that sampled: of a token, :math:`ρ_t = π(y_t)/π_{old}(y_t)`, and of a
completion, :math:`ρ_i = \prod_t ρ_{i,t}`.

A batch without ``old_logprobs`` is taken as drawn from the scored policy, with every ratio 1.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.batch import Batch

#: Below this :math:`χ^2 = E[ρ_i^2] - 1` of whole completions, sampler and scorer count as one policy: bfloat16 and the
#: kernels of a server leave less, another checkpoint or temperature more.
NEGLIGIBLE_CHI_SQUARED = 0.01

#: exp(709.8) is the greatest double; a product with an advantage needs some room.
LARGEST_LOG_RATIO = 700.0


def log_ratios(batch: Batch, name: str = "the importance ratio") -> Float[np.ndarray, "n t"]:
    r"""Log ρ of each token, (N, T), 0 where masked out.

    Args:
        batch: the completions.
        name: what needs them, for the error message.

    Raises:
        ValueError: when the batch has ``old_logprobs`` and no ``logprobs``.
    """
    if batch.old_logprobs is None:
        return np.zeros(batch.mask.shape)
    batch.require(["logprobs"], name)
    assert batch.logprobs is not None
    return batch.logprobs - batch.old_logprobs


def sequence_log_ratios(batch: Batch, name: str = "the importance ratio") -> Float[np.ndarray, "n"]:
    r"""Log ρ_i = Σ_t log ρ_{i,t} of each completion, (N,)."""
    return log_ratios(batch, name).sum(axis=1)


def exponential(log_ratio: np.ndarray) -> np.ndarray:
    """Return ρ from log ρ, completion by completion along the first axis.

    Raises:
        ValueError: where it overflows.
    """
    greatest = log_ratio.reshape(len(log_ratio), -1).max(axis=1)
    if greatest.size and greatest.max() > LARGEST_LOG_RATIO:
        row = int(np.argmax(greatest))
        raise ValueError(
            f"the ratio π/π_old of completion {row} is e^{greatest[row]:.0f}, which overflows: old_logprobs must be "
            "natural logarithms of the probabilities that these tokens were drawn with, by a policy close to the "
            "scored one"
        )
    return np.exp(log_ratio)


def sequence_ratios(batch: Batch, name: str = "the importance ratio") -> Float[np.ndarray, "n"]:
    r"""Return ρ_i of each completion, (N,).

    Raises:
        ValueError: where it overflows, or the batch has ``old_logprobs`` and no ``logprobs``.
    """
    return exponential(sequence_log_ratios(batch, name))


def chi_squared(batch: Batch) -> float:
    r"""Return the :math:`χ^2` divergence of the policies over whole completions, as the mean of :math:`(ρ_i - 1)^2`.

    Where the sampler can draw whatever the scored policy can, E[ρ] = 1 and this is E[ρ²] − 1; where it cannot, the
    missing mass counts as well. Without ``old_logprobs`` it is 0; it is infinite where a ratio overflows.
    """
    with np.errstate(over="ignore"):
        return float(np.mean(np.expm1(sequence_log_ratios(batch)) ** 2))


def without_negligible_ratios(batch: Batch) -> Batch:
    r"""Set every ratio of a batch to exactly 1 where :math:`χ^2` is below :data:`NEGLIGIBLE_CHI_SQUARED`.

    Rounding then neither makes the weights of a completion's tokens differ nor triggers a clip; GSPO's lies at 3e-4.
    """
    if batch.old_logprobs is None or chi_squared(batch) > NEGLIGIBLE_CHI_SQUARED:
        return batch
    return batch.with_fields(old_logprobs=None)
