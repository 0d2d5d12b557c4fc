"""The statistics of gradients that are written down, one a prompt or several."""

import numpy as np

from gradstats.stats.variance.estimates import Beside, GradientStatistics
from gradstats.stats.variance.moments import Groups, cross_signal, prompt_moments


def moments_of(gradients):
    """The moments of a list of prompts, each a list of its groups' gradients."""
    rows = np.concatenate([np.atleast_2d(groups) for groups in gradients]).astype(float)
    prompt = np.repeat(np.arange(len(gradients)), [len(np.atleast_2d(groups)) for groups in gradients])
    n = np.arange(len(rows))
    return prompt_moments(rows, np.ones(len(rows)), Groups(n, n, prompt, 0))


def statistics_of(gradients, reference=None, target=None, *, known=None, scale=None, prompts_per_batch=10, kept=None):
    """What quantities are computed from, of gradients beside a reference's and a target's."""
    moments = moments_of(gradients)

    def beside(others):
        if others is None:
            return None
        other = moments_of(others)
        return Beside(other.trace_cov, other.signal, cross_signal(moments, other))

    return GradientStatistics(
        moments.trace_cov,
        moments.second_moment,
        moments.signal,
        np.ones(len(gradients)) if kept is None else np.asarray(kept, dtype=float),
        prompts_per_batch,
        beside(reference),
        beside(target),
        None if reference is None or target is None else cross_signal(moments_of(reference), moments_of(target)),
        known,
        moments.within,
        scale,
    )


def along(*values):
    """One-dimensional gradients, one a prompt."""
    return [[[value]] for value in values]
