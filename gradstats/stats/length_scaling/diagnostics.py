"""Whether one power law fits, and which prompts influence α most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.length_scaling.fit import LengthScalingFit, fit_length_scaling
from gradstats.stats.length_scaling.regression import least_squares
from gradstats.stats.length_scaling.regression_lines import RegressionLine


@dataclass(frozen=True)
class CurvatureTest:
    """The curvature of log‖S‖² as a function of log T.

    Attributes:
        curvature: coefficient of (log T − mean)², half the change of the slope 2α per unit of log T.
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
        margin = float(stats.t.ppf(0.5 + require_level(confidence_level) / 2.0, self.degrees)) * self.stderr
        return self.curvature - margin, self.curvature + margin

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row: the curvature with its interval and the p-value."""
        low, high = self.confidence_interval(confidence_level)
        row = {"curvature": self.curvature, "curvature_low": low, "curvature_high": high, "pvalue": self.pvalue}
        return pd.DataFrame([row])


def curvature_test(fit: LengthScalingFit) -> CurvatureTest:
    """Test whether a quadratic term in log T improves the pooled line in logarithms.

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
    stderr, degrees = regression.cr2(np.array([[0.0, 0.0, 1.0]]), fit.clusters)
    curvature = float(regression.coefficients[2])
    t = np.divide(abs(curvature), stderr[0])
    return CurvatureTest(curvature, float(stderr[0]), float(degrees[0]), float(2.0 * stats.t.sf(t, degrees[0])))


def alpha_without_each_prompt(fit: LengthScalingFit) -> pd.DataFrame:
    """α refitted without each prompt in turn, the most influential prompt first.

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
