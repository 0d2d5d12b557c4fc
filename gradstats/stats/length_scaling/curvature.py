"""Whether one power law fits: the curvature of log‖S‖² as a function of log T."""

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
class CurvatureTest(Printed):
    r"""The curvature of log‖S‖² as a function of log T.

    Attributes:
        curvature: coefficient γ of :math:`(\log T - \overline{\log T})²`, half the change of the
            slope 2α per unit of log T.
        stderr: its standard error, clustered by prompt (CR2).
        degrees: Satterthwaite degrees of freedom.
        pvalue: of no curvature, two-sided.
    """

    curvature: float
    stderr: float
    degrees: float
    pvalue: float

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the curvature."""
        return Estimate(self.curvature, self.stderr, "raw", self.degrees).confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame of one row: the curvature with its interval and the p-value."""
        low, high = self.confidence_interval(confidence_level)
        row = {"curvature": self.curvature, "curvature_low": low, "curvature_high": high, "pvalue": self.pvalue}
        return pd.DataFrame([row])


def curvature_test(fit: LengthScalingFit) -> CurvatureTest:
    r"""Test whether a quadratic term in log T improves the pooled line in logarithms.

    The curvature is γ in :math:`\log‖S‖² = c + β(\log T - \overline{\log T}) + γ(\log T - \overline{\log T})²` by least
    squares, and the test is of γ = 0.

    Args:
        fit: any length-scaling fit; its sequences are used, not its line.

    Raises:
        ValueError: for fewer than 4 distinct lengths or 3 prompts.

    Example:
        >>> import gradstats as gs
        >>> points = gs.data.load("gloeckle2026")
        >>> test = gs.curvature_test(gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm))
        >>> round(test.curvature, 2), round(test.pvalue, 2)
        (-0.54, 0.46)
    """
    n_distinct = len(np.unique(fit.lengths))
    if n_distinct < 4 or fit.n_prompts < 3:
        raise ValueError(
            f"a curvature test needs at least 4 distinct lengths and 3 prompts, got {n_distinct} and {fit.n_prompts}: "
            "measure more prompts"
        )
    x = np.log(fit.lengths)
    x = x - x.mean()
    regression = least_squares(np.column_stack([np.ones_like(x), x, x**2]), np.log(fit.sq_norms))
    estimate = regression.contrast(np.array([0.0, 0.0, 1.0]), fit.clusters)
    return CurvatureTest(estimate.value, estimate.stderr, estimate.degrees, estimate.pvalue())
