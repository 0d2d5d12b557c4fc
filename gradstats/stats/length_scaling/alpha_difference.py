"""How α differs between two samples of completions of the same prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.linalg import block_diag

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate
from gradstats.stats.length_scaling.alpha import fit_length_scaling
from gradstats.stats.length_scaling.regression import least_squares
from gradstats.stats.printed import Printed

# Differences below this are those of rounding, also where their standard error is smaller still.
_ROUNDING = 1e-10
_COLUMNS = ("prompt_id", "length", "sq_norm")


@dataclass(frozen=True, repr=False)
class AlphaDifference(Printed):
    r"""The difference of two length exponents, paired over prompts; see :func:`gradstats.alpha_difference`.

    Attributes:
        alpha: :math:`α` of the first sample.
        other_alpha: :math:`α` of the second.
        difference: ``alpha − other_alpha``.
        stderr: of the difference, clustered by prompt (CR2).
        degrees: Satterthwaite degrees of freedom.
        pvalue: of no difference, two-sided.
        n_prompts: how many prompts the two samples answer together.
    """

    alpha: float
    other_alpha: float
    difference: float
    stderr: float
    degrees: float
    pvalue: float
    n_prompts: int

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the difference."""
        return Estimate(self.difference, self.stderr, "raw", self.degrees).confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame of one row: both exponents, their difference with its interval, and the p-value."""
        low, high = self.confidence_interval(confidence_level)
        row = {
            "alpha": self.alpha,
            "other_alpha": self.other_alpha,
            "difference": self.difference,
            "difference_low": low,
            "difference_high": high,
            "pvalue": self.pvalue,
            "n_prompts": self.n_prompts,
        }
        return pd.DataFrame([row])


def alpha_difference(one: pd.DataFrame, other: pd.DataFrame) -> AlphaDifference:
    r"""Compare the length exponents of two samples that answer the same prompts.

    Both lines are fitted in one regression :math:`\log‖S‖² = c_k + 2α_k \log T`, k = 1, 2, whose errors are clustered
    by prompt (CR2; Bell and McCaffrey, Survey Methodology 28, 2002). What a prompt adds to both lines cancels in
    :math:`α_1 - α_2`, so that the interval is narrower than that of independent samples where prompts matter. Each
    exponent equals that of :func:`gradstats.fit_length_scaling` with ``method="ols"``. A prompt of only one sample is a
    cluster that moves that line alone; samples without a common prompt have the interval of independent ones.

    Args:
        one: the completions of the first sample, one a row: ``prompt_id``, ``length`` (tokens), ``sq_norm``
            (:math:`‖S‖²`); ``tables/length_scaling.csv`` of a run has them.
        other: those of the second.

    Raises:
        KeyError: when a column is missing.
        ValueError: when a sample has fewer than 3 different lengths, or values that are not finite and positive.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> prompts = pd.DataFrame({"prompt_id": list("aabbccdd"), "length": [10, 20, 15, 40, 12, 60, 30, 90]})
        >>> noise = [1.1, 0.9, 1.3, 1.2, 0.8, 0.9, 1.0, 0.7]  # shared by the two samples
        >>> steep = prompts.assign(sq_norm=noise * prompts["length"] ** 1.6)
        >>> flat = prompts.assign(sq_norm=noise * prompts["length"] ** 1.0)
        >>> difference = gs.alpha_difference(steep, flat)
        >>> round(difference.difference, 3), round(difference.stderr, 3)
        (0.3, 0.0)
    """
    for name, frame in (("one", one), ("other", other)):
        if missing := [column for column in _COLUMNS if column not in frame]:
            raise KeyError(f"{name} has no column {missing[0]!r}: it needs {', '.join(_COLUMNS)}")
    fits = [fit_length_scaling(lengths=frame["length"], sq_norms=frame["sq_norm"]) for frame in (one, other)]
    # As text, since a reader of CSV may take the ids of one sample for numbers.
    prompts = [frame["prompt_id"].astype(str).to_numpy() for frame in (one, other)]
    clusters = np.unique(np.concatenate(prompts), return_inverse=True)[1]
    design = np.asarray(block_diag(*(np.column_stack([np.ones(fit.n), np.log(fit.lengths)]) for fit in fits)))
    regression = least_squares(design, np.log(np.concatenate([fit.sq_norms for fit in fits])))
    found = regression.contrast(np.array([0.0, 0.5, 0.0, -0.5]), clusters)
    if max(abs(found.value), found.stderr) < _ROUNDING:  # the same completions twice
        found = Estimate(0.0, 0.0, "raw", found.degrees)
    alpha, other_alpha = (fit.alpha for fit in fits)
    n_prompts = int(clusters.max()) + 1
    return AlphaDifference(alpha, other_alpha, found.value, found.stderr, found.degrees, found.pvalue(), n_prompts)
