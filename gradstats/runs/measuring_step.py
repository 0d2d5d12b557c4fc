"""The measuring step of a run: the rollout shards that have not been measured."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradstats.config.experiment import Experiment
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.recipes.weightings import is_of_estimator
from gradstats.measurement.disk_size import measured_bytes, require_space
from gradstats.measurement.measurement import Measurement, read_measurement, shared_entry, weightings_in
from gradstats.measurement.state_values import StoredValues
from gradstats.rollouts.table import Rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.executors.local import WorkerPool, ask
from gradstats.runs.growth import RESTORE, drawn_shards, read_plan, settings_digest
from gradstats.runs.sampling_step import experiment_policy, n_planned_shards, reference_policy
from gradstats.runs.weightings import (
    advantages_of,
    needed_weightings,
    possible_weightings,
    spread_of_ratios,
    weightings_of,
)
from gradstats.system.files import FORMAT, read_json, write_json
from gradstats.system.progress import Report, progress_bar
from gradstats.system.shards import PLAN, Shards, read_origin

if TYPE_CHECKING:
    from gradstats.gradients.session import MeasuringSession


def missing_measurements(run: RunDirectory) -> list[int]:
    """Return the shards of a run that have not been measured, or not with all advantages that estimators need."""
    shards, n_shards = _shards(run), n_planned_shards(run)
    wanted = set(possible_weightings(run.experiment).advantages)
    finished = shards.finished(n_shards) if wanted else []
    lacking = [number for number in finished if not wanted <= set(weightings_in(shards.path(number)))]
    return sorted([*shards.missing(n_shards), *lacking])


def is_measured(run: RunDirectory) -> bool:
    """Return whether every shard of a run has been measured."""
    return not missing_measurements(run)


def measures_advantages(run: RunDirectory) -> bool:
    """Return whether a run measures advantages from state values, which have to be made before."""
    return bool(possible_weightings(run.experiment).advantages)


@dataclass(frozen=True)
class MeasuringWork:
    """The inputs of measuring, see :class:`gradstats.runs.executors.local.Work`."""

    path: Path  # the run directory, for messages
    experiment: Experiment
    section: MeasurementSection  # what is measured, with the version of the sketches that the finished shards hold
    revisions: dict[str, str | None]  # what names on the hub resolved to
    checked: Rollouts  # the completions that the self-check looks at
    checked_later: tuple[str, int]  # prompt_id and sample_id of one that it is repeated on
    earlier: dict[str, Any] | None  # metadata of a finished shard, whose self-check serves again
    progress: bool  # let transformers show its own progress bars

    def open(self) -> MeasuringSession:
        """Load the policy and its reference, and run the self-check."""
        from gradstats.gradients.session import MeasuringSession
        from gradstats.policy.checkpoint import refuse_other_policy

        policy = experiment_policy(self.experiment, self.revisions, self.progress)
        if not self.experiment.behaviour_policy:  # whose weights are meant to differ
            recorded = self.checked.metadata.get("policy")
            refuse_other_policy(recorded, policy.digests, f"the rollouts of {self.path}", RESTORE)
        reference = reference_policy(self.experiment, self.revisions, self.progress)
        session = MeasuringSession.open(
            policy, self.checked, self.section, reference_policy=reference, earlier=self.earlier
        )
        session.checked_later = self.checked_later
        return session


@dataclass(frozen=True)
class MeasureShard:
    """The part that measures one shard."""

    rollouts: Rollouts
    names: tuple[str, ...]  # the further weightings that are not measured
    values: dict[str, list[np.ndarray]]  # state values by field, where weightings are advantages from these
    earlier: Measurement | None = None  # of these completions, without those weightings

    def __call__(self, session: MeasuringSession, report: Report) -> Measurement:
        """Return the measurement."""
        weightings = weightings_of(session, self.rollouts, self.names, self.values)
        measured = session.measure(self.rollouts, report.chunk, weightings, self.earlier)
        # Weights of ratios and KL terms follow from the measurement itself.
        weighted = {
            name: gradients if is_of_estimator(name) else replace(gradients, weights=None)
            for name, gradients in measured.weighted.items()
        }
        return replace(measured, weighted=weighted)


@dataclass(frozen=True)
class ScoreShard:
    """The part that finds how far the ratios of one shard vary."""

    rollouts: Rollouts

    def __call__(self, session: MeasuringSession, report: Report) -> float:
        """Return :func:`gradstats.runs.weightings.spread_of_ratios`."""
        return spread_of_ratios(session, self.rollouts)


def _scored_policy(session: MeasuringSession, report: Report) -> dict[str, object]:
    """Return the description of the policy that a worker scores with: a part."""
    return {"policy": session.metadata["policy"]}


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    complete = run.measurement / "complete.json"
    origin, shards = _origin(run), _shards(run)
    n_shards = n_planned_shards(run)
    missing = missing_measurements(run)
    if complete.exists() and not missing and read_json(complete).get("n_shards") == n_shards:
        return
    with run.step("measuring"):
        if origin:
            with run.alone():
                write_json(run.measurement / PLAN, {"format": FORMAT, **origin, "n_shards": n_shards})
        if missing := run.own(missing):
            _measure(run, shards, drawn_shards(run.rollouts).read_all(n_shards), missing, progress)
    with run.alone():
        if not shards.missing(n_shards):
            write_json(complete, {"n_shards": n_shards})


def _measure(
    run: RunDirectory, shards: Shards[Measurement], tables: list[Rollouts], missing: list[int], progress: bool
) -> None:
    section = run.experiment.measurement
    if section.second_moments is not None:
        from gradstats.runs.second_moments import with_estimated_moments

        with run.alone():
            tables, section = with_estimated_moments(run, tables, progress)
    unmeasured = Rollouts.concatenate([tables[number] for number in missing])
    # Sketches by block are not counted: how many blocks there are is known only where the model is.
    require_space(run.measurement, measured_bytes(unmeasured, section))
    # Shards of one measurement hold the same weightings and sketches; the newest has the latest self-check.
    done = max(shards.finished(len(tables)), key=lambda number: shards.path(number).stat().st_mtime, default=None)
    with run.executor.crew(_work(run, section, shards, done, tables, unmeasured, progress)) as crew:
        if done is None:
            names = _chosen_weightings(run, crew, tables, progress)
        else:
            # Of weightings by ratios, which the first shards decided on, all shards hold the same.
            further = possible_weightings(run.experiment).advantages
            names = tuple(dict.fromkeys([*shards.read_one(done).weighted, *further]))
        values = StoredValues(run.values) if any(map(is_of_estimator, names)) else None
        if values is not None and done is not None:
            _refuse_other_advantages(run, shards.read_one(done), tables[done], values.of_shard(done, tables[done]))
        run.tracking.begin()
        n_sequences = sum(map(len, tables))
        with progress_bar("measuring", n_sequences, done=n_sequences - len(unmeasured), shown=progress) as report:

            def part(number: int) -> MeasureShard:
                earlier = shards.read_one(number) if shards.path(number).exists() else None
                table = tables[number] if earlier is None else earlier.rollouts
                lacking = tuple(name for name in names if earlier is None or name not in earlier.weighted)
                of_table = {} if values is None else values.of_shard(number, table)
                return MeasureShard(table, lacking, of_table, earlier)

            shards.write_all(crew.work(missing, part, report))


def _refuse_other_advantages(
    run: RunDirectory, measured: Measurement, rollouts: Rollouts, values: dict[str, list[np.ndarray]]
) -> None:
    """Refuse to go on where advantages of a finished shard were those of other rewards or values."""
    for name, rows in advantages_of(rollouts, filter(is_of_estimator, measured.weighted), values).items():
        known = measured.weighted[name].weights
        if known is not None and not all(map(np.array_equal, rows, known)):
            raise ValueError(
                f"the rewards or state values of {run.path} have changed since {name} was measured on its first "
                "completions: put back the earlier settings (values, sampling.reward), or choose another directory "
                "(--out)"
            )


def _work(
    run: RunDirectory,
    section: MeasurementSection,
    shards: Shards[Measurement],
    done: int | None,
    tables: list[Rollouts],
    unmeasured: Rollouts,
    progress: bool,
) -> MeasuringWork:
    from gradstats.gradients.checks.self_check import checked_rows
    from gradstats.gradients.session import sequence_to_check

    rollouts, earlier = Rollouts.concatenate(tables), None
    if done is not None:
        measured = shards.read_one(done)
        earlier = measured.metadata
        if section.sketch_version is None:
            section = section.model_copy(update={"sketch_version": shared_entry(measured, "sketch_version")})
    revisions = read_plan(run.rollouts).get("revisions", {})
    checked, later = rollouts.select(checked_rows(rollouts)), sequence_to_check(unmeasured)
    return MeasuringWork(run.path, run.experiment, section, revisions, checked, later, earlier, progress)


def _chosen_weightings(
    run: RunDirectory, crew: WorkerPool[MeasuringSession], tables: list[Rollouts], progress: bool
) -> tuple[str, ...]:
    """Let the workers score completions where that decides which weightings are needed."""
    possible = possible_weightings(run.experiment)
    asked = possible.off_policy != possible.always
    metadata = ask(crew, _scored_policy, "the description of the policy") if asked else {}
    with progress_bar("scoring", sum(map(len, tables)), shown=progress and asked) as report:

        def spreads() -> Generator[float, None, None]:
            # The first alone: in each part of a run, and in whichever order workers finish, it decides the same.
            for numbers in (range(1), range(1, len(tables))):
                for number, spread in crew.work(numbers, lambda number: ScoreShard(tables[number]), report):
                    yield spread
                    report.advance(len(tables[number]))

        with closing(spreads()) as found:
            return needed_weightings(tables, possible, run.experiment.variance.target, metadata, found)


def _shards(run: RunDirectory) -> Shards[Measurement]:
    def save(measured: Measurement, path: Path) -> None:
        measured.save(path, run.experiment.measurement.token_dtype)
        run.tracking.shard("measuring", measured.rollouts)

    return Shards(run.measurement, "", read_measurement, save, _origin(run))


def _origin(run: RunDirectory) -> dict[str, object]:
    """Return what the measured shards of a run state; runs that share completions differ in the settings."""
    drawn = read_origin(run.rollouts)
    return read_origin(run.measurement) or (drawn and drawn | {"settings": settings_digest(run.experiment)})
