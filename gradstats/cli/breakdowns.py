"""The commands that split gradients by success rate and by length, and that allocate tokens to prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from gradstats.cli import terminal
from gradstats.cli.code_of_run import with_code_of_run
from gradstats.cli.options import AsJson, Level, Overwrite, Partial, Positional, Trust, described_by, one_or_more
from gradstats.cli.statistics import refuse_unknown_estimators, save_table
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.option_types import Target
from gradstats.config.sections import VarianceSection

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.report.tables import Table

Estimators = Annotated[tuple[str, ...], one_or_more("ESTIMATOR")]


@with_code_of_run
def by_success(
    source: Positional[Path],
    estimators: Positional[Estimators],
    success: str | None = None,
    group_size: int | None = None,
    bins: int | None = None,
    target: Annotated[Target, described_by(VarianceSection, "target")] = "auto",
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    partial: Partial = False,
    trust: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Split the expected gradient and the variance of estimators by the success rate of the prompt.

    Args:
        source: a measurement folder or a run directory.
        estimators: their names, with parameters as in "recipe:grpo(scale=none)".
        success: column of the rollouts with the exact rate of each prompt; by default half of a prompt's completions
            choose its bin and the other half form the group.
        group_size: completions per group; all of these by default.
        bins: number of bins of about equally many prompts; 4 by default.
        out: also write the table as CSV.
    """
    refuse_unknown_estimators(*estimators)
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.report.share_tables import success_table
    from gradstats.runs.sources import refuse_foreign_table

    refuse_foreign_table(out, ["estimator", "success_low"])
    measured = read_measurement(source, partial=partial)
    rates = None
    if success is not None:
        frame = measured.rollouts.frame
        if success not in frame:
            raise ValueError(f"--success {success}: the rollouts have no such column, only {', '.join(frame)}")
        rates = frame[success].to_numpy(dtype=np.float64)
    found = gradstats.variance_by_success(
        measured, estimators, success=rates, group_size=group_size, bins=bins, target=target
    )
    frame = found.to_frame(confidence_level)
    _show(frame, success_table(frame), found.notes, out, overwrite, as_json)


@with_code_of_run
def allocate(
    source: Positional[Path],
    estimators: Positional[Estimators],
    tokens: float,
    group_sizes: tuple[int, ...] = (),
    target: Annotated[Target, described_by(VarianceSection, "target")] = "auto",
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    partial: Partial = False,
    trust: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the noise of a batch over prompts and completions per prompt, at an equal number of tokens.

    Args:
        source: a measurement folder or a run directory.
        estimators: their names, recipes and token-level ones included.
        tokens: completion tokens of a batch.
        group_sizes: completions of a prompt; by default powers of two up to the number measured. Larger ones are
            extrapolated for rloo and its multiples.
        out: also write the table as CSV.
    """
    refuse_unknown_estimators(*estimators)
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.report.share_tables import allocation_table
    from gradstats.runs.sources import refuse_foreign_table

    refuse_foreign_table(out, ["estimator", "relative_noise"])
    measured = read_measurement(source, partial=partial)
    found = gradstats.allocate(measured, estimators, tokens=tokens, group_sizes=group_sizes or None, target=target)
    frame = found.to_frame(confidence_level)
    notes = [found.sentence(confidence_level), *found.notes]
    _show(frame, allocation_table(frame), notes, out, overwrite, as_json)


def _show(
    frame: pd.DataFrame, table: Table, notes: Sequence[str], out: Path | None, overwrite: bool, as_json: bool
) -> None:
    if as_json:
        terminal.print_json(frame, notes)
    else:
        terminal.show_table(table)
        for sentence in notes:
            terminal.note(sentence)
    save_table(out, frame, overwrite, quiet=as_json)
