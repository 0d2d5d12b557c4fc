"""The measuring step of a run: the rollout shards that have not been measured."""

from __future__ import annotations

import json
from pathlib import Path

from gradstats.measurement.disk_size import measured_bytes, require_space
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import read_plan
from gradstats.runs.loading import experiment_policy
from gradstats.system.files import write_json
from gradstats.system.progress import progress_bar
from gradstats.system.shards import Shards


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    complete = run.measurement / "complete.json"
    sources = sorted(run.rollouts.glob("*.parquet"))
    if complete.exists() and json.loads(complete.read_text())["n_shards"] == len(sources):
        return
    from gradstats.gradients import MeasuringSession

    with run.step("measuring"):
        section = run.experiment.measurement
        tables = [read_rollouts(source) for source in sources]
        rollouts = Rollouts.concatenate(tables)

        def save(measured: Measurement, path: Path) -> None:
            measured.save(path, section.token_dtype)

        shards = Shards(run.measurement, "", read_measurement, save)
        finished = shards.finished(len(tables))
        missing = [table for number, table in enumerate(tables) if number not in finished]
        require_space(run.measurement, sum(measured_bytes(table, section) for table in missing))
        session = MeasuringSession.open(
            experiment_policy(run.experiment, read_plan(run.rollouts).get("revisions", {})),
            rollouts,
            section,
        )
        n_finished = sum(len(tables[number]) for number in finished)
        with progress_bar("measuring", len(rollouts), done=n_finished, shown=progress) as report:
            shards.make_missing(
                len(tables), lambda number: session.measure(tables[number], report.chunk), on_interrupt=report.say
            )
    write_json(complete, {"n_shards": len(sources)})
