"""The prompt without which α changes most."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.length_scaling.regression_lines import RegressionLine


def alpha_without_each_prompt(fit: LengthScalingFit) -> pd.DataFrame:
    r"""Fit α without each prompt in turn, the most influential prompt first.

    The most influential prompt m has the largest :math:`|α_{(m)} - α|`, where :math:`α_{(m)}` is fitted without it.

    Args:
        fit: the fit whose method is used; with one completion a prompt these are single points.

    Returns:
        A frame with columns ``prompt`` (its number in ``fit.clusters``), ``n`` (its sequences), ``alpha``
        (without it) and ``change`` (of α when it is left out).

    Raises:
        ValueError: when leaving a prompt out leaves too few lengths to fit.
    """
    without = np.full(fit.n_prompts, fit.alpha)
    if isinstance(fit.line, RegressionLine) and fit.line.exact:
        # The last column of the design is log T.
        without = fit.line.regression.without_each(fit.line.clusters)[:, -1] / 2.0
    else:
        for prompt in range(fit.n_prompts):
            rest = fit.clusters != prompt
            without[prompt] = fit_length_scaling(
                lengths=fit.lengths[rest], sq_norms=fit.sq_norms[rest], groups=fit.clusters[rest], method=fit.method
            ).alpha
    frame = pd.DataFrame(
        {
            "prompt": np.arange(fit.n_prompts),
            "n": np.bincount(fit.clusters),
            "alpha": without,
            "change": without - fit.alpha,
        }
    )
    return frame.sort_values("change", key=np.abs, ascending=False, kind="stable").reset_index(drop=True)
