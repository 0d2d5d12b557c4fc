"""Divide rollouts into chunks that pass through the model together."""

from __future__ import annotations

import os

import numpy as np
import torch

from gradstats.config.defaults import MOST_MEMORY_GIB, TOKEN_BUDGET
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.rotary import length_classes
from gradstats.measurement.disk_size import GIB
from gradstats.policy.model import n_logits
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts

#: Largest share of a chunk's tokens that may be padding.
MOST_PADDING = 0.1

# Copies of the logits that a backward pass of the objective and its statistics holds at its peak.
_LOGIT_COPIES = 6


def plan_chunks(
    rollouts: Rollouts,
    policy: Policy,
    selection: ParameterSelection,
    token_budget: int = TOKEN_BUDGET,
    memory_gib: float | None = None,
    gradients_held: int = 1,
    rows: np.ndarray | None = None,
    reference: Policy | None = None,
) -> list[np.ndarray]:
    """Return the rows of each chunk: sequences of similar length, within a budget of tokens and of memory.

    At most a tenth of a chunk's tokens is padding. Where a model's rotary factors depend on the padded length, the
    sequences of a chunk have the same factors as alone, see :mod:`gradstats.gradients.rotary`.

    The plan depends on the rollouts, the model and the machine's total memory, not on the memory that is free: a
    measurement that is interrupted and resumed on it forms the same chunks and gives the same numbers.

    Args:
        rollouts: the sequences.
        policy: its vocabulary and dtype determine the memory of the logits.
        selection: its size determines the memory of the gradients.
        token_budget: most tokens in a chunk, padding included.
        memory_gib: most memory for per-sequence gradients and for logits, each; a quarter of the machine's memory,
            at most 4 GiB, when None. A single sequence always forms a chunk.
        gradients_held: number of gradients of the whole selection that the engine holds for each sequence.
        rows: the rollouts to plan for; all when None.
        reference: a second policy through which the same chunks go.

    Returns:
        For each chunk, the rows of its sequences.

    Raises:
        ValueError: for a budget that is not positive.
    """
    budget = _budget(policy, memory_gib)
    item = policy.dtype.itemsize
    most_sequences = len(rollouts)
    if gradients_held:
        most_sequences = max(1, gradients_that_fit(policy, selection, memory_gib) // gradients_held)
    vocabulary = n_logits(policy.model)
    most_tokens = min(token_budget, int(budget // (_LOGIT_COPIES * max(item, 4) * vocabulary)))
    times = rollouts.times
    models = [policy.model] if reference is None else [policy.model, reference.model]
    classes = length_classes(models, times)
    chosen = np.arange(len(rollouts)) if rows is None else rows
    chunks: list[list[int]] = []
    real = 0
    for row in chosen[np.argsort(times[chosen], kind="stable")]:
        padded = (len(chunks[-1]) + 1) * times[row] if chunks else 0
        fits = bool(chunks) and len(chunks[-1]) < most_sequences and padded <= most_tokens
        together = fits and classes[row] == classes[chunks[-1][-1]]
        if together and padded - real - times[row] <= MOST_PADDING * padded:
            chunks[-1].append(int(row))
            real += times[row]
        else:
            chunks.append([int(row)])
            real = times[row]
    return [np.array(chunk) for chunk in chunks]


def gradients_that_fit(policy: Policy, selection: ParameterSelection, memory_gib: float | None = None) -> int:
    """Return how many gradients of the whole selection fit into ``memory_gib``, as for :func:`plan_chunks`."""
    # Gradients of a chunk exist twice while they are reduced: plain, and with the signs of the sketch.
    one = 2 * policy.dtype.itemsize * selection.n_parameters
    return int(_budget(policy, memory_gib) // one)


def default_memory_gib(device: torch.device) -> float:
    """Return a quarter of the device's memory, at most :data:`gradstats.config.defaults.MOST_MEMORY_GIB`."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(MOST_MEMORY_GIB, total / 4 / GIB)


def _budget(policy: Policy, memory_gib: float | None) -> float:
    """Return ``memory_gib``, or its default, in bytes."""
    return (default_memory_gib(policy.device) if memory_gib is None else memory_gib) * GIB
