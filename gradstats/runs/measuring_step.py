"""The measuring step of a run: the rollout shards that have not been measured."""

from __future__ import annotations

import json

from gradstats.measurement.disk_size import measured_bytes, require_space
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.directory import RunDirectory, shard_path
from gradstats.runs.growth import read_plan
from gradstats.runs.loading import experiment_policy
from gradstats.system.files import write_json
from gradstats.system.interrupts import finishing_in_hand
from gradstats.system.progress import progress_bar


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    done = run.measurement / "complete.json"
    sources = sorted(run.rollouts.glob("*.parquet"))
    if done.exists() and json.loads(done.read_text())["n_shards"] == len(sources):
        return
    from gradstats.gradients import MeasuringSession

    with run.step("measuring"):
        rollouts = read_rollouts(run.rollouts)
        section = run.experiment.measurement
        targets = [shard_path(run.measurement, number) for number in range(len(sources))]
        missing = [
            read_rollouts(source) for source, target in zip(sources, targets, strict=True) if not target.exists()
        ]
        require_space(run.measurement, sum(measured_bytes(part, section) for part in missing))
        session = MeasuringSession.open(
            experiment_policy(run.experiment, read_plan(run.rollouts).get("revisions", {})),
            rollouts,
            section,
        )
        finished = sum(
            len(read_rollouts(source)) for source, target in zip(sources, targets, strict=True) if target.exists()
        )
        with (
            progress_bar("measuring", len(rollouts), done=finished, shown=progress) as report,
            finishing_in_hand(report.say) as stop_if_asked,
        ):

            def count(n_sequences: int, n_tokens: int) -> None:
                report.advance(n_sequences)
                report.tokens(n_tokens)

            for source, target in zip(sources, targets, strict=True):
                if not target.exists():
                    session.measure(read_rollouts(source), count).save(target, section.token_dtype)
                    stop_if_asked()
    write_json(done, {"n_shards": len(sources)})
