"""From an experiment file to a run directory, in steps that resume where they were interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from gradstats.config.experiment import Experiment, load_experiment_file
from gradstats.estimators.needs import possible_weightings
from gradstats.report.result_values import result_values
from gradstats.report.saved_results import read_recorded_experiment
from gradstats.rewards.grading import ungraded_sentence, warn_ungraded
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.analysis import RunResult, analyse, claim_results, make_room, questions_of
from gradstats.runs.claims import joined
from gradstats.runs.directory import RUN_DIRECTORY, RunDirectory
from gradstats.runs.growth import read_plan
from gradstats.runs.measuring_step import is_measured, measure_shards
from gradstats.runs.ranks import agreed, is_first, joined_ranks, n_ranks
from gradstats.runs.regrading import RewardSetting, finish_regrading, regrade_shards
from gradstats.runs.sampling_step import experiment_problems, is_sampled, sample_shards
from gradstats.runs.tracking import Tracking, require_tracker
from gradstats.runs.validate import check_names, require_execution
from gradstats.runs.values_step import has_values, make_values
from gradstats.runs.watching import let_workers_make
from gradstats.system.lock import Company, only_writer
from gradstats.system.outputs import claim, refuse_links
from gradstats.system.user_code import code_beside

#: What an analysis writes last.
_PAGE = "report.html"
#: Settings of a run's experiment that regrading does not use.
_NOT_REGRADED = (
    "policy.trust_remote_code",
    "policy.allow_pickle",
    "sampling.sampler_options",
    "sampling.sampler_options.api_key_env",
    "sampling.base_url",
    "tracking",
    "execution.address",
)


def run_experiment(experiment: Experiment, path: Path, *, progress: bool = True) -> RunResult | None:
    """Sample, measure, fit, compare and draw; finished steps are not repeated.

    Rollouts and measurements are written shard by shard, each complete or absent. A run that was interrupted at any
    moment resumes from its finished shards and ends with the same numbers as an uninterrupted one. Any number of
    processes may run the same experiment in the same directory at once: each makes the shards that no other does, and
    the last of them analyses.

    Returns:
        The results; None in a process that was not the last, or waited for it, and in all ranks of a model but the
        first.
    """
    with code_beside(experiment.folder), joined_ranks():
        check_names(experiment)
        require_tracker(experiment.tracking)
        require_execution(experiment.execution)
        if n_ranks() > 1:  # what needs whole parameters is refused
            Experiment.model_validate(experiment.model_dump() | {"execution": {"ranks_per_worker": n_ranks()}})
        with opened_run(experiment, path) as (run, company), ExitStack() as opened:

            def follow() -> None:
                run.tracking = opened.enter_context(Tracking.of(experiment, path))

            if run.alone and is_first():
                follow()
            is_made = is_sampled(run) and is_measured(run) and has_values(run)
            if experiment.execution.several and n_ranks() == 1 and not is_made:
                let_workers_make(run, progress)
            else:
                make_shards(run, progress)
            if company is None or not company.becomes_only() or (run.answered and not run.spent.n_shards):
                return None
            if not run.alone:
                follow()
            run.remove_partials()
            run.take_over()
            return _analysed(run, progress)


@contextmanager
def opened_run(experiment: Experiment, path: Path) -> Iterator[tuple[RunDirectory, Company | None]]:
    """Open a run that other processes may have open too, which are the company; ranks but the first do not belong."""
    if not is_first():
        agreed(lambda: None)
        yield RunDirectory(path, experiment), None
        return
    claim(path, RUN_DIRECTORY)
    path.mkdir(parents=True, exist_ok=True)

    def begin(company: Company) -> RunDirectory:
        refuse_links(path)
        answered = company.was_written(path / _PAGE) and has_results(experiment, path)
        return replace(RunDirectory.open(path, experiment, alone=company.alone), answered=answered)

    with joined(path, begin) as (company, run):
        agreed(lambda: None)
        yield run, company


def has_results(experiment: Experiment, path: Path) -> bool:
    """Return whether a run has been analysed with just these settings."""
    recorded = path / "experiment.yaml"
    return (path / _PAGE).exists() and read_recorded_experiment(recorded).to_yaml() == experiment.to_yaml()


def make_shards(run: RunDirectory, progress: bool) -> None:
    """Sample, measure and make state values, together with the other processes of the run."""
    progress = progress and is_first()
    sample_shards(run, progress)
    steps = (measure_shards, make_values)
    for step in reversed(steps) if possible_weightings(run.experiment).advantages else steps:  # made of values
        step(run, progress)


def _analysed(run: RunDirectory, progress: bool) -> RunResult:
    result = analyse(run, progress)
    if run.tracking.module is not None:
        level, alpha = run.experiment.variance.confidence_level, result.alpha
        frame = None if result.comparison is None else result.comparison.to_frame(level)
        on_policy = None if alpha is None else alpha.on_policy
        values = result_values(result.measured.rollouts, alpha, frame, on_policy=on_policy, gap=result.gap)
        run.tracking.results(values, frame, [path for path in result.paths if path.suffix == ".png"])
    return result


def regrade_run(
    path: Path, reward: RewardSetting = None, *, trust: bool = False, progress: bool = True
) -> RunResult | None:
    """Score a run's stored completions again and repeat the analysis, without sampling or measuring.

    The earlier rewards are kept in ``regraded/`` in the run directory. An interrupted call either changes nothing or is
    completed by the next command that works on the run.
    """
    previous = path / "experiment.yaml"
    if not previous.exists():
        raise FileNotFoundError(f"{path} is not a run directory: it holds no experiment.yaml")
    # The policy is not loaded, and a given reward replaces the run's.
    unused = [*_NOT_REGRADED, *(["sampling.reward"] if reward is not None else [])]
    load_experiment_file(previous, trust=trust, ignored=unused)
    with only_writer(path):
        refuse_links(path)
        finish_regrading(path)
        read_recorded_experiment(previous)
        # Read again: a pending change may have named another reward.
        experiment = load_experiment_file(previous, trust=trust, ignored=unused)
        sampling = experiment.sampling.model_copy(update={} if reward is None else {"reward": reward})
        run = RunDirectory(path, experiment.model_copy(update={"sampling": sampling}))
        with code_beside(experiment.folder):
            claim_results(run, questions_of(run.experiment))
            run.remove_partials()
            run.take_over(without=ungraded_sentence(run.read_manifest().get("grading")))
            with run.step("regrading"):
                problems = experiment_problems(experiment, read_plan(run.rollouts).get("revisions", {}))
                regrade_shards(path, problems, sampling.reward, progress)
                warn_ungraded(read_rollouts(run.rollouts, partial=True).metadata.get("grading"))
            if not is_measured(run):
                make_room(run, {}, {"rewards": None})
                return None
            return analyse(run, progress)
