"""The analysis of a run: fit, compare, break down, draw and report, from the measurement alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from gradstats.analyses import registry
from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.measurement.state_values import digest_of_state_values
from gradstats.measurement.token_scores import remark_on_precision
from gradstats.report.saved_results import (
    ANSWERS,
    STATE_VALUES,
    attributes_of,
    enclosing_run,
    is_run_directory,
    listed_additions,
    refuse_changed_tables,
    refuse_inside_run,
    save_frame,
    save_kept,
    writing_into,
)
from gradstats.runs.directory import ANALYSIS, RunDirectory, remove_listed_results
from gradstats.runs.regrading import read_regradings
from gradstats.system.files import read_json, write_csv, write_json
from gradstats.system.lock import only_writer
from gradstats.system.outputs import csv_with, refuse_foreign, refuse_links
from gradstats.system.progress import ProgressReport, progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.analyses.alpha import AlphaReport
    from gradstats.analyses.declaration import Analysis
    from gradstats.analyses.sampler_gap import SamplerGap
    from gradstats.analyses.variance import VarianceComparison
    from gradstats.config.experiment import VarianceSection
    from gradstats.stats import LengthScalingFit


def variance_breakdowns(
    measured: Measurement,
    section: VarianceSection,
    doing: Callable[[str], None] = lambda name: None,
    remark: Callable[[str], None] = lambda text: None,
    asked: Mapping[str, bool | Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, pd.DataFrame]:
    """Return tables in addition to the variance comparison, by name; tables that the data do not allow are left out.

    Args:
        measured: the measurement.
        section: the settings of the comparison.
        doing: is told the name of each analysis.
        remark: is told why an analysis is left out that says why.
        asked: what the experiment says of questions: other settings, or false for one that is left out.
    """
    frames: dict[str, pd.DataFrame] = {}
    for one in registry.asked_in_runs():
        if asked.get(one.name) is False:
            continue
        doing(one.name)
        with warnings.catch_warnings():  # the comparison itself has warned of what is not resolved
            warnings.simplefilter("ignore", UserWarning)
            try:
                frames |= one.answer_in_run(measured, section, settings_of(asked.get(one.name)))
            except (ValueError, ArithmeticError) as error:  # too few completions for groups, or too few prompts
                if one.says_why:
                    remark(f"{one.name}: {error}")
                elif isinstance(error, ArithmeticError):
                    raise
    return {name: frame for name, frame in frames.items() if len(frame)}


def settings_of(entry: bool | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings of a question, from what an experiment says of it."""
    return entry if isinstance(entry, Mapping) else {}


def ask_others(run: RunDirectory, measured: Measurement, paths: list[Path], doing: Callable[[str], None]) -> None:
    """Answer the questions that a run keeps apart from its tables, then those of the experiment alone."""
    section, asked = run.experiment.variance, run.experiment.analyses
    apart = [one for one in registry.kept_apart() if one.in_run is not None and asked.get(one.name) is not False]
    for one in apart:
        doing(one.name)
        attempt(run, one.name, partial(_keep, run, measured, one, settings_of(asked.get(one.name)), paths))
    in_every_run = {one.name for one in [*registry.asked_in_runs(), *apart]}
    for name, entry in asked.items():
        if entry is False or name in in_every_run:
            continue
        analysis, settings = registry.get(name), settings_of(entry)
        doing(name)
        if analysis.keeps:
            attempt(run, name, partial(_keep, run, measured, analysis, settings, paths))
            continue
        frames = attempt(run, name, partial(analysis.answer_in_run, measured, section, settings)) or {}
        frame = frames.get(analysis.name)
        if frame is None or not len(frame):
            continue
        if analysis.needs_values and (values := digest_of_state_values(run.values)) is not None:
            frame.attrs[STATE_VALUES] = values
        stem = analysis.files_named(analysis.arguments_in_run(settings, section))
        if registry.analysis_of_file(stem, {}) is not analysis:
            frame.attrs[registry.QUESTION] = name
        paths += save_frame(frame, run.path / "tables" / stem)


def _keep(
    run: RunDirectory, measured: Measurement, analysis: Analysis, settings: Mapping[str, Any], paths: list[Path]
) -> None:
    """Write the tables in which a run keeps an answer, where the measurement holds what it takes."""
    section = run.experiment.variance
    found = analysis.found_in_run(measured, section, settings)
    if found is not None:
        run.remarks += found.notes
        paths += save_kept(analysis, found, run.path, section.confidence_level)


def _save_breakdowns(run: RunDirectory, frames: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write tables as CSV, some as LaTeX and Markdown as well; returns the paths."""
    from gradstats.report.analysis_tables import analysis_table
    from gradstats.report.latex import layout_of

    in_latex = {table.name: table for one in registry.asked_in_runs() if one.in_latex for table in one.tables}
    paths = [run.path / ANSWERS]
    write_json(paths[0], {name: attributes_of(frame) for name, frame in frames.items()})
    for name, frame in frames.items():
        stem = run.path / "tables" / name
        if name in in_latex:
            paths += analysis_table(in_latex[name], frame).save(stem, layout=layout_of(run.experiment.figures))
        else:
            write_csv(stem.with_suffix(".csv"), frame)
            paths.append(stem.with_suffix(".csv"))
    return paths


Result = TypeVar("Result")


@dataclass(frozen=True)
class RunResult:
    """The results of a run, and where they are written.

    Attributes:
        run: the run directory.
        measured: the measurement.
        alpha: the length-scaling fit with its diagnostics, or None where the data do not allow one (the notes state
            why).
        comparison: the variance comparison; None as for ``alpha``.
        paths: the files of results, figures and tables.
        gap: the distance of sampler and scorer, or None where the sampler recorded no log-probabilities.
    """

    run: RunDirectory
    measured: Measurement
    alpha: AlphaReport | None
    comparison: VarianceComparison | None
    paths: list[Path]
    gap: SamplerGap | None = None

    @property
    def fit(self) -> LengthScalingFit | None:
        """The length-scaling fit, without its diagnostics."""
        return None if self.alpha is None else self.alpha.fit


def analyse(run: RunDirectory, progress: bool = False) -> RunResult:
    """Fit, compare, draw and report from the measurement; needs neither the model nor torch."""
    from gradstats.report.page import page_of

    # Before the work, and before the manifest tells another version.
    refuse_foreign(run.path / "report.html", page_of(run.path))
    with run.step(ANALYSIS):
        measured = read_measurement(run.measurement).keeping_derived()
    # α, the comparison, its breakdowns and other questions, figures, the page.
    entries = run.experiment.analyses
    questions = {*(one.name for one in registry.every() if one.in_run is not None), *entries}
    questions -= {name for name, entry in entries.items() if entry is False}
    n_steps = 2 + len(questions) + 2
    with progress_bar("analysing", n_steps, shown=progress) as report:
        result = _analyse(run, measured, report)
        report.doing("")
    return result


def _analyse(run: RunDirectory, measured: Measurement, report: ProgressReport) -> RunResult:
    from gradstats.report.figures import draw_run_for_report
    from gradstats.report.page import remove_page, remove_unmarked_page, write_page_of_run
    from gradstats.report.saved_results import read_results
    from gradstats.stats.variance.sketch_error import rotated_once

    paths: list[Path] = []
    with run.step(ANALYSIS):
        added = kept_additions(run, len(measured))
        # Of an earlier analysis, which this one may not replace.
        added = [path for path in added if not _left_out(run, path)]
        remove_listed_results(run.path, "", "tables", keep=added)
        scores = measured.token_scores()
        if scores is not None:
            warnings.warn(remark_on_precision(scores), UserWarning, stacklevel=2)
        report.doing("length scaling")
        alpha = attempt(run, "length scaling", lambda: fit_alpha(run, measured, paths))
        with rotated_once():
            report.doing("variance")
            comparison = attempt(run, "variance", lambda: compare_estimators(run, measured, paths))
            breakdowns = variance_breakdowns(
                measured,
                run.experiment.variance,
                lambda name: report.doing(name.replace("_", " ")),
                run.remarks.append,
                run.experiment.analyses,
            )
        paths += _save_breakdowns(run, breakdowns)
        ask_others(run, measured, paths, lambda name: report.doing(name.replace("_", " ")))
        report.doing("figures")
        drawn = None
        remove_listed_results(run.path, "figures")
        if not (alpha is None and comparison is None):
            style = run.experiment.figures
            drawn = attempt(
                run,
                "figures",
                lambda: draw_run_for_report(read_results(run.path, checked=False), run.path / "figures", style),
            )
            paths += [] if drawn is None else drawn.paths
        gap = distance_of_sampler(run, measured)
    report.doing("report")
    remove_unmarked_page(run.path)
    paths += [path for path in added if path not in paths]
    run.write_manifest(measured, paths, gap)
    paths.append(run.path / "manifest.json")
    if alpha is not None or comparison is not None:
        paths.append(write_page_of_run(run.path, None if drawn is None else drawn.svgs))
    else:
        remove_page(run.path)
    return RunResult(run, measured, alpha, comparison, paths, gap)


def _left_out(run: RunDirectory, addition: Path) -> bool:
    """Return whether the experiment leaves out the question that a command asked of the run."""
    about = read_json(addition.with_suffix(".json"))
    analysis = registry.analysis_of_file(addition.stem, about)
    names = {about.get(registry.QUESTION), None if analysis is None else analysis.name}
    return any(run.experiment.analyses.get(str(name)) is False for name in names)


def kept_additions(run: RunDirectory, n_sequences: int) -> list[Path]:
    """Return the files of the tables that commands added and that still hold; remove those of other data.

    An addition holds while the run has the completions and rewards that its manifest states and, where it was made
    from state values, these values.
    """
    manifest = run.read_manifest()
    if (manifest.get("n_sequences"), manifest.get("regraded", [])) != (n_sequences, read_regradings(run.path)):
        remove_additions(run)
        return []
    additions = listed_additions(run.path)
    refuse_changed_tables(run.path, additions)
    values = digest_of_state_values(run.values)
    made_from = {path.stem: read_json(path).get(STATE_VALUES) for path in additions if path.suffix == ".json"}
    stale = [path for path in additions if made_from.get(path.stem) not in (None, values)]
    _remove(run, stale, "state values")
    return [path for path in additions if path not in stale]


def remove_additions(run: RunDirectory) -> None:
    """Remove the tables that commands added to a run whose completions or rewards have changed, with a remark."""
    _remove(run, listed_additions(run.path), "completions or rewards")


def _remove(run: RunDirectory, additions: list[Path], other: str) -> None:
    for path in additions:
        path.unlink()
    if additions:
        names = ", ".join(dict.fromkeys(path.stem for path in additions))
        run.remarks.append(f"{names}: removed, since the run had other {other} then; repeat the command that made it")


def distance_of_sampler(run: RunDirectory, measured: Measurement) -> SamplerGap | None:
    """Return the distance between sampler and scorer, with a remark where the samples are off-policy."""
    from gradstats.analyses import sampler_gap

    if measured.old_logprobs is None:
        return None
    gap = attempt(run, "sampler against scorer", lambda: sampler_gap(measured))
    if gap is not None and gap.off_policy:
        run.remarks.append(gap.sentence())
    return gap


def fit_alpha(run: RunDirectory, measured: Measurement, paths: list[Path]) -> AlphaReport:
    """Write ``alpha.json``, the points behind the fit, and its table."""
    from gradstats.analyses.alpha import alpha_report
    from gradstats.report.latex import layout_of
    from gradstats.report.tables import alpha_table
    from gradstats.stats.token_profiles import has_token_energies, summed_energy

    section = run.experiment.length_scaling
    report = alpha_report(measured, **section.arguments())
    write_json(run.path / "alpha.json", report.summary())
    points = measured.rollouts.frame[["prompt_id", "sample_id", "reward"]].assign(
        length=measured.lengths, sq_norm=measured.sq_norms, truncated=measured.rollouts.truncated
    )
    if has_token_energies(measured):
        points["energy"] = summed_energy(measured)[0]
    write_csv(run.path / "tables" / "length_scaling.csv", points.loc[points["length"] > 0])
    paths += [run.path / "alpha.json", run.path / "tables" / "length_scaling.csv"]
    paths += alpha_table({run.experiment.name: report.fit}, confidence_level=report.confidence_level).save(
        run.path / "tables" / "alpha", layout=layout_of(run.experiment.figures)
    )
    return report


def compare_estimators(run: RunDirectory, measured: Measurement, paths: list[Path]) -> VarianceComparison:
    """Write ``variance.csv``, ``variance.json`` (its settings and notes) and the table."""
    from gradstats.analyses.variance import variance

    section = run.experiment.variance
    comparison = variance(measured, **section.arguments())
    save_comparison(run, comparison, paths)
    return comparison


def save_comparison(run: RunDirectory, comparison: VarianceComparison, paths: list[Path]) -> pd.DataFrame:
    """Write the files of a comparison, and return its frame."""
    from gradstats.plots.names import LABELS
    from gradstats.report.analysis_tables import variance_table
    from gradstats.report.latex import layout_of
    from gradstats.report.verdict import PLANNED, compared_first

    run.remarks += comparison.notes
    frame = comparison.to_frame(run.experiment.variance.confidence_level)
    frame.attrs[PLANNED] = dict(compared_first(frame, comparison).planned)
    write_csv(run.path / "variance.csv", frame)
    write_json(run.path / "variance.json", {str(name): value for name, value in frame.attrs.items()})
    paths += [run.path / "variance.csv", run.path / "variance.json"]
    figures = run.experiment.figures
    named = frame.copy()
    named.attrs = frame.attrs | {LABELS: figures.labels}
    paths += variance_table(named).save(run.path / "tables" / "variance", layout=layout_of(figures))
    return frame


def attempt(run: RunDirectory, what: str, action: Callable[[], Result]) -> Result | None:
    """Return the result of an action; None, with the reason as a note, where the data do not allow it."""
    try:
        return action()
    except (ValueError, ArithmeticError) as error:  # the latter: a division 0/0 or a number out of range
        run.remarks.append(f"{what}: {error}")
        return None


def refuse_foreign_table(out: Path | None, columns: Sequence[str]) -> None:
    """Refuse to write a table where a file without its columns lies, or a file of a run."""
    if out is not None:
        refuse_foreign(out, csv_with(columns, f"a table with the columns {', '.join(columns)}"))
        refuse_inside_run(out)


@contextmanager
def folder_of_results(source: Path, out: Path | None, *, partial: bool = False) -> Iterator[Path | None]:
    """Yield the folder that a command adds its results to, locked where it is a run; None for a bare measurement."""
    folder = source if out is None and (source / "measurement").is_dir() else out
    if folder is None:
        yield None
        return
    if os.path.lexists(folder) and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: choose another one (--out)")
    is_run = (folder / "measurement").is_dir() or is_run_directory(folder)
    if partial and (is_run or enclosing_run(folder) is not None):
        raise ValueError(
            f"with --partial nothing is written into the run {folder}, which would hold the numbers as those of "
            "all its shards: choose another folder (--out)"
        )
    if not is_run:
        refuse_inside_run(folder)
        with writing_into(folder):
            yield folder
        return
    if source.resolve() not in (folder.resolve(), (folder / "measurement").resolve()):
        raise FileExistsError(f"{folder} is another run than {source}: choose another folder (--out)")
    with only_writer(folder):
        refuse_links(folder)
        yield folder
