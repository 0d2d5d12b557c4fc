"""How many prompts does a study need?"""

from __future__ import annotations

import warnings
from typing import Literal

from numpy.typing import ArrayLike

from gradstats import estimators as families
from gradstats.analyses.batch_size import batch_size
from gradstats.analyses.declaration import Analysis, Column
from gradstats.analyses.points import load_points
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.measurement.measurement import Measurement
from gradstats.stats.length_scaling.alpha import fit_length_scaling
from gradstats.stats.plans import plan_alpha, plan_critical_batch, plan_ratio, plan_signal
from gradstats.stats.prompt_plan import PromptPlan
from gradstats.stats.variance.alignment import CriticalBatch
from gradstats.stats.variance.comparison import compare


def plan(
    measured: Measurement | None = None,
    *,
    half_width: float = 0.05,
    noise: float | None = None,
    length_spread: float | None = None,
    estimator: str | None = None,
    ratio: float | None = None,
    quantity: Literal["ratio", "matched_ratio"] = "ratio",
    reference: str = "rloo",
    group_size: int | None = None,
    signal: bool = False,
    within: float | None = None,
    equivalent: float | None = None,
    critical_batch: float | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    lengths: ArrayLike | None = None,
    sq_norms: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
) -> PromptPlan:
    """Plan a study of α, of a ratio of variances, of the expected gradient or of a critical batch, from a pilot.

    Args:
        measured: the pilot; or, for α, its arrays or none.
        half_width: desired half-width of the interval of α.
        noise: standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: standard deviation of log T, instead of a pilot.
        estimator: plan for the ratio of its variance to that of the reference, in place of α.
        ratio: the ratio to distinguish from 1; the pilot's by default.
        quantity: ratio, of raw variances, or ``matched_ratio``, of variances at matched signal.
        reference: the estimator in the denominator.
        group_size: completions per group of the ratio; all by default.
        signal: plan how many prompts resolve ‖E ĝ‖² of the estimator, in place of its ratio.
        within: plan until the ratio is known to this share of itself, as in 0.03.
        equivalent: plan until the two are shown to differ by at most this share, as in 0.05, if their ratio is 1.
        critical_batch: plan until the critical batch of the estimator is known to this factor, as in 2.
        confidence_level: of the planned interval.
        lengths: as in :func:`gradstats.fit_length_scaling`.
        sq_norms: likewise.
        groups: likewise.
        truncated: likewise.

    Raises:
        TypeError: as :func:`gradstats.plan_alpha`.
        ValueError: likewise, as :func:`gradstats.plan_ratio` and :func:`gradstats.plan_signal`, for a ratio or signal
            without an estimator, and an estimator without a measurement.
    """
    if estimator is None:
        if signal or any(one is not None for one in (ratio, within, equivalent, critical_batch)):
            raise ValueError(
                "--ratio and --signal need --estimator, as --within, --equivalent and --critical-batch do: name the "
                "estimator to plan for"
            )
        fit = None
        if measured is not None or lengths is not None:
            fit = fit_length_scaling(measured, lengths=lengths, sq_norms=sq_norms, groups=groups, truncated=truncated)
        return plan_alpha(fit, half_width, confidence_level, noise=noise, length_spread=length_spread)
    if measured is None:
        raise ValueError("give a measurement folder or a run directory as the pilot of --estimator")
    if critical_batch is not None:
        return _of_critical_batch(measured, estimator, critical_batch, group_size, reference, confidence_level)
    with warnings.catch_warnings():  # the plan says what is not resolved
        warnings.simplefilter("ignore")
        compared = compare(measured, [estimator], group_size=group_size, reference=reference)
    label, length = compared.rows[0].label, compared.splits[0].mean_length
    if signal:
        return plan_signal(compared, label, confidence_level)
    return plan_ratio(
        compared,
        label,
        ratio,
        confidence_level,
        quantity=quantity,
        within=within,
        equivalent=equivalent,
        tokens_per_completion=length,
    )


def _of_critical_batch(
    measured: Measurement,
    estimator: str,
    factor: float,
    group_size: int | None,
    reference: str,
    confidence_level: float,
) -> PromptPlan:
    with warnings.catch_warnings():  # the plan says what is not resolved
        warnings.simplefilter("ignore")
        found = batch_size(measured, [estimator], group_size=group_size, reference=reference)
    pilot = found.rows[0].critical_batch
    if not isinstance(pilot, CriticalBatch):
        raise ValueError(f"the pilot has no critical batch of {estimator!r}: {found.sentence()}")
    return plan_critical_batch(
        pilot,
        factor,
        confidence_level,
        estimator=estimator,
        completions_per_prompt=len(measured.rollouts) / len(set(measured.rollouts.prompt_id)),
        tokens_per_completion=float(measured.rollouts.lengths.mean()),
    )


_FILE = "stats/prompt_plan.py"

ANALYSIS = Analysis(
    name="plan",
    ask=plan,
    options=(
        "half_width", "noise", "length_spread", "estimator", "ratio", "quantity", "reference", "group_size", "signal",
        "within", "equivalent", "critical_batch",
    ),
    advanced=("noise", "length_spread", "quantity"),
    weightings=lambda asked: [families.get(asked[name]) for name in ("estimator", "reference") if asked[name]],
    columns=(
        Column("confidence_level", "level of the planned interval", file=_FILE),
        Column("n_prompts", "prompts needed, by the pilot's estimates", estimated=True, file=_FILE),
        Column("n_prompts_assured", "prompts that are enough in 80 % of studies", file=_FILE),
        Column("completions_per_prompt", "as in the pilot", file=_FILE),
        Column("tokens_per_completion", "mean length in the pilot", file=_FILE),
        Column("pilot_n_prompts", "prompts of the pilot", file=_FILE),
        Column("seconds_per_token", "of sampling and measuring", file=_FILE),
        Column("n", "completions of n_prompts", file=_FILE),
        Column("n_assured", "completions of n_prompts_assured", file=_FILE),
        Column("n_tokens", "tokens of those", file=_FILE),
        Column("hours", "hours that they take", file=_FILE),
    ),
    source=load_points,
    source_help="the pilot: a table of points, a measurement folder or a run directory, as for the question alpha.",
)  # fmt: skip
