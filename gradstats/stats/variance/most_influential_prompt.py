"""The prompt that a variance rests on most."""

from __future__ import annotations

import numpy as np

from gradstats.stats.variance.gradient_statistics import GradientStatistics


def most_influential_prompt(gradient: GradientStatistics) -> int:
    r"""Return the number of the prompt without which ``trace_cov`` changes most.

    It is the m with the largest :math:`|θ_{(m)} - θ|`, where :math:`θ = \mathrm{tr\,Cov}(g)` and :math:`θ_{(m)}` is the
    same without prompt m.
    """
    return int(np.argmax(np.abs(gradient.trace_cov.replicates - gradient.trace_cov.value)))
