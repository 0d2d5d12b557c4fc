"""The squared norm of whole scores over the summed energy of tokens, which is 1 on-policy."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from gradstats.stats.effective_sample_size import effective_sample_size
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.measured import MeasuredPolicy
from gradstats.stats.on_policy.prompt_mean import prompt_mean
from gradstats.stats.tokens.token_sums import has_token_energies, summed_energy


def energy_ratio(measured: MeasuredPolicy, prompts: Int[np.ndarray, " n"]) -> tuple[Estimate, float]:
    r"""Estimate :math:`E‖S‖²/\sum_tE‖s_t‖²`, and the effective number of prompts behind it.

    On-policy token scores are uncorrelated, so that it is 1. Without token energies it is NaN.

    Args:
        measured: a measurement.
        prompts: (n,) prompt of each completion, numbered from 0.

    Returns:
        The ratio, and the effective sample size of prompts by their mean energy; infinite without energies.
    """
    if not has_token_energies(measured):
        return NOT_ESTIMATED, np.inf
    energies, along = summed_energy(measured)
    ratio = prompt_mean(np.asarray(measured.sq_norms), prompts) / prompt_mean(energies, prompts, along)
    return ratio.estimate(), effective_sample_size(np.bincount(prompts, energies) / np.bincount(prompts))
