"""From an experiment file to a run directory, step by step, each of which is taken up where it was left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gradstats.config.experiment import Experiment
from gradstats.rollouts.grading_counts import warn_ungraded
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.analysis import RunResult, analyse
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import read_plan
from gradstats.runs.loading import experiment_problems
from gradstats.runs.measuring_step import measure_shards
from gradstats.runs.regrading import finish_regrading, regrade_shards
from gradstats.runs.sampling_step import sample_shards
from gradstats.system.files import remove_path

if TYPE_CHECKING:
    pass


def run_experiment(experiment: Experiment, path: Path, *, progress: bool = True) -> RunResult:
    """Sample, measure, fit, compare and draw; what was done before is not done again.

    Rollouts and measurements are written shard by shard, each whole or not at all. A run that was interrupted, at
    whatever moment, goes on from its finished shards and ends with the same numbers as one that was not.

    Args:
        experiment: what to do.
        path: the run directory.
        progress: show progress bars.

    Returns:
        The results and the paths of what was written.
    """
    run = RunDirectory.open(path, experiment)
    sample_shards(run, progress)
    measure_shards(run, progress)
    return analyse(run)


def regrade_run(
    path: Path, reward: str | list[str] | dict[str, float] | None = None, *, progress: bool = True
) -> RunResult | None:
    """Score a run's stored completions anew, without sampling or measuring again, and analyse it again.

    The rewards that they had go into ``regraded/`` in the run directory. Interrupted, it changes nothing, or is
    finished by whatever next works on the run.

    Args:
        path: a run directory.
        reward: as in an experiment file; what the run was scored with when None.
        progress: show a progress bar.

    Returns:
        The results, or None where the run has not been measured yet.

    Raises:
        FileNotFoundError: when there is no run, or it holds no rollouts.
        ValueError: when its problems no longer hold one of its prompts, or a reward cannot be used.
    """
    previous = path / "experiment.yaml"
    if not previous.exists():
        raise FileNotFoundError(f"{path} is no run directory: it holds no experiment.yaml")
    finish_regrading(path)
    experiment = Experiment.model_validate(yaml.safe_load(previous.read_text(encoding="utf-8")))
    settled = experiment.sampling.model_copy(update={} if reward is None else {"reward": reward})
    run = RunDirectory(path, experiment.model_copy(update={"sampling": settled}))
    run.timings = dict(run.read_manifest().get("timings", {}))
    with run.step("regrading"):
        problems = experiment_problems(experiment, read_plan(run.rollouts).get("revisions", {}))
        regrade_shards(path, problems, settled.reward, progress)
        warn_ungraded(read_rollouts(run.rollouts).metadata.get("grading"))
    # Results of the old rewards, of which the new ones may allow fewer.
    for name in ("alpha.json", "variance.csv", "variance.json", "tables", "figures", "report.html"):
        remove_path(path / name)
    if not any(run.measurement.glob("*/measurement.json")):
        return None
    return analyse(run)
