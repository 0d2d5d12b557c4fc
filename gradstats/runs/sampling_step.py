"""The sampling step of a run: the rollout shards that are missing."""

from __future__ import annotations

import json

from gradstats.rollouts.table import read_rollouts
from gradstats.runs.directory import RunDirectory, shard_path
from gradstats.runs.growth import grown_plan, read_plan, size_of
from gradstats.runs.loading import sampling_plan
from gradstats.runs.revisions import resolve_revisions
from gradstats.system.files import write_json
from gradstats.system.interrupts import finishing_in_hand
from gradstats.system.progress import progress_bar


def sample_shards(run: RunDirectory, progress: bool) -> None:
    """Draw the batches that have no shard yet."""
    done, size = run.rollouts / "complete.json", size_of(run.experiment)
    if done.exists() and json.loads(done.read_text()).items() >= size.items():
        return
    with run.step("sampling"):
        from gradstats.sampling.plan import warn_of_rollouts

        # The run keeps the revisions to which the hub's names were resolved when it began.
        revisions = read_plan(run.rollouts).get("revisions") or resolve_revisions(run.experiment)
        plan = sampling_plan(run.experiment, revisions)
        plan.warn_overridden()
        plan = grown_plan(plan, run.rollouts, revisions)
        run.write_experiment()
        shards = [shard_path(run.rollouts, batch, ".parquet") for batch in range(plan.n_batches)]
        finished = [read_rollouts(shard) for shard in shards if shard.exists()]
        with (
            progress_bar("sampling", plan.n_completions, done=sum(map(len, finished)), shown=progress) as report,
            finishing_in_hand(report.say) as stop_if_asked,
        ):
            for part in finished:
                report.completions(part.rewards, part.lengths, before=True)
            for batch, shard in enumerate(shards):
                if not shard.exists():
                    part = plan.draw(batch, report.tokens)
                    part.to_parquet(shard)
                    report.completions(part.rewards, part.lengths)
                    stop_if_asked()
        warn_of_rollouts(read_rollouts(run.rollouts))
    write_json(done, {"n_shards": plan.n_batches, "n_completions": plan.n_completions, **size})
