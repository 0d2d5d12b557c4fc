"""A comparison of the estimators that can be computed; the others have a row of NaN with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradstats.config.option_types import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.along_completions import along_completions
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting, composition_of, unit_of
from gradstats.stats.measured import MeasuredGradients
from gradstats.stats.variance.comparison import compare
from gradstats.stats.variance.comparison_inputs import comparison_inputs
from gradstats.stats.variance.row import EstimatorVariance, silent_row
from gradstats.stats.variance.target import choose_target, recorded_differences
from gradstats.stats.variance.unusable_ratios import refuse_unusable_ratios
from gradstats.stats.variance.variance_comparison import VarianceComparison


def compare_available(
    measured: Batch | MeasuredGradients, estimators: Sequence[str | Weighting], **options: Any
) -> VarianceComparison:
    """Compare as :func:`gradstats.compare` does, with a row of NaN for each estimator that cannot be computed.

    Args:
        measured: as for :func:`gradstats.compare`.
        estimators: as for :func:`gradstats.compare`.
        **options: the other arguments of :func:`gradstats.compare`.

    Returns:
        The comparison, rows in the order asked for; why a row is NaN is in its notes, and warned of.

    Raises:
        ValueError: when nothing was measured for any of them, or for the reference; otherwise as
            :func:`gradstats.compare`.
    """
    chosen = get_all(estimators)
    reasons = reasons_against(measured, chosen, options.get("target", "auto"))
    available = [one for one, reason in zip(chosen, reasons, strict=True) if reason is None]
    if not available:
        raise ValueError("; ".join(dict.fromkeys(reason for reason in reasons if reason)) or "estimators is empty")
    comparison = compare(measured, available, **options)
    notes = tuple(dict.fromkeys(f"the row is NaN: {reason}" for reason in reasons if reason is not None))
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    rows: list[EstimatorVariance] = []
    for number, split in enumerate(comparison.splits):
        measured_rows = iter(comparison.rows[number * len(available) : (number + 1) * len(available)])
        for one, reason in zip(chosen, reasons, strict=True):
            rows.append(next(measured_rows) if reason is None else _unknown_row(one, split.group_size))
    places = [place for place, reason in enumerate(reasons) if reason is None]
    differences = tuple(one.placed(places, len(chosen)) for one in comparison.differences)
    return replace(comparison, rows=tuple(rows), notes=(*notes, *comparison.notes), differences=differences)


def reasons_against(
    measured: Batch | MeasuredGradients,
    estimators: Sequence[Weighting],
    target: AskedTarget = "auto",
) -> list[str | None]:
    """Return why each estimator cannot be compared on a measurement, with the remedy; None for one that can."""
    if isinstance(measured, Batch):
        return [None] * len(estimators)
    inputs = comparison_inputs(measured, None, None, estimators)
    judged = choose_target(target, inputs.batch, recorded_differences(measured))
    known, inputs = inputs.batch, inputs.with_settled_ratios(judged)
    along = [along_completions(estimator, inputs.batch) for estimator in estimators]
    inputs, along = inputs.with_combined(along)
    reasons: list[str | None] = []
    for original, estimator in zip(estimators, along, strict=True):
        try:
            refuse_unusable_ratios([original], known, judged)
            needs = [
                need for need in estimator.needs if not (inputs.probed and need in ("token_energy", "token_cross"))
            ]
            inputs.batch.require(needs, estimator.label)
            inputs.refuse_unknown_token_scores([estimator])
            _refuse_failing(original, inputs.batch)
        except ValueError as error:
            reasons.append(str(error))
        else:
            reasons.append(None)
    return reasons


def _refuse_failing(estimator: Weighting, batch: Batch) -> None:
    """Refuse an estimator whose weights cannot be computed with its parameters.

    Raises:
        ValueError: with the estimator and what it says.
    """
    if not all(batch.has(need) for need in estimator.needs):  # the rest was measured by probes
        return
    try:
        with warnings.catch_warnings():  # the comparison itself warns
            warnings.simplefilter("ignore")
            estimator.weights(batch)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{estimator.label} cannot be computed: {error}") from error


def _unknown_row(estimator: Weighting, group_size: int | None) -> EstimatorVariance:
    row = silent_row(estimator.label, np.array([np.nan]))
    return replace(row, group_size=group_size, unit=unit_of(estimator), components=composition_of(estimator))
