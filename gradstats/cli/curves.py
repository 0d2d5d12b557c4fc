"""The commands that look for the best: variance along a parameter, and learned baselines beside published ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import numpy as np

from gradstats.cli import terminal
from gradstats.cli.added_results import refuse_foreign_result, save_result
from gradstats.cli.code_of_run import with_code_of_run
from gradstats.cli.options import AsJson, Level, Overwrite, Partial, Positional, Trust, described_by
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.option_types import Target
from gradstats.config.sections import VarianceSection
from gradstats.system.files import to_json


@with_code_of_run
def curve(
    source: Positional[Path],
    estimator: Positional[str],
    values: Positional[str],
    group_size: int | None = None,
    reference: Annotated[str, described_by(VarianceSection, "reference")] = "rloo",
    target: Annotated[Target, described_by(VarianceSection, "target")] = "auto",
    prompts_per_batch: Annotated[int | None, described_by(VarianceSection, "prompts_per_batch")] = None,
    n_resamples: Annotated[int | None, described_by(VarianceSection, "n_resamples")] = None,
    max_grad_norm: Annotated[float | None, described_by(VarianceSection, "max_grad_norm")] = None,
    seed: Annotated[int, described_by(VarianceSection, "seed")] = 0,
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    as_json: AsJson = False,
    partial: Partial = False,
    trust: Trust = False,
    overwrite: Overwrite = False,
) -> None:
    """Follow an estimator's variance, cosine and bias along one of its parameters, and find where it is lowest.

    Table and figure are written to the run directory, or to --out.

    Args:
        source: a measurement folder or a run directory.
        estimator: its label, in which the parameter may be missing, as in "length_weighted(loo=True)".
        values: the parameter with its first and last value and how many there are, alpha=0:2:41, or with a list,
            group_size=2,4,8; clip_width sets eps_low and eps_high.
        group_size: completions per group; all of a prompt by default.
        out: folder for table and figure; the run directory by default, none for a bare measurement.
    """
    parameter, grid = parameter_values(values)
    from gradstats.estimators import get
    from gradstats.estimators.with_parameter import with_parameter

    get(reference)  # unknown labels are refused before the statistics are imported, which takes longer
    one = get(estimator) if parameter == "group_size" else with_parameter(estimator, parameter, float(grid[0]))
    from gradstats.measurement.storage import read_measurement
    from gradstats.report.curves import curve_name, curve_table
    from gradstats.runs.sources import folder_of_results
    from gradstats.stats import variance_curve

    name = curve_name(estimator, parameter)
    options = {} if parameter == "group_size" else {"group_size": group_size}
    with folder_of_results(source, out, partial=partial) as folder:
        refuse_foreign_result(folder, name, ["value", "trace_cov"])
        measured = read_measurement(source, partial=partial)
        with warnings.catch_warnings():  # its notes say the same, and more
            warnings.simplefilter("ignore")
            found = variance_curve(
                measured, estimator, parameter, grid, reference=reference, target=target,
                prompts_per_batch=prompts_per_batch, n_resamples=n_resamples, max_grad_norm=max_grad_norm,
                rng=seed, **options,
            )  # fmt: skip
        frame = found.to_frame(confidence_level)
        if as_json:
            about = {str(name): value for name, value in frame.attrs.items()} | {"curve": found.estimator}
            print(to_json(about | {"rows": frame.to_dict("records")}))
        else:
            terminal.show_table(curve_table(frame))
            terminal.console.print(found.sentence(confidence_level), markup=False)
        for sentence in found.notes:
            terminal.note(sentence)
        save_result(frame, folder, name, overwrite, "values" in {*one.needs, *get(reference).needs})


def optimal_baselines(
    source: Positional[Path],
    group_size: int | None = None,
    target: Annotated[Target, described_by(VarianceSection, "target")] = "auto",
    prompts_per_batch: Annotated[int | None, described_by(VarianceSection, "prompts_per_batch")] = None,
    n_resamples: Annotated[int | None, described_by(VarianceSection, "n_resamples")] = None,
    seed: Annotated[int, described_by(VarianceSection, "seed")] = 0,
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    as_json: AsJson = False,
    partial: Partial = False,
    overwrite: Overwrite = False,
) -> None:
    """Learn the exponent, shift and mixture of means of lowest variance, and compare published baselines with them.

    Table and figure are written to the run directory, or to --out.

    Args:
        source: a measurement folder or a run directory.
        group_size: completions per group; all of a prompt by default.
        out: folder for table and figure; the run directory by default, none for a bare measurement.
    """
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.report.curves import baselines_table
    from gradstats.report.saved_frames import OPTIMAL_BASELINES
    from gradstats.runs.sources import folder_of_results

    with folder_of_results(source, out, partial=partial) as folder:
        refuse_foreign_result(folder, OPTIMAL_BASELINES, ["estimator", "kind", "ratio_to_learned"])
        measured = read_measurement(source, partial=partial)
        found = gradstats.optimal_baselines(
            measured, group_size=group_size, target=target, prompts_per_batch=prompts_per_batch,
            n_resamples=n_resamples, rng=seed,
        )  # fmt: skip
        frame = found.to_frame(confidence_level)
        if as_json:
            about = {str(name): value for name, value in frame.attrs.items()}
            print(to_json(about | {"rows": frame.to_dict("records")}))
        else:
            terminal.show_table(baselines_table(frame))
            terminal.console.print(found.sentence(confidence_level), markup=False)
        for sentence in found.notes:
            terminal.note(sentence)
        save_result(frame, folder, OPTIMAL_BASELINES, overwrite)


def parameter_values(text: str) -> tuple[str, np.ndarray]:
    """Read a parameter and its values: ``alpha=0:2:41``, first, last and how many, or ``k=1,2,4``.

    Raises:
        ValueError: for anything else.

    Example:
        >>> parameter_values("alpha=0:1:3")
        ('alpha', array([0. , 0.5, 1. ]))
    """
    name, _, given = text.partition("=")
    try:
        if ":" in given:
            first, last, count = given.split(":")
            values = np.linspace(float(first), float(last), int(count))
        else:
            values = np.array([float(value) for value in given.split(",")])
    except ValueError:
        values = np.array([])
    if not name.isidentifier() or len(values) < 2:
        raise ValueError(
            f"{text!r} cannot be read as a parameter with values: write alpha=0:2:41 (first, last, how many), or "
            "group_size=2,4,8"
        )
    return name, values
