"""The commands that compute statistics of runs and measurements, and what they share."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

from gradstats.cli import terminal
from gradstats.cli.options import (
    All,
    AsJson,
    Level,
    Notes,
    OptionsOf,
    Overwrite,
    Partial,
    PolicySettings,
    Positional,
    Progress,
    PromptCount,
    PromptSettings,
    PromptSource,
    Trust,
    one_or_more,
    policy_section,
    prompts_section,
)
from gradstats.config.options import CONFIDENCE_LEVEL, FitMethod, IntervalMethod
from gradstats.config.sections import SamplingSection, VarianceSection
from gradstats.system.files import to_json
from gradstats.system.user_code import MissingModuleError, UserCodeError, code_beside

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.answers import Answer


def save_result(
    answer: Answer, folder: Path, name: str, overwrite: bool, uses_values: bool, *, quiet: bool = False
) -> None:
    """Write an answer and its figure to a run, or to the folder asked for, and name one, unless the output is JSON."""
    from gradstats.report.added_results import save_addition

    paths = save_addition(answer, folder, name, overwrite=overwrite, uses_values=uses_values)
    if not quiet:
        drawn = next((path for path in paths if path.suffix not in (".csv", ".json")), paths[0])
        terminal.show([f"  → {drawn}"])


P = ParamSpec("P")


def with_code_of_run(command: Callable[P, None]) -> Callable[P, None]:
    """Let a command whose first argument is a run find modules beside its experiment file, see :func:`code_of_run`.

    Args:
        command: a command with an option ``trust``.
    """
    signature = inspect.signature(command)

    @functools.wraps(command)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> None:
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        with code_of_run(next(iter(given.arguments.values())), bool(given.arguments["trust"])):
            command(*arguments, **options)

    return wrapped


@contextmanager
def code_of_run(source: object, trust: bool) -> Iterator[None]:
    """Search the folder of a run's experiment file for modules as well, while the context is open.

    The run records where that folder is. A run may come from someone else, who may have recorded any folder: it is
    searched only with permission.

    Args:
        source: a run directory; for anything else nothing is added.
        trust: search the recorded folder.

    Raises:
        MissingModuleError: for a module that is not found, with the recorded folder where there is one.
    """
    with code_beside(_recorded_folder(source)) if trust else nullcontext():
        try:
            yield
        except MissingModuleError as error:
            folder = None if trust else _recorded_folder(source)
            if folder is None:
                raise
            raise UserCodeError(
                f"{error}; the experiment file of {source} was in {folder}: add --trust to search there as well"
            ) from error


def _recorded_folder(source: object) -> Path | None:
    from gradstats.runs.directory import experiment_folder

    return experiment_folder(source) if isinstance(source, Path) else None


def save_table(out: Path | None, frame: pd.DataFrame, overwrite: bool, *, quiet: bool = False) -> None:
    """Write a table to the path that the user asked for, if any, and name it, unless the output is JSON (quiet)."""
    if out is not None:
        from gradstats.report.saved_results import writing_into
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
    everything: All = False,
    notes: Notes = False,
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
    from gradstats.analyses.points import load_points

    report = gradstats.alpha_report(
        **load_points(source, partial=partial), method=method, interval=interval, confidence_level=confidence_level
    )
    if as_json:
        print(to_json(report.summary()))
    else:
        terminal.show_alpha(report, str(source), everything, notes)


@with_code_of_run
def variance(
    source: Positional[Path],
    settings: OptionsOf[VarianceSection],
    out: Path | None = None,
    partial: Partial = False,
    trust: Trust = False,
    overwrite: Overwrite = False,
    everything: All = False,
    notes: Notes = False,
    as_json: AsJson = False,
) -> None:
    """Compare the variance of policy-gradient estimators on a measurement.

    Args:
        source: a measurement folder or a run directory, whose own estimators are compared where none are named.
        out: also write the table as CSV.
    """
    from gradstats import estimators

    for label in (*settings.estimators, settings.reference):  # before the imports, which take longer
        estimators.get(label)
    from gradstats.analyses.variance import ANALYSIS
    from gradstats.measurement.measurement import read_measurement
    from gradstats.report.verdict import headline_of
    from gradstats.runs.analysis import claim_table

    claim_table(out, ANALYSIS.known_by)
    settings = with_those_of_run(source, settings)
    measured = read_measurement(source, partial=partial)
    with warnings.catch_warnings():  # the notes say the same, and more
        warnings.simplefilter("ignore")
        comparison = ANALYSIS(measured, **settings.arguments())
    frame, said = comparison.to_frame(settings.confidence_level), comparison.notes
    if as_json:
        terminal.print_json(frame, said)
    else:
        terminal.show_comparison(
            comparison, frame, headline_of(str(source), measured.rollouts), said, everything, notes
        )
    save_table(out, frame, overwrite, quiet=as_json)


def with_those_of_run(source: Path, settings: VarianceSection) -> VarianceSection:
    """Return settings with a run's own estimators where none are named, and the usual reference and target as its."""
    from gradstats.report.saved_results import is_run_directory, read_recorded_experiment

    usual = VarianceSection()
    if settings.estimators != usual.estimators or not is_run_directory(source):
        return settings
    of_run = read_recorded_experiment(source / "experiment.yaml").variance
    names = ("estimators", "reference", "target")
    unchanged = {name: getattr(of_run, name) for name in names if getattr(settings, name) == getattr(usual, name)}
    return settings.model_copy(update=unchanged)


def profile(
    sources: Positional[Annotated[tuple[str, ...], one_or_more("RUN_OR_POLICY")]],
    settings: OptionsOf[SamplingSection],
    prompts: PromptSource = "embedded",
    n: PromptCount = None,
    prompt_settings: PromptSettings = (),
    policy_settings: PolicySettings = (),
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    everything: All = False,
    as_json: AsJson = False,
    progress: Progress = True,
    partial: Partial = False,
    overwrite: Overwrite = False,
) -> None:
    """Profile policies side by side: entropy, spread of ‖S‖², α, effect of the reward, variance of a few estimators.

    Args:
        sources: run directories or measurement folders; or policies (as for ``gradstats sample``), from which
            completions are drawn and measured with the options below.
        out: also write the table, as OUT.tex, OUT.md and OUT.csv.
    """
    from gradstats.analyses import profile_policy
    from gradstats.cli.answers import answer_screen
    from gradstats.report.analysis_tables import plain_short_table
    from gradstats.report.saved_results import refuse_inside_run, writing_into
    from gradstats.report.tables import claim_tables, profile_table, table_paths
    from gradstats.runs.pipeline import measurement_for_profile, refuse_missing_run

    if not sources:
        raise ValueError("name at least one run directory or policy: gradstats profile RUN_OR_POLICY …")
    if out is not None:
        claim_tables(out)
        for path in table_paths(out):
            refuse_inside_run(path)
    source = prompts_section(prompts, n, settings.seed, prompt_settings)
    names = [Path(name).name for name in sources]
    if len(set(names)) < len(names):  # folders of the same name: only the whole path distinguishes them
        names = list(sources)
    profiles = {}
    for heading, name in zip(names, sources, strict=True):
        refuse_missing_run(name)
        policy = policy_section(name, policy_settings)
        measured = measurement_for_profile(name, policy, source, settings, partial=partial, progress=progress)
        profiles[heading] = profile_policy(measured)
    table = profile_table(profiles, confidence_level=confidence_level)
    if as_json:
        print(to_json({"rows": table.source.to_dict("records")}))
    elif everything:
        terminal.show_table(table)
    else:
        opening = "\n".join(f"{name}: {found.sentence(confidence_level)}" for name, found in profiles.items())
        closing = terminal.more(0, notes=False, everything=False)
        terminal.show(answer_screen(opening, plain_short_table(table), closing))
    if out is not None:
        with writing_into(out):
            paths = table.save(out, overwrite=overwrite)
        for path in paths:
            terminal.console.print(f"→ {path}")
