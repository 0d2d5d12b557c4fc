"""The sampling step of a run: the rollout shards that are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradstats.config.experiment import Experiment
from gradstats.config.sections import PolicySection
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.claims import Board, Claim, make_missing
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import (
    RESTORE,
    GrownPlan,
    drawn_shards,
    grown_plan,
    read_plan,
    rounds_of,
    rounds_to_extend,
    size_of,
    write_plan,
)
from gradstats.runs.ranks import agreed, is_first, n_ranks
from gradstats.system.files import read_json, write_json
from gradstats.system.progress import progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned, read_origin

if TYPE_CHECKING:
    from gradstats.policy.policy import Policy
    from gradstats.prompts import Problem
    from gradstats.sampling.plan import SamplingPlan


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
    changed, other = experiment.sampling_policy, not {"name", "revision"}.isdisjoint(experiment.behaviour_policy)
    return experiment_policy(experiment, {} if other else revisions, progress, section=changed)


def reference_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy | None:
    """Load the reference of a KL term, the policy with the changes of ``reference_policy``; None without these."""
    changed, other = experiment.kl_reference, not {"name", "revision"}.isdisjoint(experiment.reference_policy)
    return changed and experiment_policy(experiment, {} if other else revisions, progress, section=changed)


def experiment_policy(
    experiment: Experiment,
    revisions: dict[str, str | None],
    progress: bool = True,
    *,
    section: PolicySection | None = None,
    sharded: bool = True,
) -> Policy:
    """Load the policy of an experiment, at the revision that the run recorded; where there are ranks, a part of it."""
    from gradstats.policy.policy import load_policy

    section = section or experiment.policy
    options = section.arguments(revision=revisions.get("policy") or section.revision)
    return load_policy(section.name, **options, sharded=sharded and n_ranks() > 1, progress=progress)


def n_planned_shards(run: RunDirectory) -> int:
    """Return how many shards a run has by its plan."""
    return n_planned(read_plan(run.rollouts), run.rollouts / PLAN)


def is_sampled(run: RunDirectory) -> bool:
    """Return whether every completion of a run has been drawn."""
    complete = run.rollouts / "complete.json"
    there = complete.exists() and read_json(complete).items() >= size_of(run.experiment).items()
    return there and not _shards(run).missing(n_planned_shards(run))


def sample_shards(run: RunDirectory, progress: bool) -> None:
    """Draw the batches that have no shard yet."""
    if agreed(lambda: is_sampled(run)):
        return
    with run.step("sampling"):
        from gradstats.sampling.plan import warn_of_rollouts
        from gradstats.sampling.revisions import resolve_revisions

        # A run keeps the revisions to which names on the hub resolved when it began.
        revisions = agreed(lambda: read_plan(run.rollouts).get("revisions") or resolve_revisions(run.experiment))
        with run.loaded(lambda: sampling_plan(run.experiment, revisions, progress)) as plan:
            grown = agreed(lambda: _planned(run, plan, revisions))
            _draw_missing(run, plan, grown, progress)
        if is_first():
            n_shards, n_completions = len(grown.rows), sum(map(len, grown.rows))
            warn_of_rollouts(Rollouts.concatenate(_shards(run).read_all(n_shards)))
            complete = {"n_shards": n_shards, "n_completions": n_completions, **size_of(run.experiment)}
            with run.turn():
                if rounds_of(run.rollouts) != grown.rounds:
                    raise ValueError(
                        f"another process has enlarged {run.path} meanwhile, and goes on with it: repeat this command "
                        "with its settings to share the work"
                    )
                write_json(run.rollouts / "complete.json", complete)


def _planned(run: RunDirectory, plan: SamplingPlan, revisions: dict[str, str | None]) -> GrownPlan:
    """Lay out the batches of all rounds, and write that plan, unless another process has."""
    from gradstats.policy.checkpoint import refuse_other_policy

    plan.warn_overridden()
    with run.turn():
        earlier, there = rounds_to_extend(run.rollouts), read_plan(run.rollouts)
        if earlier:
            recorded = read_rollouts(next(run.rollouts.glob("shard-*.parquet"))).metadata.get("policy")
            refuse_other_policy(recorded, plan.policy.digests, f"the rollouts of {run.path}", RESTORE)
        grown = grown_plan(plan, earlier, read_origin(run.rollouts), run.path, run.experiment)
        known = rounds_of(run.rollouts) in (grown.rounds, earlier) and there.get("revisions", {}) == revisions
        if there and not known:
            raise ValueError(
                f"another process began {run.path} with other settings: give every process the same, or remove "
                f"{run.path} to start again"
            )
        write_plan(run.rollouts, grown.rounds, revisions, grown.origin)
        run.write_experiment()
    return grown


def _draw_missing(run: RunDirectory, plan: SamplingPlan, grown: GrownPlan, progress: bool) -> None:
    """Draw the batches that have no shard yet, under a progress bar."""
    from gradstats.sampling.plan import answers_path, draw_keeping_answers

    run.tracking.begin()
    shards, sizes = _shards(run), [len(rows) for rows in grown.rows]
    missing = {number: sizes[number] for number in shards.missing(len(sizes))}
    n_missing = sum(missing.values())
    with progress_bar("sampling", sum(sizes), done=sum(sizes) - n_missing, shown=progress) as report:

        def show(number: int) -> None:
            rollouts = shards.read_one(number)
            report.completions(rollouts.rewards, rollouts.lengths, before=True)

        def draw(claim: Claim) -> None:
            if not plan.in_step and not is_first():  # the completions pass through no weights of this rank
                return
            batch, path = claim.number, answers_path(shards.folder, claim.number)
            only = replace(plan, rows=[*[[]] * batch, grown.rows[batch]])
            rollouts = draw_keeping_answers(plan.sampler, path, lambda: only.draw(batch, claim.tokens))
            if is_first():
                shards.write_one(batch, rollouts)

        for number in shards.finished(len(sizes)):
            show(number)
        make_missing(Board(shards, missing, report, shards.is_made, show), run.spent, draw, "batch")


def _shards(run: RunDirectory) -> Shards[Rollouts]:
    def save(rollouts: Rollouts, path: Path) -> None:
        rollouts.to_parquet(path)
        run.tracking.shard("sampling", rollouts)

    return replace(drawn_shards(run.rollouts), write=save)
