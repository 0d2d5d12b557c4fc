"""What every comparison begins with: completions, target and estimators in the form in which they can be weighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numpy.typing import ArrayLike

from gradstats.config.option_types import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.along_completions import along_completions
from gradstats.estimators.estimator import Weighting
from gradstats.stats.measured import MeasuredGradients
from gradstats.stats.variance.comparison_inputs import ComparisonInputs, comparison_inputs
from gradstats.stats.variance.target import TargetChoice, choose_target, recorded_differences
from gradstats.stats.variance.unusable_ratios import refuse_unusable_ratios


def prepared_inputs(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[Weighting],
    scores: ArrayLike | None,
    scores_are_sketches: bool | None,
    target: AskedTarget,
    fields: Mapping[str, ArrayLike | None] | None = None,
) -> tuple[ComparisonInputs, list[Weighting], TargetChoice]:
    """Return the inputs of a comparison, its estimators as these inputs allow them, and what they are judged against.

    Judged on-policy, ratios that differ from 1 by rounding only are 1; exponents within prompts are fitted on all
    prompts; estimators whose weights are constant along completions need no scores of tokens; recipes whose weightings
    were measured are combinations of these.

    Args:
        measured_or_batch: as for :func:`gradstats.compare`.
        estimators: as they were found.
        scores: as for :func:`gradstats.compare`.
        scores_are_sketches: as for :func:`gradstats.compare`.
        target: as for :func:`gradstats.compare`.
        fields: further fields of the measurement's batch.

    Raises:
        TypeError, ValueError: as for :func:`gradstats.compare`.
    """
    inputs = comparison_inputs(measured_or_batch, scores, scores_are_sketches, estimators, fields)
    judged = choose_target(target, inputs.batch, recorded_differences(measured_or_batch))
    refuse_unusable_ratios(estimators, inputs.batch, judged)
    inputs, estimators = inputs.with_settled_ratios(judged).with_fitted_exponents(estimators)
    if inputs.scores.ndim == 2:  # equal weights along each completion need no scores of tokens
        estimators = [along_completions(estimator, inputs.batch) for estimator in estimators]
    return *inputs.with_combined(estimators), judged
