"""In which blocks does an estimator's noise lie?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradstats.analyses.declaration import Analysis, Column, chosen, level_of, size_of_groups
from gradstats.analyses.variance import COLUMNS, VarianceComparison, compare, row_name, with_sizes_in_names
from gradstats.estimators.estimator import Weighting
from gradstats.measurement.measurement import NO_BLOCK_SKETCHES, Measurement
from gradstats.system.lazy_imports import pd


def variance_by_block(
    measured: Measurement,
    estimators: Sequence[str | Weighting],
    *,
    group_size: int | Sequence[int] | None = None,
    **options: Any,
) -> VarianceComparison:
    """Compare the gradient of estimators with respect to each block of parameters, as :func:`gradstats.compare` does.

    Args:
        measured: a measurement with ``block_sketches``.
        estimators: labels; those that the measurement does not allow are left out, and the notes state why.
        group_size: as in :func:`gradstats.compare`.
        **options: the other arguments of :func:`gradstats.compare`.
    """
    return compare(measured, estimators, group_size=group_size, blocks=True, unavailable="leave_out", **options)


def _row_name(row: dict[str, Any]) -> str:
    return f"{row['block']}, {row_name(row)}"


def _caption(frame: pd.DataFrame) -> str:
    return (
        f"Variance of the gradient of one prompt group{size_of_groups(frame)} with respect to each block of "
        f"parameters, and its ratio to that of {frame.attrs['reference']} on the same block, "
        f"{level_of(frame)}intervals over prompts."
    )


ANALYSIS = Analysis(
    name="variance_by_block",
    ask=variance_by_block,
    unavailable_because=lambda measured: NO_BLOCK_SKETCHES if measured.sketches_by_block is None else "",
    options=("estimators", "group_size", "reference", "target", "prompts_per_batch", "n_resamples", "rng"),
    columns=(
        Column("block", "block of parameters", short=True, file="analyses/variance.py"),
        *chosen(COLUMNS, {"trace_cov": "variance", "ratio": "ratio"}, short=("trace_cov", "ratio")),
    ),
    row_heading="block, estimator",
    row_name=_row_name,
    display_frame=with_sizes_in_names,
    caption=_caption,
)
