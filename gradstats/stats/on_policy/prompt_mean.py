"""The mean over prompts of their completions' means, as the quantities of the on-policy check need it."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.probe_error import probed_statistic


def prompt_mean(
    values: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"], along: Float[np.ndarray, "n k"] | None = None
) -> Statistic:
    r"""Return :math:`\frac1M\sum_m\frac1{n_m}\sum_{i∈m}x_i` with its replicates.

    Args:
        values: (n,) x of each completion.
        prompts: (n,) its prompt m, numbered from 0.
        along: (n, K) the same quantity along each of K probes; None where no probe enters.
    """
    sizes = np.bincount(prompts)
    per_probe = None
    if along is not None:
        per_probe = np.zeros((len(sizes), along.shape[1]))
        np.add.at(per_probe, prompts, along / sizes[prompts][:, None])
    return probed_statistic(np.bincount(prompts, weights=values) / sizes, per_probe)
