"""The sampling step of a run: the rollout shards that are missing."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradstats.config.experiment import Experiment
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.executors.local import WorkerPool, ask
from gradstats.runs.growth import (
    RESTORE,
    GrownPlan,
    Round,
    drawn_shards,
    grown_plan,
    read_plan,
    resolve_revisions,
    rounds_of,
    rounds_to_extend,
    size_of,
    write_plan,
)
from gradstats.system.files import read_json, write_json
from gradstats.system.progress import Report, progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned, read_origin

if TYPE_CHECKING:
    from gradstats.policy.policy import Policy
    from gradstats.prompts import Problem
    from gradstats.sampling.plan import SamplingPlan, Unfinished
    from gradstats.sampling.sampler import Completion


def sampling_plan(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> SamplingPlan:
    """Load the problems and the policy of an experiment, at the given revisions, and form its batches.

    ``progress`` is as for :func:`gradstats.load_policy`, also in the other functions.
    """
    # torch and transformers are imported here, so that redrawing a finished run does not load them.
    from gradstats.sampling.plan import SamplingPlan

    problems = experiment_problems(experiment, revisions)
    return SamplingPlan.make(behaviour_policy(experiment, revisions, progress), problems, experiment.sampling)


def experiment_problems(experiment: Experiment, revisions: dict[str, str | None]) -> list[Problem]:
    """Load the problems of an experiment, at the revision that the run recorded."""
    from gradstats.prompts.load import load_prompts

    prompts = experiment.prompts
    pinned = {"revision": revisions["prompts"]} if revisions.get("prompts") else {}
    return load_prompts(prompts.source, prompts.n, rng=prompts.seed, **(prompts.settings | pinned))


def behaviour_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy:
    """Load the policy that draws the completions: the experiment's, with the changes of ``behaviour_policy``."""
    if not experiment.behaviour_policy:
        return experiment_policy(experiment, revisions, progress)
    changed = experiment.sampling_policy
    pinned = revisions if {"name", "revision"}.isdisjoint(experiment.behaviour_policy) else {}
    return experiment_policy(experiment.model_copy(update={"policy": changed}), pinned, progress)


def reference_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy | None:
    """Load the reference of a KL term, the policy with the changes of ``reference_policy``; None without these."""
    changed = experiment.kl_reference
    if changed is None:
        return None
    pinned = revisions if {"name", "revision"}.isdisjoint(experiment.reference_policy) else {}
    return experiment_policy(experiment.model_copy(update={"policy": changed}), pinned, progress)


def experiment_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy:
    """Load the policy of an experiment, at the revision that the run recorded; in a group of ranks, a part of it."""
    from gradstats.policy.policy import load_policy
    from gradstats.policy.sharding import in_group

    section = experiment.policy
    options = section.arguments(revision=revisions.get("policy") or section.revision)
    sharded = experiment.execution.ranks_per_worker > 1 and in_group()
    return load_policy(section.name, **options, sharded=sharded, progress=progress)


@dataclass(frozen=True)
class SamplingWork:
    """The inputs of sampling, see :class:`gradstats.runs.executors.local.Work`."""

    experiment: Experiment
    revisions: dict[str, str | None]  # what names on the hub resolved to
    progress: bool  # let transformers show its own progress bars

    def open(self) -> SamplingPlan:
        """Load the policy and the problems, and form the batches of the present settings."""
        return sampling_plan(self.experiment, self.revisions, self.progress)


@dataclass(frozen=True)
class PlanBatches:
    """The part that lays out the batches of all rounds."""

    path: Path  # the run directory, for messages
    experiment: Experiment
    earlier: list[Round]  # the rounds so far
    origin: dict[str, object]  # what the shards so far state
    recorded: Mapping[str, Any] | None  # the policy that drew them, where there are any

    def __call__(self, plan: SamplingPlan, report: Report) -> GrownPlan:
        """Return the batches."""
        from gradstats.policy.checkpoint import refuse_other_policy

        plan.warn_overridden()
        if self.earlier:
            refuse_other_policy(self.recorded, plan.policy.digests, f"the rollouts of {self.path}", RESTORE)
        return grown_plan(plan, self.earlier, self.origin, self.path, self.experiment)


@dataclass(frozen=True)
class DrawBatch:
    """The part that draws and scores one batch."""

    number: int  # of the batch, which its seed depends on
    rows: list[tuple[int, int]]  # pairs of problem index and sample number
    answers: dict[str, Completion]  # those kept from an earlier failure of this batch

    def __call__(self, plan: SamplingPlan, report: Report) -> Rollouts | Unfinished:
        """Return the batch, or what had arrived of it when it failed."""
        from gradstats.sampling.plan import draw_with_answers

        only = replace(plan, rows=[*[[]] * self.number, self.rows])
        return draw_with_answers(plan.sampler, self.answers, lambda: only.draw(self.number, report.tokens))


def n_planned_shards(run: RunDirectory) -> int:
    """Return how many shards a run has by its plan."""
    return n_planned(read_plan(run.rollouts), run.rollouts / PLAN)


def missing_rollouts(run: RunDirectory) -> list[int]:
    """Return the shards of a run that have not been drawn yet, by any of its parts."""
    return _shards(run).missing(n_planned_shards(run))


def sample_shards(run: RunDirectory, progress: bool) -> None:
    """Draw the batches that have no shard yet."""
    complete, size = run.rollouts / "complete.json", size_of(run.experiment)
    if complete.exists() and read_json(complete).items() >= size.items() and not missing_rollouts(run):
        return
    with run.step("sampling"):
        from gradstats.sampling.plan import warn_of_rollouts

        # A run keeps the revisions to which names on the hub resolved when it began.
        revisions = read_plan(run.rollouts).get("revisions") or resolve_revisions(run.experiment)
        with run.executor.crew(SamplingWork(run.experiment, revisions, progress)) as crew:
            earlier = rounds_to_extend(run.rollouts)
            plan = _planned(run, crew, earlier)
            with run.alone():
                there = read_plan(run.rollouts) if run.part is not None else {}
                known = rounds_of(run.rollouts) in (plan.rounds, earlier)
                if there and not (known and there.get("revisions", {}) == revisions):
                    raise ValueError(
                        f"another part of {run.path} was begun with other settings: give every part the same, or "
                        f"remove {run.path} to start again"
                    )
                write_plan(run.rollouts, plan.rounds, revisions, plan.origin)
                run.write_experiment()
            run.tracking.begin()
            shards = _shards(run)
            shards.write_all(_drawn(run, shards, crew, plan, progress))
        n_shards = len(plan.rows)
        with run.alone():
            if shards.missing(n_shards):  # which other parts draw
                return
            warn_of_rollouts(Rollouts.concatenate(shards.read_all(n_shards)))
            write_json(complete, {"n_shards": n_shards, "n_completions": plan.n_completions, **size})


def _planned(run: RunDirectory, crew: WorkerPool[SamplingPlan], earlier: list[Round]) -> GrownPlan:
    """Let a worker lay out the batches: this process loads no policy."""
    drawn = sorted(run.rollouts.glob("shard-*.parquet"))
    recorded = read_rollouts(drawn[0]).metadata.get("policy") if drawn else None
    part = PlanBatches(run.path, run.experiment, earlier, read_origin(run.rollouts), recorded)
    return ask(crew, part, "the plan of sampling")


def _drawn(
    run: RunDirectory, shards: Shards[Rollouts], crew: WorkerPool[SamplingPlan], plan: GrownPlan, progress: bool
) -> Generator[tuple[int, Rollouts], None, None]:
    """Yield the batches that have no shard yet, under a progress bar."""
    from gradstats.sampling.plan import answers_path, keep_answers, read_answers

    def part(batch: int) -> DrawBatch:
        return DrawBatch(batch, plan.rows[batch], read_answers(answers_path(shards.folder, batch)))

    finished = [shards.read_one(batch) for batch in shards.finished(len(plan.rows))]
    with progress_bar("sampling", plan.n_completions, done=sum(map(len, finished)), shown=progress) as report:
        for rollouts in finished:
            report.completions(rollouts.rewards, rollouts.lengths, before=True)
        for batch, drawn in crew.work(run.own(shards.missing(len(plan.rows))), part, report, "batch"):
            rollouts = keep_answers(drawn, answers_path(shards.folder, batch))
            report.completions(rollouts.rewards, rollouts.lengths)
            yield batch, rollouts


def _shards(run: RunDirectory) -> Shards[Rollouts]:
    def save(rollouts: Rollouts, path: Path) -> None:
        rollouts.to_parquet(path)
        run.tracking.shard("sampling", rollouts)

    return replace(drawn_shards(run.rollouts), write=save)
