"""How many prompts a variance rests on."""

from __future__ import annotations

import numpy as np

from gradstats.stats.effective_sample_size import effective_sample_size
from gradstats.stats.variance.gradient_statistics import GradientStatistics

# Below this effective number of prompts, simulated intervals undercover; see docs/statistics.md.
FEW = 50


def n_effective_prompts(gradient: GradientStatistics) -> float:
    r"""Return :math:`(\sum_m q_m)²/\sum_m q_m²` with :math:`q_m = ‖g_m‖²`, averaged over the groups of prompt m.

    M prompts of equal squared gradients are worth M; where a few carry nearly all of the variance it is their number,
    and intervals that rest on the central limit theorem over prompts are too narrow.
    """
    return effective_sample_size(gradient.second_moment.pseudo_values)


def n_effective_beside(gradient: GradientStatistics) -> float:
    """Return the same of the reference or of the target, whichever is worth fewer; infinite without either."""
    beside = [other.trace_cov.pseudo_values for other in (gradient.reference, gradient.target) if other is not None]
    return min((effective_sample_size(values) for values in beside), default=np.inf)
