"""The analysis of a run: fit, compare, break down, draw and report, from the measurement alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradstats.analyses import registry
from gradstats.analyses.declaration import POINTS
from gradstats.answers.answer import COMPUTED_WITH, Answer, answer_paths, claim_answer
from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.measurement.token_scores import remark_on_precision
from gradstats.plots.save import claim_figure
from gradstats.report.saved_results import state_of_data
from gradstats.report.verdict import LEFT_OUT, sentence_of
from gradstats.runs.directory import ANALYSIS, RunDirectory
from gradstats.system.outputs import REPORT, TABLE, claim, is_marked
from gradstats.system.progress import ProgressReport, progress_bar

if TYPE_CHECKING:
    from gradstats.analyses.alpha import AlphaReport
    from gradstats.analyses.declaration import Analysis
    from gradstats.analyses.sampler_gap import SamplerGap
    from gradstats.analyses.variance import VarianceComparison
    from gradstats.config.experiment import Experiment
    from gradstats.stats import LengthScalingFit


def questions_of(experiment: Experiment) -> list[str]:
    """Return the questions that a run answers: those of every run, and those of its experiment."""
    asked = experiment.analyses
    every = [one.name for one in registry.all_analyses() if one.in_run is not None]
    return [name for name in dict.fromkeys([*every, *asked]) if asked.get(name) is not False]


def answer_questions(
    run: RunDirectory, measured: Measurement, questions: Sequence[str], doing: Callable[[str], None] = lambda name: None
) -> tuple[dict[str, Answer], dict[str, Any]]:
    """Answer questions, in order, with the settings of the experiment.

    Returns:
        The answers by the names of their files; and what α and the comparison were read from, by question.
    """
    answers: dict[str, Answer] = {}
    results: dict[str, Any] = {}
    for name in questions:
        doing(name.replace("_", " "))
        analysis, entry = registry.get(name), run.experiment.analyses.get(name)
        settings = entry if isinstance(entry, Mapping) else {}
        found = _answered(run, measured, analysis, name, settings)
        if found is not None and len(found[1].frame):
            result, answer = found
            answers[analysis.file_name(settings)] = replace(answer, question=name)
            results |= {name: result} if analysis.section else {}
            run.remarks += answer.notes if analysis.section else ()
    return _with_what_a_run_states(run, answers, results.get("variance")), results


def _answered(
    run: RunDirectory, measured: Measurement, analysis: Analysis, name: str, settings: Mapping[str, Any]
) -> tuple[Any, Answer] | None:
    """Return what a question found and its answer; None where the data do not allow one.

    Of questions that every run is asked without saying so nothing is remarked then: most of these take groups of
    completions, or more prompts than α does.
    """
    with warnings.catch_warnings():
        if name != "alpha":  # the notes of the answer say the same, at its level
            warnings.simplefilter("ignore", UserWarning)
        try:
            return analysis.answer_in_run(measured, run.experiment, settings)
        except (ValueError, ArithmeticError) as error:  # the latter: a division 0/0 or a number out of range
            if analysis.section or settings or analysis.in_run is None:
                run.remarks.append(f"{LEFT_OUT}{analysis.section.replace('_', ' ') or name}: {error}")
            elif isinstance(error, ArithmeticError):
                raise
            return None


def save_answers(run: RunDirectory, answers: Mapping[str, Answer], computed_with: Mapping[str, Any]) -> list[Path]:
    """Write answers to a run, those on α and on estimators with their tables for papers; returns the paths."""
    from gradstats.report.latex import layout_of
    from gradstats.report.run_tables import run_tables

    paths: list[Path] = []
    state = {COMPUTED_WITH: dict(computed_with)}
    for name, answer in answers.items():
        further = {key: replace(one, about={**one.about, **state}) for key, one in answer.further.items()}
        saved = replace(
            answer, about={**answer.about, **state}, sentence=answer.sentence or sentence_of(answer), further=further
        )
        paths += saved.save(_stem(run, name), further_in=run.path / "tables")
    for name, table in run_tables(answers, run.experiment.name, run.experiment.figures).items():
        if name in registry.OF_EVERY_RUN:
            paths += table.save_texts(run.path / "tables" / name, layout=layout_of(run.experiment.figures))
    return paths


def _stem(run: RunDirectory, name: str) -> Path:
    """Return where an answer of a run lies."""
    return (run.path if name in registry.OF_EVERY_RUN else run.path / "tables") / name


def claim_results(run: RunDirectory, questions: Sequence[str]) -> None:
    """Refuse to analyse a run where others wrote something in the place of a result, before the work."""
    claim(run.path / "report.html", REPORT)
    for question in questions:
        analysis, settings = registry.get(question), run.experiment.analyses.get(question)
        name = analysis.file_name(settings if isinstance(settings, Mapping) else {})
        claim_answer(_stem(run, name), analysis.known_by)
        for suffix in ("tex", "md") if name in registry.OF_EVERY_RUN else ():
            claim(run.path / "tables" / f"{name}.{suffix}", TABLE)
        for figure in analysis.figures:
            named = figure.name if name == analysis.name or ":" in question else name
            claim_figure(run.path / "figures" / named, run.experiment.figures.formats)


def make_room(run: RunDirectory, answers: Mapping[str, Answer], computed_with: Mapping[str, Any]) -> None:
    """Remove what the last analysis of a run made and this one does not, once all places are known to be free.

    Answers that a command added stay, whatever they were computed with.
    """
    from gradstats.report.added_results import remove_stale
    from gradstats.report.figures import claim_figures
    from gradstats.report.saved_results import SavedResults, answer_stems, flat_settings, listed_results, read_answers

    listed = listed_results(run.path)
    if COMPUTED_WITH not in run.read_manifest():  # of an earlier version, whose answers nothing reads
        for path in listed:
            path.unlink(missing_ok=True)
    for name, answer in answers.items():
        answer.claim(_stem(run, name), further_in=run.path / "tables")
    made = {**answers} | {name: one for answer in answers.values() for name, one in answer.further.items()}
    added = [stem for stem in answer_stems(run.path) if stem.name not in made and answer_paths(stem)[1] not in listed]
    manifest: Any = {"computed_with": computed_with}
    kept, _ = read_answers(added, manifest, run.experiment.analyses)
    held = SavedResults(run.path, run.experiment.name, flat_settings(run.experiment), manifest, made | kept)
    attempt(run, "figures", lambda: claim_figures(held, run.path / "figures", run.experiment.figures))
    attempt(run, "figures", lambda: remove_stale(held, run.experiment.figures))
    for path in listed:
        if path.suffix == ".json" and path.stem not in made and is_marked(path):
            for part in answer_paths(path.with_suffix("")):
                part.unlink(missing_ok=True)


Result = TypeVar("Result")


@dataclass(frozen=True)
class RunResult:
    """The results of a run, and where they are written."""

    run: RunDirectory
    measured: Measurement
    alpha: AlphaReport | None  # the fit with its diagnostics; None where the data do not allow one (the notes say why)
    comparison: VarianceComparison | None  # None as for ``alpha``
    paths: list[Path]  # of results, figures and tables
    gap: SamplerGap | None = None  # of sampler and scorer; None where the sampler recorded no log-probabilities

    @property
    def fit(self) -> LengthScalingFit | None:
        """The length-scaling fit, without its diagnostics."""
        return None if self.alpha is None else self.alpha.fit


def analyse(run: RunDirectory, progress: bool = False) -> RunResult:
    """Fit, compare, draw and report from the measurement; needs neither the model nor torch."""
    questions = questions_of(run.experiment)
    claim_results(run, questions)
    with run.step(ANALYSIS):
        measured = read_measurement(run.measurement).keeping_derived()
    with progress_bar("analysing", len(questions) + 2, shown=progress) as report:  # with the figures and the page
        result = _analyse(run, measured, questions, report)
        report.doing("")
    return result


def _analyse(run: RunDirectory, measured: Measurement, questions: Sequence[str], report: ProgressReport) -> RunResult:
    from gradstats.report.figures import draw_run_for_report
    from gradstats.report.page import remove_page, write_page_of_run
    from gradstats.report.saved_results import read_results
    from gradstats.stats.variance.sketch_error import rotated_once

    with run.step(ANALYSIS):
        if measured.scored is not None:
            n, n_all = len(set(measured.rollouts.prompt_id)), measured.scored["prompt_id"].nunique()
            run.remarks.append(
                f"gradients are those of {n} of the {n_all} prompts (measurement.n_prompts), on which answers rest; "
                "the proxies of the others calibrate a table of variances"
            )
        scores = measured.token_scores()
        if scores is not None:
            warnings.warn(remark_on_precision(scores), UserWarning, stacklevel=2)
        with rotated_once():
            answers, results = answer_questions(run, measured, questions, report.doing)
        computed_with = state_of_data(measured.rollouts, run.values)
        make_room(run, answers, computed_with)
        paths = save_answers(run, answers, computed_with)
        gap = distance_of_sampler(run, measured)
        run.write_manifest(measured, paths, gap, computed_with)
        report.doing("figures")
        drawn = None
        if results:
            figures, style = run.path / "figures", run.experiment.figures
            drawn = attempt(run, "figures", lambda: draw_run_for_report(read_results(run.path), figures, style))
            paths += [] if drawn is None else drawn.paths
    report.doing("report")
    run.write_manifest(measured, paths, gap, computed_with)
    paths.append(run.path / "manifest.json")
    if results:
        paths.append(write_page_of_run(run.path, None if drawn is None else drawn.svgs))
    else:
        remove_page(run.path)
    return RunResult(run, measured, results.get("alpha"), results.get("variance"), paths, gap)


def _with_what_a_run_states(
    run: RunDirectory, answers: Mapping[str, Answer], comparison: VarianceComparison | None
) -> dict[str, Answer]:
    """Add to what is known of α the published points that lie under its figure, and to the comparison what it plans."""
    from gradstats.report.verdict import with_plans

    found = dict(answers)
    if (alpha := found.get("alpha")) is not None and POINTS in alpha.further:
        points = alpha.further[POINTS]
        about = {**points.about, "published": run.experiment.length_scaling.published}
        found["alpha"] = replace(alpha, further={**alpha.further, POINTS: replace(points, about=about)})
    if comparison is not None:
        found["variance"] = with_plans(found["variance"], comparison)
    return found


def distance_of_sampler(run: RunDirectory, measured: Measurement) -> SamplerGap | None:
    """Return the distance between sampler and scorer, with a remark where the samples are off-policy."""
    from gradstats.analyses import sampler_gap

    if measured.old_logprobs is None:
        return None
    gap = attempt(run, "sampler against scorer", lambda: sampler_gap(measured))
    if gap is not None and gap.off_policy:
        run.remarks.append(gap.sentence())
    return gap


def attempt(run: RunDirectory, what: str, action: Callable[[], Result]) -> Result | None:
    """Return the result of an action; None, with the reason as a note, where the data do not allow it."""
    try:
        return action()
    except (ValueError, ArithmeticError) as error:  # the latter: a division 0/0 or a number out of range
        run.remarks.append(f"{what}: {error}")
        return None
