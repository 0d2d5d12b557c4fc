"""The measuring step of a run: the rollout shards that have not been measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradstats.measurement.concatenation import shared_entry
from gradstats.measurement.disk_size import measured_bytes, require_space
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import RESTORE, read_plan, settings_digest
from gradstats.runs.loading import experiment_policy, reference_policy
from gradstats.system.checksums import FORMAT
from gradstats.system.files import read_json, write_json
from gradstats.system.progress import progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned, read_origin

if TYPE_CHECKING:
    from gradstats.gradients import MeasuringSession


def is_measured(run: RunDirectory) -> bool:
    """Return whether every shard of a run has been measured."""
    n_shards = n_planned(read_plan(run.rollouts), run.rollouts / PLAN)
    return len(_shards(run).finished(n_shards)) == n_shards


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    complete = run.measurement / "complete.json"
    section, origin, shards = run.experiment.measurement, _origin(run), _shards(run)
    n_shards = n_planned(read_plan(run.rollouts), run.rollouts / PLAN)
    finished = shards.finished(n_shards)
    if complete.exists() and len(finished) == n_shards == read_json(complete).get("n_shards"):
        return
    from gradstats.gradients import MeasuringSession
    from gradstats.policy.digests import refuse_other_policy
    from gradstats.runs.further_weightings import weightings_of

    with run.step("measuring"):
        if origin:
            write_json(run.measurement / PLAN, {"format": FORMAT, **origin, "n_shards": n_shards})
        sources = Shards(run.rollouts, ".parquet", read_rollouts, Rollouts.to_parquet, read_origin(run.rollouts))
        tables = sources.read_all(n_shards)
        rollouts = Rollouts.concatenate(tables)
        missing = [table for number, table in enumerate(tables) if number not in finished]
        require_space(run.measurement, sum(measured_bytes(table, section) for table in missing))
        revisions = read_plan(run.rollouts).get("revisions", {})
        policy = experiment_policy(run.experiment, revisions, progress)
        if not run.experiment.behaviour_policy:  # whose weights are meant to differ
            refuse_other_policy(rollouts.metadata.get("policy"), policy.digests, f"the rollouts of {run.path}", RESTORE)
        reference = reference_policy(run.experiment, revisions, progress)
        # Shards of one measurement hold the same weightings and sketches: those of the first that was finished.
        done = next(iter(finished), None)
        if done is not None and section.sketch_version is None:
            version = shared_entry(shards.read_one(done), "sketch_version")
            section = section.model_copy(update={"sketch_version": version})
        session = MeasuringSession.open(policy, rollouts, section, reference_policy=reference)
        if missing:
            session.expect(Rollouts.concatenate(missing))
        names = _chosen_weightings(run, session, tables, progress) if done is None else _weightings_in(shards, done)

        def measure_shard(number: int) -> Measurement:
            weights = weightings_of(session, tables[number], names)
            return session.measure(tables[number], report.chunk, weights)

        n_finished = sum(len(tables[number]) for number in finished)
        run.tracking.begin()
        with progress_bar("measuring", len(rollouts), done=n_finished, shown=progress) as report:
            shards.make_missing(len(tables), measure_shard, on_interrupt=report.say)
    write_json(complete, {"n_shards": n_shards})


def _chosen_weightings(
    run: RunDirectory, session: MeasuringSession, tables: list[Rollouts], progress: bool
) -> tuple[str, ...]:
    from gradstats.runs.further_weightings import needed_weightings, possible_weightings

    possible = possible_weightings(run.experiment)
    asked = possible.off_policy != possible.always
    with progress_bar("scoring", sum(map(len, tables)), shown=progress and asked) as report:
        return needed_weightings(session, tables, possible, run.experiment.variance.target, report.advance)


def _weightings_in(shards: Shards[Measurement], number: int) -> tuple[str, ...]:
    return tuple(shards.read_one(number).weighted)


def _shards(run: RunDirectory) -> Shards[Measurement]:
    def save(measured: Measurement, path: Path) -> None:
        measured.save(path, run.experiment.measurement.token_dtype)
        run.tracking.shard("measuring", measured.rollouts)

    return Shards(run.measurement, "", read_measurement, save, _origin(run))


def _origin(run: RunDirectory) -> dict[str, object]:
    """Return what the measured shards of a run state; runs that share completions differ in the settings."""
    drawn = read_origin(run.rollouts)
    return read_origin(run.measurement) or (drawn and drawn | {"settings": settings_digest(run.experiment)})
