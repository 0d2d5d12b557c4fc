"""What to know beside α: curvature, within and between prompts, influence, blocks, differences of two samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import scipy

from gradstats.config.options import MEASURE_PROBES
from gradstats.measurement.measurement import metric_label
from gradstats.stats.jackknife import Estimate, TestResult
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.length_scaling.regression import RegressionLine, least_squares
from gradstats.stats.protocols import MeasuredNorms
from gradstats.stats.token_profiles import has_token_energies, summed_energy
from gradstats.system.lazy_imports import pd


@dataclass(frozen=True, repr=False)
class CurvatureTest(TestResult):
    r"""The curvature of log‖S‖² as a function of log T.

    Attributes:
        curvature: coefficient γ of :math:`(\log T - \overline{\log T})²`, half the change of the
            slope 2α per unit of log T.
        stderr: its standard error, clustered by prompt (CR2).
        degrees: Satterthwaite degrees of freedom.
        pvalue: of no curvature, two-sided.
    """

    estimated: ClassVar[str] = "curvature"

    curvature: float
    stderr: float = field(repr=False)
    degrees: float = field(repr=False)
    pvalue: float


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
        >>> test = gs.stats.curvature_test(gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm))
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


@dataclass(frozen=True, repr=False)
class MundlakTest(TestResult):
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
    stderr: float = field(repr=False)
    degrees: float = field(repr=False)
    pvalue: float


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
        >>> test = gs.stats.mundlak_test(gs.fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups))
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


def fit_energy_scaling(measured: MeasuredNorms, *, method: str = "ols") -> LengthScalingFit:
    r"""Return :math:`α_\mathrm{energy}`, the exponent of :math:`\sum_t‖s_t‖²`: how the summed energy of single tokens
    grows with length.

    The difference from α of the whole gradient is due to correlation between tokens.

    Args:
        measured: a measurement with ``.token_energy``.
        method: as in :func:`gradstats.fit_length_scaling`.

    Raises:
        ValueError: without token energies.
    """
    if not has_token_energies(measured):
        raise ValueError(f"the measurement has no token energies: {MEASURE_PROBES}")
    fit = fit_length_scaling(
        lengths=measured.lengths,
        sq_norms=summed_energy(measured)[0],
        groups=measured.rollouts.prompt_id,
        method=method,
        truncated=measured.rollouts.truncated,
    )
    return replace(fit, metric=metric_label(getattr(measured, "metadata", {})))


# Differences below this are those of rounding, also where their standard error is smaller still.
_ROUNDING = 1e-10
_COLUMNS = ("prompt_id", "length", "sq_norm")


@dataclass(frozen=True, repr=False)
class AlphaDifference(TestResult):
    r"""The difference of two length exponents, paired over prompts; see :func:`gradstats.stats.alpha_difference`.

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
    stderr: float = field(repr=False)
    degrees: float = field(repr=False)
    pvalue: float
    n_prompts: int


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
        >>> difference = gs.stats.alpha_difference(steep, flat)
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
    design = np.asarray(
        scipy.linalg.block_diag(*(np.column_stack([np.ones(fit.n), np.log(fit.lengths)]) for fit in fits))
    )
    regression = least_squares(design, np.log(np.concatenate([fit.sq_norms for fit in fits])))
    found = regression.contrast(np.array([0.0, 0.5, 0.0, -0.5]), clusters)
    if max(abs(found.value), found.stderr) < _ROUNDING:  # the same completions twice
        found = Estimate(0.0, 0.0, "raw", found.degrees)
    alpha, other_alpha = (fit.alpha for fit in fits)
    n_prompts = int(clusters.max()) + 1
    return AlphaDifference(alpha, other_alpha, found.value, found.stderr, found.degrees, found.pvalue(), n_prompts)
