"""The slope of log energy on the log of a proxy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic


def log_slope(energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]) -> Estimate:
    r"""Estimate β of :math:`\log e_t = c + β\log p_t` by least squares over all tokens with e, p > 0.

    1 where energies are proportional to the proxy, NaN where the proxy does not vary; jackknifed by prompt as a whole.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    sums = np.zeros((5, int(prompts.max()) + 1))
    for prompt, energy, value in zip(prompts, energies, values, strict=True):
        kept = (energy > 0) & (value > 0)
        x, y = np.log(value[kept]), np.log(energy[kept])
        sums[:, prompt] += [len(x), x.sum(), y.sum(), x @ x, x @ y]
    # The slope of least squares from sums, (n Σxy − Σx Σy)/(n Σx² − (Σx)²), jackknifed as a whole.
    count, x, y, xx, xy = (mean_statistic(row) for row in sums)
    spread = xx * count - x * x
    if not spread.value > 0:
        return NOT_ESTIMATED
    return ((xy * count - x * y) / spread).estimate()
