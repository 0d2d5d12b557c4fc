"""Which estimator takes the fewest samples?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradstats.analyses.declaration import ORDER, Analysis, AnalysisFigure, Column, level_of
from gradstats.config.options import Target
from gradstats.config.sections import DEFAULT_ESTIMATORS
from gradstats.estimators.display_names import uses_own_sample
from gradstats.estimators.estimator import Weighting
from gradstats.plots.names import reference_name
from gradstats.plots.variance import ShortRows, plot_variance, plot_variance_panels, short_rows
from gradstats.stats.measured import MeasuredGradients
from gradstats.stats.variance.comparison import compare_available
from gradstats.stats.variance.quantities import COMPARED, JUDGED, QUANTITIES, TARGETS, filled_in, shown_in
from gradstats.stats.variance.result import VarianceComparison
from gradstats.system.late import pd

_ESTIMATES, _RESULT = "stats/variance/estimates.py", "stats/variance/result.py"
#: The columns of a comparison, which other analyses extend.
COLUMNS = (
    Column("estimator", "label of the estimator", short=True, file="estimators/by_label.py"),
    Column("group_size", "completions per group", file="stats/variance/quantities.py"),
    Column("unit", "unit of the gradient; ratios compare rows of one unit", file="estimators/estimator.py"),
    Column("components", "the choices that a recipe is composed of", file="estimators/recipes/components.py"),
    Column("target", "the gradient that bias and cosine are judged against", file="stats/variance/inputs.py"),
    *(Column(one.name, filled_in(one.heading, {}), one.heading, estimated=True, file=_ESTIMATES) for one in COMPARED),
    Column("ratio_simultaneous", "interval of the ratio that holds for all rows at once", file=_ESTIMATES),
    Column(f"{JUDGED.name}_simultaneous", "the same for the relative noise", file=_ESTIMATES),
    Column("n_effective_prompts", "number of equally noisy prompts that the variance rests on", file=_ESTIMATES),
    Column("most_influential_prompt", "the prompt without which tr Cov changes most", file=_ESTIMATES),
    Column("in_best_set", "whether it may have the lowest relative noise", file=_RESULT),
)


def variance(
    measured: MeasuredGradients,
    estimators: Sequence[str | Weighting] = DEFAULT_ESTIMATORS,
    *,
    group_size: int | Sequence[int] | None = None,
    reference: str = "rloo",
    target: Target = "auto",
    prompts_per_batch: int | None = None,
    max_grad_norm: float | None = None,
    n_resamples: int | None = None,
    rng: int | np.random.Generator = 0,
) -> VarianceComparison:
    """Compare as :func:`gradstats.compare` does, with a row of NaN for each estimator that cannot be computed.

    Args:
        measured: a measurement.
        estimators: labels, with parameters as in "length_weighted(alpha=0.8, loo=True)".
        group_size: completions of a group; all of a prompt by default.
        reference: as in :func:`gradstats.compare`.
        target: as in :func:`gradstats.compare`.
        prompts_per_batch: as in :func:`gradstats.compare`.
        max_grad_norm: as in :func:`gradstats.compare`.
        n_resamples: as in :func:`gradstats.compare`.
        rng: as in :func:`gradstats.compare`.

    Raises:
        ValueError: as :func:`gradstats.compare`, where no estimator can be computed.
    """
    return compare_available(
        measured,
        estimators,
        group_size=group_size,
        reference=reference,
        target=target,
        prompts_per_batch=prompts_per_batch,
        max_grad_norm=max_grad_norm,
        n_resamples=n_resamples,
        rng=rng,
    )


def _caption(frame: pd.DataFrame) -> str:
    about = frame.attrs
    n = f" over n = {about['n_prompts']} prompts" if "n_prompts" in about else ""
    groups = f" ({about['n_groups']} groups)" if "n_groups" in about else ""
    caption = (
        f"Variance of one prompt group's gradient, {level_of(frame)}intervals{n}{groups}; ratios "
        f"to {about.get('reference', 'the reference')} are paired."
    )
    if about.get("target") == "importance":
        caption += (
            f" Cosine and bias are judged against the {TARGETS['importance']} gradient of the scored policy; effective "
            f"sample size {about['effective_sample_size']:.0f}."
        )
    return caption


def _figure_caption(frame: pd.DataFrame) -> str:
    """Say what the marks of the figure mean, as far as it has them, and name the rows that it leaves out."""
    chosen = short_rows(frame, JUDGED.name) if _by_value(frame) else ShortRows(frame, [], [])
    parts = [
        f"Samples that each estimator needs for equal noise at equal signal, where {reference_name(frame)} needs 1, "
        f"with {level_of(frame)}intervals."
    ]
    if f"{JUDGED.name}_simultaneous_low" in frame:
        parts.append("Thin bars: intervals that hold for all rows at once.")
    if "in_best_set" in frame:
        parts.append("Bold: the best set, which holds the lowest at this level.")
    if any(uses_own_sample(str(label)) for label in chosen.drawn["estimator"]):
        parts.append("Half-filled markers: the baseline includes the completion itself.")
    if not np.isfinite(chosen.drawn[JUDGED.name].to_numpy(dtype=float)).all():
        parts.append("Dashed bars: no estimate; arrows: no end.")
    if chosen.unresolved:
        parts.append(f"Not drawn, since not resolved: {'; '.join(chosen.unresolved)}.")
    if chosen.between:
        parts.append(f"Not drawn, between the rows shown: {'; '.join(chosen.between)}.")
    return " ".join(parts).replace("\u00a0", " ")


def _by_value(frame: pd.DataFrame) -> bool:
    return frame.attrs.get(ORDER) != "listed"


def _resolved(frame: pd.DataFrame) -> pd.DataFrame | None:
    return frame if np.isfinite(frame[JUDGED.name].to_numpy(dtype=float)).any() else None


ANALYSIS = Analysis(
    name="variance",
    ask=variance,
    options=(
        "estimators", "group_size", "reference", "target", "prompts_per_batch", "max_grad_norm", "n_resamples", "rng",
    ),
    columns=COLUMNS,
    headings={name: QUANTITIES[name].heading for name in shown_in("paper")},
    short=("matched_ratio", "matched_bias_share"),
    row_heading="estimator",
    caption=_caption,
    section="variance",
    figures=(
        AnalysisFigure(
            "variance",
            _figure_caption,
            lambda frame: plot_variance(frame, sort=_by_value(frame), short=_by_value(frame)),
            link="figure: variance",
            after=None,
            table="variance",
        ),
        AnalysisFigure(
            "variance_bias",
            "Variance at matched signal, next to cosine and share of bias, with the lowest at the top.",
            lambda frame: plot_variance_panels(frame, sort=_by_value(frame)),
            link="figure: variance, cosine and bias",
            after="length_scaling",
            table="variance",
            rows=_resolved,
        ),
    ),
)  # fmt: skip
