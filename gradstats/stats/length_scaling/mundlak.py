"""Whether α within prompts equals α between prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate
from gradstats.stats.length_scaling.alpha import LengthScalingFit
from gradstats.stats.length_scaling.regression import least_squares
from gradstats.stats.printed import Printed


@dataclass(frozen=True, repr=False)
class MundlakTest(Printed):
    r"""The exponents within and between prompts, and whether they differ.

    Attributes:
        alpha_within: :math:`α_W`, half the slope on log T among answers to one prompt.
        alpha_between: :math:`α_B`, half the slope on the prompts' means of log T.
        difference: ``alpha_between − alpha_within``.
        stderr: of the difference, clustered by prompt (CR2).
        degrees: Satterthwaite degrees of freedom.
        pvalue: of no difference, two-sided.
    """

    alpha_within: float
    alpha_between: float
    difference: float
    stderr: float
    degrees: float
    pvalue: float

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the difference."""
        return Estimate(self.difference, self.stderr, "raw", self.degrees).confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame of one row: both exponents, their difference with its interval and the p-value."""
        low, high = self.confidence_interval(confidence_level)
        row = {
            "alpha_within": self.alpha_within,
            "alpha_between": self.alpha_between,
            "difference": self.difference,
            "difference_low": low,
            "difference_high": high,
            "pvalue": self.pvalue,
        }
        return pd.DataFrame([row])

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Return the answer in words."""
        low, high = self.confidence_interval(confidence_level)
        estimate = (
            f"Longer answers to the same prompt give α = {self.alpha_within:.3f}, prompts with longer answers "
            f"α = {self.alpha_between:.3f}; the difference {self.difference:.3f} [{low:.3f}, {high:.3f}] is"
        )
        test = f"(Mundlak's test, p = {self.pvalue:.2g})"
        if low > 0 or high < 0:
            return f"{estimate} significant, so that α of all completions mixes the two {test}."
        return f"{estimate} not resolved {test}."


def mundlak_test(fit: LengthScalingFit) -> MundlakTest:
    r"""Test whether longer answers to one prompt scale as prompts with longer answers do.

    With :math:`x_{mi} = \log T_{mi}` and :math:`\bar x_m` its mean over a prompt's completions, the regression
    :math:`\log‖S_{mi}‖² = c + 2α_W (x_{mi} - \bar x_m) + 2α_B \bar x_m` has the slope of the fixed-effects line as its
    first and that between prompts as its second (Mundlak, Econometrica 46, 1978). The test of :math:`α_W = α_B` allows
    for noise that is shared within prompts and changes with length, which Hausman's does not.

    Args:
        fit: any length-scaling fit; its sequences are used, not its line.

    Raises:
        ValueError: when fewer than 3 prompts have completions of different lengths, or all prompts have one mean.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> lengths = np.array([10, 20, 40, 40, 80, 160, 90, 180, 360, 200, 400, 800])
        >>> groups = np.repeat(np.arange(4), 3)
        >>> sq_norms = lengths * (1.0 + groups)  # α is ½ within prompts
        >>> test = gs.mundlak_test(gs.fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups))
        >>> round(test.alpha_within, 3), round(test.alpha_between, 3)
        (0.5, 0.735)
    """
    x, y = np.log(fit.lengths), np.log(fit.sq_norms)
    means = (np.bincount(fit.clusters, weights=x) / np.bincount(fit.clusters))[fit.clusters]
    deviations = x - means
    deviations[np.abs(deviations) <= 1e-12] = 0.0
    n_varied = len(np.unique(fit.clusters[deviations != 0.0]))
    if n_varied < 3 or np.ptp(means) <= 1e-12:
        raise ValueError(
            "a comparison of alpha within and between prompts needs at least 3 prompts with completions of different "
            f"lengths, and prompts that differ in length; {n_varied} prompt(s) have: sample more completions per prompt"
        )
    regression = least_squares(np.column_stack([np.ones_like(x), deviations, means - means.mean()]), y)
    within, between = (float(slope) / 2.0 for slope in regression.coefficients[1:])
    difference = regression.contrast(np.array([0.0, -0.5, 0.5]), fit.clusters)
    return MundlakTest(within, between, difference.value, difference.stderr, difference.degrees, difference.pvalue())
