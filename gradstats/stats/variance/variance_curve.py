"""Variance, cosine and bias as functions of one parameter of an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from gradstats import estimators as families
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.by_label import with_parameter
from gradstats.estimators.estimator import Weighting
from gradstats.stats.jackknife import UNKNOWN
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.measured import MeasuredGradients
from gradstats.stats.printed import Printed
from gradstats.stats.variance.comparison import compare
from gradstats.stats.variance.estimates import fieller_simultaneous
from gradstats.stats.variance.minimiser import Minimiser, minimiser_of, written_interval
from gradstats.stats.variance.quantities import with_ends
from gradstats.stats.variance.result import VarianceComparison

#: The parameter that is not an estimator's: completions per group.
GROUP_SIZE = "group_size"
#: Quantities whose simultaneous intervals a curve has beside those of a comparison.
JUDGED_TOGETHER = ("cosine", "matched_bias_share")
#: Fits whose exponents are marked on a curve of length weights, and what each is called.
FITTED_EXPONENTS = {"ols": "pooled", "within_prompt": "within prompts", "gamma": "of the mean"}


@dataclass(frozen=True, repr=False)
class VarianceCurve(Printed):
    r"""The variance :math:`V(β) = \mathrm{tr\,Cov}(ĝ_β)` of an estimator along a parameter, with its lowest point.

    Attributes:
        estimator: its label, as it was given.
        parameter: the parameter that is varied.
        values: (k,) its values, increasing.
        comparison: the estimator at each value, a row each, on the same completions.
        lowest: where the variance at matched signal is lowest; None where it is not known at every value.
        fits: exponents that may be plugged in, by name, where the parameter is the exponent of length weights.
        notes: what a reader of the curve has to know, one sentence each.
    """

    printed_columns: ClassVar[tuple[str, ...]] = ("value", "trace_cov", "ratio", "matched_ratio", "cosine")

    estimator: str
    parameter: str
    values: Float[np.ndarray, " k"]
    comparison: VarianceComparison
    lowest: Minimiser | None = field(repr=False)
    fits: dict[str, LengthScalingFit] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def minimiser(self) -> float:
        """The value at which the variance at matched signal is lowest; NaN where it is not known.

        For ``group_size`` it is the variance at an equal total of completions.
        """
        return np.nan if self.lowest is None else self.lowest.value

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the minimiser; :class:`gradstats.stats.variance.minimiser.Minimiser` defines it."""
        return (np.nan, np.nan) if self.lowest is None else self.lowest.confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per value: ``value``, then the columns of :func:`gradstats.compare`, all with pointwise intervals.

        ``ratio``, ``matched_ratio``, ``cosine`` and ``matched_bias_share`` have simultaneous intervals as well
        (``ratio_simultaneous_low``, ``cosine_simultaneous_low``, ``matched_bias_share_simultaneous_low``, …), between
        which they lie at all values at once. ``.attrs`` hold what the comparison's do, ``curve`` and ``parameter``, the
        ``minimiser`` with its interval, and the rows of :meth:`fits_frame` as ``fits``.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self.comparison.to_frame(confidence_level)
        frame.insert(0, "value", self.values)
        for name in JUDGED_TOGETHER:
            ends = fieller_simultaneous([getattr(row, name) for row in self.comparison.rows], confidence_level)
            frame[f"{name}_simultaneous_low"], frame[f"{name}_simultaneous_high"] = np.array(ends).T
        frame.attrs |= {
            "curve": self.estimator,
            "parameter": self.parameter,
            **with_ends({"minimiser": (self.minimiser, *self.confidence_interval(confidence_level))}),
            "fits": self.fits_frame(confidence_level).to_dict("records"),
            "notes": list(self.notes),
        }
        return frame

    def fits_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per fitted exponent: ``fit``, ``value`` and its interval, ``ratio_to_lowest`` and its interval.

        The last is the variance with this exponent plugged in over that at the minimiser.
        """
        rows = []
        for name, fit in self.fits.items():
            low, high = fit.confidence_interval(confidence_level)
            ratio = UNKNOWN if self.lowest is None else self.lowest.relative_to_lowest(fit.alpha, confidence_level)
            rows.append((name, fit.alpha, low, high, *ratio))
        columns = ["fit", "value", "value_low", "value_high"]
        return pd.DataFrame(rows, columns=[*columns, *(f"ratio_to_lowest{end}" for end in ("", "_low", "_high"))])

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State where the variance is lowest, and what the fitted exponents cost.

        An end of the interval that is the first or last value is written with ≤ or ≥: the minimiser may lie beyond it.
        """
        if not np.isfinite(self.minimiser):
            if self.lowest is not None:  # clips that no ratio reaches, as on-policy
                return f"The variance of {self.estimator} does not depend on {self.parameter} on these completions."
            return f"Where {self.estimator} has its lowest variance along {self.parameter} is not known."
        low, high = self.confidence_interval(confidence_level)
        what = "at an equal total of completions" if self.parameter == GROUP_SIZE else "at matched signal"
        text = (
            f"{self.estimator} has its lowest variance {what} at {self.parameter} = {self.minimiser:.3g} "
            f"{written_interval(low, high, self.values)}"
        )
        if self.lowest is not None and self.lowest.is_at_an_end:
            text += ", an end of the range: it may be lower beyond"
        parts = [
            f"{row['ratio_to_lowest']:.4g} times that at the fitted {row['value']:.3g} ({row['fit']})"
            for row in self.fits_frame(confidence_level).to_dict("records")
            if np.isfinite(row["ratio_to_lowest"])
        ]
        return f"{text}; the variance is {', '.join(parts)}." if parts else f"{text}."


def variance_curve(
    measured_or_batch: Batch | MeasuredGradients,
    estimator: str | Weighting,
    parameter: str,
    values: ArrayLike,
    scores: ArrayLike | None = None,
    *,
    state_values: ArrayLike | None = None,
    **options: Any,
) -> VarianceCurve:
    r"""Follow variance, cosine and bias of an estimator along one of its parameters, on the same completions.

    With β the parameter the variance is :math:`V(β) = \mathrm{tr\,Cov}(ĝ_β)`.
    Every row is that of :func:`gradstats.compare` for the estimator at this value: ratios and differences are paired.
    The minimiser of the variance at matched signal has an interval from a delete-one-prompt jackknife
    (:class:`gradstats.stats.variance.minimiser.Minimiser`). For ``alpha`` of ``length_weighted`` the exponents of
    three fits stand beside it, each with what plugging it in costs: the pooled line, the line within prompts, and that
    of the mean :math:`E[‖S‖² | T]`.

    Args:
        measured_or_batch: a measurement, or a :class:`gradstats.estimators.Batch` with ``scores``.
        estimator: a label, where the parameter may be missing, as in ``"length_weighted(loo=True)"``, or an estimator
            or recipe.
        parameter: the parameter's name: ``alpha`` of ``length_weighted``, ``delta`` of ``asymmetric``, ``tau`` of
            ``kimi``, ``lam`` of ``gae``, ``eps_high`` of a recipe. ``"clip_width"`` sets ``eps_low`` and
            ``eps_high``; ``"group_size"`` varies the completions per group, which is the order k of ``pass_at_k``,
            and the minimiser is then that of the variance at an equal total of completions.
        values: at least two different values of it, in any order.
        scores: as for :func:`gradstats.compare`.
        state_values: the field ``values`` of the measurement's batch, for ``gae``.
        **options: the other arguments of :func:`gradstats.compare`.

    Returns:
        A :class:`VarianceCurve`.

    Raises:
        TypeError: for an estimator without this parameter, otherwise as :func:`gradstats.compare`.
        ValueError: for fewer than two different values, several group sizes beside another parameter, values that the
            parameter does not accept, otherwise as :func:`gradstats.compare`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards, lengths = rng.integers(0, 2, 400), rng.integers(10, 100, 400)
        >>> batch = gs.estimators.Batch(rewards, lengths, np.repeat(np.arange(100), 4))
        >>> scores = (rewards[:, None] + rng.normal(size=(400, 8))) * np.sqrt(lengths)[:, None]
        >>> curve = gs.variance_curve(batch, "asymmetric(loo=True)", "delta", np.linspace(-0.5, 0.5, 11), scores)
        >>> low, high = curve.confidence_interval()
        >>> bool(low < curve.minimiser < high)
        True
    """
    grid = np.unique(np.asarray(values, dtype=np.float64))
    if len(grid) < 2 or not np.isfinite(grid).all():
        raise ValueError(f"values of {parameter} must be at least two different finite numbers, got {grid.tolist()}")
    if state_values is not None:
        options["values"] = state_values
    label = estimator if isinstance(estimator, str) else estimator.label
    if parameter == GROUP_SIZE:
        chosen: list[Weighting] = [families.get(estimator)]
        options[GROUP_SIZE] = [_whole(value) for value in grid]
    else:
        if np.size(np.asarray(options.get(GROUP_SIZE))) > 1:
            raise ValueError(f"a curve along {parameter} has one group size, got {options[GROUP_SIZE]}: choose one")
        chosen = [with_parameter(estimator, parameter, value) for value in grid]
    with warnings.catch_warnings():  # the notes of the curve say the same
        warnings.simplefilter("ignore", UserWarning)
        comparison = compare(measured_or_batch, chosen, scores, **options)
    variances = [row.at_matched_signal for row in comparison.rows]
    if parameter == GROUP_SIZE:
        variances = [None if one is None else one.scaled(size) for one, size in zip(variances, grid, strict=True)]
    resolved = all(np.isfinite(row.matched_ratio.with_interval(CONFIDENCE_LEVEL)[0]) for row in comparison.rows)
    lowest = minimiser_of(grid, variances, discrete=_counts(chosen, parameter)) if resolved else None
    advantage = chosen[0].advantage if isinstance(chosen[0], Recipe) else chosen[0]
    by_length = parameter == "alpha" and advantage.name == "length_weighted"
    fits = _fitted_exponents(measured_or_batch, scores) if by_length else {}
    notes = comparison.notes
    if lowest is None:
        unresolved = "since it is not resolved at every value: measure more prompts"
        notes = (*notes, f"where the variance is lowest is not known, {unresolved}")
    return VarianceCurve(label, parameter, grid, comparison, lowest, fits, notes)


def _whole(value: float) -> int:
    if not float(value).is_integer():
        raise ValueError(f"{GROUP_SIZE}={value:g} must be a whole number of completions")
    return index(int(value))


def _counts(chosen: Sequence[Weighting], parameter: str) -> bool:
    """Return whether a parameter counts something, so that there is nothing between its values."""
    parameters = getattr(chosen[0], "parameters", {})
    return parameter == GROUP_SIZE or isinstance(parameters.get(parameter), int)


def _fitted_exponents(
    measured_or_batch: Batch | MeasuredGradients, scores: ArrayLike | None
) -> dict[str, LengthScalingFit]:
    """Return the exponents of :data:`FITTED_EXPONENTS` that these completions allow, by name."""
    batch = measured_or_batch if isinstance(measured_or_batch, Batch) else Batch.from_measurement(measured_or_batch)
    sq_norms = batch.sq_norms
    if sq_norms is None:
        values = np.asarray(scores, dtype=np.float64)
        whole = values if values.ndim == 2 else np.where(batch.mask[:, :, None], values, 0.0).sum(axis=1)
        sq_norms = np.einsum("nd,nd->n", whole, whole)
    fits = {}
    for method, name in FITTED_EXPONENTS.items():
        try:
            fits[name] = fit_length_scaling(
                lengths=batch.lengths, sq_norms=sq_norms, groups=batch.groups, method=method
            )
        except ValueError:  # too few lengths, one completion a prompt, or a norm of 0: there is no such fit
            continue
    return fits
