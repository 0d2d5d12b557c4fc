"""The sampling step of a run: the rollout shards that are missing."""

from __future__ import annotations

from pathlib import Path

from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import RESTORE, grown_plan, read_plan, size_of
from gradstats.runs.loading import sampling_plan
from gradstats.runs.revisions import resolve_revisions
from gradstats.system.files import read_json, write_json
from gradstats.system.shards import PLAN, Shards, n_planned, read_origin


def sample_shards(run: RunDirectory, progress: bool) -> None:
    """Draw the batches that have no shard yet."""
    complete, size = run.rollouts / "complete.json", size_of(run.experiment)
    if complete.exists() and read_json(complete).items() >= size.items():
        n_shards = n_planned(read_plan(run.rollouts), run.rollouts / PLAN)
        if len(_shards(run).finished(n_shards)) == n_shards:
            return
    with run.step("sampling"):
        from gradstats.policy.digests import refuse_other_policy
        from gradstats.sampling.draw_batches import draw_batches
        from gradstats.sampling.plan import warn_of_rollouts

        # A run keeps the revisions to which names on the hub resolved when it began.
        revisions = read_plan(run.rollouts).get("revisions") or resolve_revisions(run.experiment)
        plan = sampling_plan(run.experiment, revisions, progress)
        plan.warn_overridden()
        drawn = sorted(run.rollouts.glob("shard-*.parquet"))
        if drawn:
            recorded = read_rollouts(drawn[0]).metadata.get("policy")
            refuse_other_policy(recorded, plan.policy.digests, f"the rollouts of {run.path}", RESTORE)
        plan = grown_plan(plan, run.rollouts, revisions, run.experiment)
        run.write_experiment()
        run.tracking.begin()
        batches = draw_batches(plan, _shards(run), progress=progress, finish_current_shard=True)
        warn_of_rollouts(Rollouts.concatenate(batches))
    write_json(complete, {"n_shards": plan.n_batches, "n_completions": plan.n_completions, **size})


def _shards(run: RunDirectory) -> Shards[Rollouts]:
    def save(rollouts: Rollouts, path: Path) -> None:
        rollouts.to_parquet(path)
        run.tracking.shard("sampling", rollouts)

    return Shards(run.rollouts, ".parquet", read_rollouts, save, read_origin(run.rollouts))
