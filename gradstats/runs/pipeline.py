"""From an experiment file to a run directory, in steps that resume where they were interrupted."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gradstats.config.experiment import Experiment, load_experiment_file
from gradstats.report.saved_results import read_recorded_experiment
from gradstats.rewards.grading import ungraded_sentence, warn_ungraded
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.analysis import RunResult, analyse, claim_results, make_room, questions_of
from gradstats.runs.directory import RUN_DIRECTORY, RunDirectory, RunPart
from gradstats.runs.executors.choice import executor_of
from gradstats.runs.executors.local import Executor
from gradstats.runs.growth import read_plan
from gradstats.runs.measuring_step import is_measured, measure_shards, measures_advantages, missing_measurements
from gradstats.runs.regrading import RewardSetting, finish_regrading, regrade_shards
from gradstats.runs.sampling_step import experiment_problems, missing_rollouts, n_planned_shards, sample_shards
from gradstats.runs.tracking import Tracking, require_tracker, result_values
from gradstats.runs.validate import check_names
from gradstats.runs.values_step import continue_prefixes, make_values, make_values_in_parts
from gradstats.system.environment import gpu_of_worker
from gradstats.system.lock import only_writer, part_alone, part_writer
from gradstats.system.outputs import claim, refuse_links
from gradstats.system.progress import progress_bar
from gradstats.system.user_code import code_beside

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


def run_experiment(
    experiment: Experiment, path: Path, *, progress: bool = True, executor: Executor | None = None
) -> RunResult:
    """Sample, measure, fit, compare and draw; finished steps are not repeated.

    Rollouts and measurements are written shard by shard, each complete or absent. A run that was interrupted at any
    moment resumes from its finished shards and ends with the same numbers as an uninterrupted one.
    """
    with code_beside(experiment.folder):
        check_names(experiment)
        require_tracker(experiment.tracking)
        claim(path, RUN_DIRECTORY)
        with ExitStack() as opened:
            chosen = executor or opened.enter_context(executor_of(experiment.execution, experiment.policy.device))
            path.mkdir(parents=True, exist_ok=True)
            with only_writer(path):
                refuse_links(path)
                return _run(experiment, path, progress, chosen)


def _run(experiment: Experiment, path: Path, progress: bool, executor: Executor) -> RunResult:
    run = RunDirectory.open(path, experiment)
    run.executor = executor.counted_apart()
    with Tracking.of(experiment, path) as run.tracking:
        sample_shards(run, progress)
        steps = (measure_shards, make_values)
        for step in reversed(steps) if measures_advantages(run) else steps:
            step(run, progress)
        result = analyse(run, progress)
        if run.tracking.module is not None:
            level, alpha = experiment.variance.confidence_level, result.alpha
            frame = None if result.comparison is None else result.comparison.to_frame(level)
            on_policy = None if alpha is None else alpha.on_policy
            values = result_values(result.measured.rollouts, alpha, frame, on_policy=on_policy, gap=result.gap)
            run.tracking.results(values, frame, [path for path in result.paths if path.suffix == ".png"])
    return result


@dataclass(frozen=True)
class PartResult:
    """What one of several processes has made of a run."""

    part: RunPart
    path: Path
    n_shards: int  # that it makes
    n_measured: int  # of these
    n_awaited: int  # shards of other parts that were not drawn yet, without which none can be measured
    remarks: list[str]


def run_part(experiment: Experiment, path: Path, part: RunPart, *, progress: bool = True) -> PartResult:
    """Sample and measure the shards of one of several processes, which share a run directory.

    Measuring begins when all parts have sampled, since its checks look at all completions. A part waits for the others
    as long as they are running; where they are not, the same call continues later. :func:`run_experiment` makes what is
    missing in the end, and analyses.
    """
    with code_beside(experiment.folder):
        check_names(experiment)
        claim(path, RUN_DIRECTORY)
        _see_one_gpu(experiment, part)
        with executor_of(experiment.execution, experiment.policy.device) as executor:
            path.mkdir(parents=True, exist_ok=True)
            with part_writer(path, part.number, part.n_parts):
                return _run_part(experiment, path, part, progress, executor)


def _see_one_gpu(experiment: Experiment, part: RunPart) -> None:
    """Let this process see one of its machine's GPUs, by the number of its part: all parts would take the first."""
    import torch

    execution, n_gpus = experiment.execution, torch.cuda.device_count()
    takes_one = execution.with_gpus(experiment.policy.device, n_gpus).gpus_per_worker == 1
    if execution.executor == "local" and takes_one and n_gpus > 1:
        own = os.environ["CUDA_VISIBLE_DEVICES"] = gpu_of_worker(part.number - 1, n_gpus)
        with progress_bar("part", 1, shown=False) as report:
            report.say(f"part {part} computes on GPU {own}, of {n_gpus} that it could see")


def _run_part(experiment: Experiment, path: Path, part: RunPart, progress: bool, executor: Executor) -> PartResult:
    with part_alone(path):
        refuse_links(path)
        run = RunDirectory.open(path, experiment, part)
    run.executor = executor
    try:
        sample_shards(run, progress)
        with progress_bar("waiting", 1, shown=False) as report:
            drawn = part.wait_for(path, lambda: missing_rollouts(run), report.say)
        if drawn and measures_advantages(run):
            drawn = make_values_in_parts(run, progress)
        if drawn:
            measure_shards(run, progress)
            if experiment.values.monte_carlo:
                continue_prefixes(run, progress)
    finally:
        executed = executor.describe() if executor.spent.n_parts else None
        part.write_record(path, run.timings, run.remarks, executed)
    own = part.own(range(n_planned_shards(run)))
    measured = [number for number in own if number not in missing_measurements(run)]
    return PartResult(part, path, len(own), len(measured), len(missing_rollouts(run)), run.remarks)


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
        with code_beside(experiment.folder):
            return _regrade(path, experiment, reward, progress)


def _regrade(path: Path, experiment: Experiment, reward: RewardSetting, progress: bool) -> RunResult | None:
    sampling = experiment.sampling.model_copy(update={} if reward is None else {"reward": reward})
    run = RunDirectory(path, experiment.model_copy(update={"sampling": sampling}))
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
