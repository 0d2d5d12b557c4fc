"""The measuring step of a run: the rollout shards that have not been measured."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradstats import estimators
from gradstats.config.experiment import Experiment
from gradstats.config.options import Target
from gradstats.config.sections import MeasurementSection
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED, chi_squared
from gradstats.estimators.recipes.weightings import weighting_names, weightings_by_name
from gradstats.measurement.measurement import Measurement, shared_entry
from gradstats.measurement.storage import measured_bytes, read_measurement, require_space
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.executors.local import Crew, ask
from gradstats.runs.growth import RESTORE, read_plan, settings_digest
from gradstats.runs.sampling_step import experiment_policy, reference_policy
from gradstats.stats.variance.inputs import recorded_differences
from gradstats.system.files import FORMAT, read_json, write_json
from gradstats.system.progress import Report, progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned, read_origin


@dataclass(frozen=True)
class ScoredTokens:
    """Rollouts with the statistics of their tokens, from a forward pass.

    Attributes:
        rollouts: the completions.
        logprobs: for each, (T_i,) log-probabilities under the scored policy.
        entropy: for each, (T_i,) entropies of the scored distribution, in nats.
        metadata: the scored policy, as a measurement records it.
        ref_logprobs: for each, (T_i,) log-probabilities under the reference policy; None where there is none.
        sum_pi_squared: for each, (T_i,) sums of squared probabilities of the scored distribution.
    """

    rollouts: Rollouts
    logprobs: list[np.ndarray]
    entropy: list[np.ndarray]
    metadata: Mapping[str, object]
    ref_logprobs: list[np.ndarray] | None = None
    sum_pi_squared: list[np.ndarray] | None = None

    @classmethod
    def of(cls, session: MeasuringSession, rollouts: Rollouts) -> ScoredTokens:
        """Score rollouts by a forward pass."""
        found = session.token_statistics(rollouts)
        beside = found.get("ref_logprobs"), found["sum_pi_squared"]
        return cls(rollouts, found["logprobs"], found["entropy"], session.metadata, *beside)

    @property
    def old_logprobs(self) -> list[np.ndarray] | None:
        """The sampler's log-probabilities, where it recorded them."""
        if "sampler_logprobs" not in self.rollouts.frame:
            return None
        return [values.astype(np.float64) for values in self.rollouts.tokens("sampler_logprobs")]

    def batch(self) -> Batch:
        """Return the batch of everything that is known before the gradients are measured."""
        return Batch.from_measurement(self)


@dataclass(frozen=True)
class PossibleWeightings:
    """The names of weightings that the estimators of an experiment may need, each in a fixed order.

    Attributes:
        off_policy: those needed where ratios vary.
        always: those of them that vary along a completion where every ratio is 1 as well: of a mask by entropy, and of
            a KL term in the loss.
    """

    off_policy: tuple[str, ...] = ()
    always: tuple[str, ...] = ()


def possible_weightings(experiment: Experiment) -> PossibleWeightings:
    """Return the weightings that the estimators of an experiment may need."""
    section = experiment.variance
    chosen = [estimators.get(label) for label in (*section.estimators, section.reference)]
    recipes = [one for one in chosen if isinstance(one, Recipe) and one.level == "token"]
    available = [one for one in recipes if "ref_logprobs" not in one.needs or experiment.reference_policy]
    return PossibleWeightings(_names(available), _names(one for one in available if _varies_on_policy(one)))


def _varies_on_policy(recipe: Recipe) -> bool:
    mask = recipe.mask.definition
    return (mask.level == "token" and not mask.of_ratios) or recipe.kl.definition.level == "token"


def _names(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in recipes for name in weighting_names(one)))


def needed_weightings(
    tables: Sequence[Rollouts],
    possible: PossibleWeightings,
    target: Target,
    metadata: Mapping[str, object],
    spreads: Iterable[float],
) -> tuple[str, ...]:
    r"""Return the weightings that a run measures: those that a comparison of all its completions will combine.

    The comparison keeps ratios where it is judged against the importance-weighted target, or where :math:`χ^2` of all
    completions exceeds :data:`gradstats.estimators.ratios.NEGLIGIBLE_CHI_SQUARED`; else it takes every ratio as 1.

    Args:
        tables: all shards.
        possible: what the estimators may need.
        target: what the experiment asks to be judged against.
        metadata: the scored policy, as a measurement records it.
        spreads: :func:`spread_of_ratios` of each shard, in any order; taken until they settle the question.
    """
    if possible.off_policy == possible.always or any("sampler_logprobs" not in table.frame for table in tables):
        return possible.always
    recorded = (recorded_differences(ScoredTokens(table, [], [], metadata)) for table in tables)
    if target == "importance" or (target == "auto" and any(recorded)):
        return possible.off_policy
    found: list[float] = []
    for spread in spreads:
        found.append(spread)
        # The sum is rounded once, so that it only grows, in whichever order the shards are scored.
        if math.fsum(found) > NEGLIGIBLE_CHI_SQUARED * sum(map(len, tables)):
            return possible.off_policy
    return possible.always


def spread_of_ratios(session: MeasuringSession, rollouts: Rollouts) -> float:
    r"""Return :math:`χ^2` of some completions times their number, from a forward pass."""
    return chi_squared(ScoredTokens.of(session, rollouts).batch()) * len(rollouts)


def weightings_of(
    session: MeasuringSession, rollouts: Rollouts, names: Iterable[str]
) -> dict[str, list[np.ndarray]] | None:
    """Return the weightings of some completions, by name, one weight per token; None where none is needed."""
    names = tuple(names)
    if not names:
        return None
    batch = ScoredTokens.of(session, rollouts).batch()
    widths = [len(mask) for mask in rollouts.masks]
    return {
        name: [row[:width] for row, width in zip(values, widths, strict=True)]
        for name, values in weightings_by_name(names, batch).items()
    }


def missing_measurements(run: RunDirectory) -> list[int]:
    """Return the shards of a run that have not been measured."""
    return _shards(run).missing(n_planned(read_plan(run.rollouts), run.rollouts / PLAN))


def is_measured(run: RunDirectory) -> bool:
    """Return whether every shard of a run has been measured."""
    return not missing_measurements(run)


@dataclass(frozen=True)
class MeasuringWork:
    """The inputs of measuring, see :class:`gradstats.runs.executors.local.Work`.

    Attributes:
        path: the run directory, for messages.
        experiment: the experiment.
        section: what is measured, with the version of the sketches that the finished shards hold.
        revisions: what names on the hub resolved to.
        checked: the completions that the self-check looks at.
        checked_later: prompt_id and sample_id of one that it is repeated on.
        progress: let transformers show its own progress bars.
    """

    path: Path
    experiment: Experiment
    section: MeasurementSection
    revisions: dict[str, str | None]
    checked: Rollouts
    checked_later: tuple[str, int]
    progress: bool

    def open(self) -> MeasuringSession:
        """Load the policy and its reference, and run the self-check."""
        from gradstats.gradients import MeasuringSession
        from gradstats.policy.checkpoint import refuse_other_policy

        policy = experiment_policy(self.experiment, self.revisions, self.progress)
        if not self.experiment.behaviour_policy:  # whose weights are meant to differ
            recorded = self.checked.metadata.get("policy")
            refuse_other_policy(recorded, policy.digests, f"the rollouts of {self.path}", RESTORE)
        reference = reference_policy(self.experiment, self.revisions, self.progress)
        session = MeasuringSession.open(policy, self.checked, self.section, reference_policy=reference)
        session.checked_later = self.checked_later
        return session


@dataclass(frozen=True)
class MeasureShard:
    """The part that measures one shard.

    Attributes:
        rollouts: the completions.
        names: the further weightings.
    """

    rollouts: Rollouts
    names: tuple[str, ...]

    def __call__(self, session: MeasuringSession, report: Report) -> Measurement:
        """Return the measurement."""
        return session.measure(self.rollouts, report.chunk, weightings_of(session, self.rollouts, self.names))


@dataclass(frozen=True)
class ScoreShard:
    """The part that finds how far the ratios of one shard vary.

    Attributes:
        rollouts: the completions.
    """

    rollouts: Rollouts

    def __call__(self, session: MeasuringSession, report: Report) -> float:
        """Return :func:`gradstats.runs.measuring_step.spread_of_ratios`."""
        return spread_of_ratios(session, self.rollouts)


def scored_policy(session: MeasuringSession, report: Report) -> dict[str, object]:
    """Return the description of the policy that a worker scores with: a part."""
    return {"policy": session.metadata["policy"]}


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    complete = run.measurement / "complete.json"
    origin, shards = _origin(run), _shards(run)
    n_shards = n_planned(read_plan(run.rollouts), run.rollouts / PLAN)
    missing = shards.missing(n_shards)
    if complete.exists() and not missing and read_json(complete).get("n_shards") == n_shards:
        return
    with run.step("measuring"):
        if origin:
            with run.alone():
                write_json(run.measurement / PLAN, {"format": FORMAT, **origin, "n_shards": n_shards})
        if missing := run.own(missing):
            sources = Shards(run.rollouts, ".parquet", read_rollouts, Rollouts.to_parquet, read_origin(run.rollouts))
            _measure(run, shards, sources.read_all(n_shards), missing, progress)
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
    # Shards of one measurement hold the same weightings and sketches: those of the first that was finished.
    done = next(iter(shards.finished(len(tables))), None)
    with run.executor.crew(_work(run, section, shards, done, tables, unmeasured, progress)) as crew:
        if done is None:
            names = _chosen_weightings(run, crew, tables, progress)
        else:
            names = tuple(shards.read_one(done).weighted)
        run.tracking.begin()
        n_sequences = sum(map(len, tables))
        with progress_bar("measuring", n_sequences, done=n_sequences - len(unmeasured), shown=progress) as report:
            shards.write_all(crew.work(missing, lambda number: MeasureShard(tables[number], names), report))


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

    rollouts = Rollouts.concatenate(tables)
    if done is not None and section.sketch_version is None:
        version = shared_entry(shards.read_one(done), "sketch_version")
        section = section.model_copy(update={"sketch_version": version})
    revisions = read_plan(run.rollouts).get("revisions", {})
    checked, later = rollouts.select(checked_rows(rollouts)), sequence_to_check(unmeasured)
    return MeasuringWork(run.path, run.experiment, section, revisions, checked, later, progress)


def _chosen_weightings(
    run: RunDirectory, crew: Crew[MeasuringSession], tables: list[Rollouts], progress: bool
) -> tuple[str, ...]:
    """Let the workers score completions where that decides which weightings are needed."""
    possible = possible_weightings(run.experiment)
    asked = possible.off_policy != possible.always
    metadata = ask(crew, scored_policy, "the description of the policy") if asked else {}
    with progress_bar("scoring", sum(map(len, tables)), shown=progress and asked) as report:

        def spreads() -> Generator[float, None, None]:
            numbers = range(len(tables))
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
