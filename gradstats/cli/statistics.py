"""The commands on a measurement: α, the variance comparison, and further questions with one command each."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradstats.cli import terminal
from gradstats.cli.code_of_run import with_code_of_run
from gradstats.cli.options import AsJson, Level, OptionsOf, Overwrite, Partial, Positional, Trust, described_by
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.option_types import FitMethod, IntervalMethod, Target
from gradstats.config.sections import VarianceSection
from gradstats.system.files import to_json

if TYPE_CHECKING:
    import pandas as pd


def refuse_unknown_estimators(*labels: str) -> None:
    """Refuse unknown labels before the statistics are imported, which takes longer than looking the labels up.

    Raises:
        KeyError, TypeError, ValueError, ImportError: as :func:`gradstats.estimators.get`.
    """
    from gradstats import estimators

    for label in labels:
        estimators.get(label)


def save_table(out: Path | None, frame: pd.DataFrame, overwrite: bool, *, quiet: bool = False) -> None:
    """Write a table to the path that the user asked for, if any, and name it, unless the output is JSON (quiet)."""
    if out is not None:
        from gradstats.report.run_folder import writing_into
        from gradstats.system.outputs import write_table

        with writing_into(out):
            write_table(out, frame, overwrite=overwrite)
        if not quiet:
            terminal.console.print(f"→ {out}")


def alpha(
    source: Positional[Path],
    method: FitMethod = "ols",
    interval: IntervalMethod | None = None,
    confidence_level: Level = CONFIDENCE_LEVEL,
    as_json: AsJson = False,
    partial: Partial = False,
) -> None:
    """Fit the length-scaling exponent α of ‖S‖² ∝ T^(2α), with its interval and diagnostics.

    Args:
        source: a table with the columns length, sq_norm and, where prompts repeat, prompt_id (.csv, .tsv, .jsonl or
            .parquet; - for standard input); a measurement folder or a run directory; or the name of a published data
            set, as in gloeckle2026.
        method: least squares in logarithms, the median of pairwise slopes, the scaling of the mean of ‖S‖² (by gamma or
            Poisson pseudo-likelihood), least squares with a random effect of the prompt, the scaling among answers to
            one prompt, or that between prompts.
        interval: kind of interval; by default cluster-robust by prompt (CR2).
    """
    import gradstats
    from gradstats.runs.points import load_points

    report = gradstats.alpha_report(
        **load_points(source, partial=partial), method=method, interval=interval, confidence_level=confidence_level
    )
    if as_json:
        print(to_json(report.summary()))
    else:
        terminal.show_alpha_report(report)


@with_code_of_run
def variance(
    source: Positional[Path],
    settings: OptionsOf[VarianceSection],
    by_length: int | None = None,
    blocks: bool = False,
    out: Path | None = None,
    partial: Partial = False,
    trust: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compare the variance of policy-gradient estimators on a measurement.

    Args:
        source: a measurement folder or a run directory.
        by_length: print noise, signal and bias in that many bins of completion length instead, the reference first.
        blocks: compare on each block of parameters alone, of a measurement with --block-sketches.
        out: also write the table as CSV.
    """
    refuse_unknown_estimators(*settings.estimators, settings.reference)
    from gradstats.measurement.storage import read_measurement
    from gradstats.runs.sources import refuse_foreign_table

    if by_length is not None and settings.max_grad_norm is not None:
        raise ValueError("max_grad_norm clips gradients of whole batches, which are not split by length: leave it out")
    if by_length is not None and blocks:
        raise ValueError("--by-length and --blocks are different tables: give one of them")
    refuse_foreign_table(out, ["estimator", "trace_cov"])
    measured = read_measurement(source, partial=partial)
    with warnings.catch_warnings():  # the notes say the same, and more
        warnings.simplefilter("ignore")
        if by_length is not None:
            from gradstats.runs.breakdowns import length_bins

            frame, notes = length_bins(measured, settings, by_length, settings.first_group_size)
        elif blocks:
            from gradstats.runs.breakdowns import block_variances

            frame, notes = block_variances(measured, settings)
        else:
            from gradstats.stats.variance.available import compare_available

            comparison = compare_available(measured, **settings.arguments())
            frame, notes = comparison.to_frame(settings.confidence_level), comparison.notes
    if as_json:
        terminal.print_json(frame, notes)
    else:
        if by_length is not None:
            from gradstats.report.length_table import length_table

            terminal.show_table(length_table(frame))
        elif blocks:
            from gradstats.report.share_tables import block_table

            terminal.show_table(block_table(frame))
        else:
            terminal.show_variance(frame)
        for sentence in notes:
            terminal.note(sentence)
    save_table(out, frame, overwrite, quiet=as_json)


def tokens(
    source: Positional[Path],
    group_size: int | None = None,
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    seed: Annotated[int, described_by(VarianceSection, "seed")] = 0,
    as_json: AsJson = False,
    partial: Partial = False,
    overwrite: Overwrite = False,
) -> None:
    """Study single tokens: how well proxies predict their energy, how concentrated and correlated it is.

    Numbers and figures are written to the run directory, or to --out.

    Args:
        source: a measurement folder or a run directory, measured with token probes.
        group_size: completions per group in the comparison of optimal token baselines; all by default.
        out: folder for numbers and figures; the run directory by default, none for a bare measurement.
    """
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.runs.sources import folder_of_results

    with folder_of_results(source, out, partial=partial) as folder:
        if folder is not None:
            from gradstats.report.saved_tokens import refuse_foreign_tokens

            refuse_foreign_tokens(folder)
        measured = read_measurement(source, partial=partial)
        quality = gradstats.proxy_quality(measured, group_size=group_size, rng=seed)
        if as_json:
            print(to_json(quality.summary(confidence_level)))
        else:
            terminal.show_tokens(quality, confidence_level)
        if folder is not None:
            from gradstats.report.figures import draw_run
            from gradstats.report.recorded_tables import record_tables
            from gradstats.report.saved_results import read_results
            from gradstats.report.saved_tokens import save_tokens

            save_tokens(quality, folder, confidence_level, overwrite=overwrite)
            results = read_results(folder)
            paths = draw_run(results, folder / "figures", results.figure_style)
            record_tables(folder, paths)
            for path in paths:
                terminal.note(f"→ {path}")


@with_code_of_run
def plan(
    pilot: Positional[Path | None] = None,
    half_width: float = 0.05,
    noise: float | None = None,
    length_spread: float | None = None,
    estimator: str | None = None,
    ratio: float | None = None,
    quantity: str = "ratio",
    reference: str = "rloo",
    group_size: int | None = None,
    signal: bool = False,
    dry_run: bool = False,
    confidence_level: Level = CONFIDENCE_LEVEL,
    as_json: AsJson = False,
    partial: Partial = False,
    trust: Trust = False,
) -> None:
    """Plan how many prompts are needed for α ± a half-width, a ratio of variances, or a resolved expected gradient.

    Args:
        pilot: a CSV file, a measurement folder or a run directory, as for ``gradstats alpha``.
        half_width: desired half-width of the interval of α.
        noise: standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: standard deviation of log T, instead of a pilot.
        estimator: plan for the ratio of its variance to that of the reference, in place of α.
        ratio: the ratio to distinguish from 1; the pilot's by default.
        quantity: ratio, of raw variances, or matched_ratio, of variances at matched signal.
        reference: the estimator in the denominator.
        group_size: completions per group of the ratio; all by default.
        signal: plan how many prompts resolve ‖E ĝ‖² of the estimator, in place of its ratio.
        dry_run: load the policy of a run directory and time a trial of each step, for the hours.
    """
    refuse_unknown_estimators(reference, *([] if estimator is None else [estimator]))
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.runs.points import load_points

    if estimator is None:
        if signal or ratio is not None:
            raise ValueError("--ratio and --signal need --estimator: name the estimator to plan for")
        fit = None if pilot is None else gradstats.fit_length_scaling(**load_points(pilot, partial=partial))
        answer = gradstats.plan_alpha(fit, half_width, confidence_level, noise=noise, length_spread=length_spread)
    else:
        if pilot is None:
            raise ValueError("give a measurement folder or a run directory as the pilot of --estimator")
        measured = read_measurement(pilot, partial=partial)
        with warnings.catch_warnings():  # the plan says what is not resolved
            warnings.simplefilter("ignore")
            compared = gradstats.compare(measured, [estimator], group_size=group_size, reference=reference)
        label, length = compared.rows[0].label, compared.splits[0].mean_length
        answer = (
            gradstats.plan_signal(compared, label, confidence_level)
            if signal
            else gradstats.plan_ratio(
                compared, label, ratio, confidence_level, quantity=quantity, tokens_per_completion=length
            )
        )
    if dry_run:
        from gradstats.config.experiment import load_experiment
        from gradstats.runs.cost import estimate_cost

        if pilot is None or not (pilot / "experiment.yaml").exists():
            raise ValueError(f"--dry-run needs a run directory with an experiment.yaml, and {pilot} is not one")
        answer = answer.at_speed(estimate_cost(load_experiment(str(pilot / "experiment.yaml"))))
    terminal.show_answer(answer, as_json)


@with_code_of_run
def group_size(
    source: Positional[Path],
    estimator: Positional[str],
    group_size: int = 4,
    target: Annotated[Target, described_by(VarianceSection, "target")] = "auto",
    confidence_level: Level = CONFIDENCE_LEVEL,
    as_json: AsJson = False,
    partial: Partial = False,
    trust: Trust = False,
) -> None:
    """Find the group size at which RLOO has an estimator's variance at N completions, at an equal total number.

    Args:
        source: a measurement folder or a run directory, with 2N completions per prompt.
        estimator: its label, such as "length_weighted(alpha=0.8, loo=True)" or "recipe:dapo".
        group_size: N.
    """
    refuse_unknown_estimators(estimator)
    import gradstats
    from gradstats.measurement.storage import read_measurement

    measured = read_measurement(source, partial=partial)
    answer = gradstats.equivalent_group_size(measured, estimator, group_size, target=target)
    terminal.show_answer(answer, as_json, confidence_level)


@with_code_of_run
def shift(
    source: Positional[Path],
    estimator: Positional[str],
    confidence_level: Level = CONFIDENCE_LEVEL,
    as_json: AsJson = False,
    partial: Partial = False,
    trust: Trust = False,
) -> None:
    """Find the shift δ of Asymmetric REINFORCE that a baseline corresponds to on these rollouts.

    Args:
        source: a measurement folder or a run directory.
        estimator: its label, such as "length_weighted(alpha=0.8)", "recipe:opo" or a module:function of your own; of a
            recipe, the baseline before it is divided by a scale.
    """
    refuse_unknown_estimators(estimator)
    import gradstats
    from gradstats.measurement.storage import read_measurement

    answer = gradstats.implied_shift(read_measurement(source, partial=partial), estimator)
    terminal.show_answer(answer, as_json, confidence_level)


def length_reward(
    source: Positional[Path],
    confidence_level: Level = CONFIDENCE_LEVEL,
    as_json: AsJson = False,
    partial: Partial = False,
) -> None:
    """Estimate the correlation of reward with length among answers to the same prompt.

    Args:
        source: a rollouts file or a run directory.
    """
    import gradstats
    from gradstats.rollouts.table import read_rollouts

    answer = gradstats.length_reward_correlation(read_rollouts(source, partial=partial))
    terminal.show_answer(answer, as_json, confidence_level)
