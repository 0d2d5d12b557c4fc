"""The measuring step of a run: the rollout shards that have not been measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from gradstats.config.options import Target
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.needs import PossibleWeightings, possible_weightings
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED, largest_chi_squared
from gradstats.estimators.recipes.weightings import advantages_of, is_of_estimator, ragged, weightings_by_name
from gradstats.measurement.disk_size import measured_bytes, require_space
from gradstats.measurement.measurement import (
    Measurement,
    forward_proxies,
    read_measurement,
    shared_entry,
    weightings_in,
)
from gradstats.measurement.scored import ForwardProxies, read_forward_proxies
from gradstats.measurement.state_values import StoredValues
from gradstats.report.saved_results import read_recorded_experiment
from gradstats.rollouts.table import Rollouts
from gradstats.runs.claims import Board, Claim, make_missing
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import RESTORE, drawn_shards, read_plan, settings_digest
from gradstats.runs.ranks import agreed, is_first
from gradstats.runs.sampling_step import experiment_policy, n_planned_shards, reference_policy
from gradstats.stats.on_policy import same_weights_recorded
from gradstats.stats.variance.inputs import recorded_differences
from gradstats.system.files import FORMAT, read_json, write_json
from gradstats.system.progress import Report, progress_bar
from gradstats.system.shards import PLAN, Shards, read_origin

if TYPE_CHECKING:
    from gradstats.gradients.session import MeasuringSession
    from gradstats.policy.policy import Policy

#: Of the first shard of completions that the scored weights drew: the same kernels leave 1e-7, and a forward pass of
#: every other shard, in each part of a run, would show no more.
_CLEARLY_NEGLIGIBLE = NEGLIGIBLE_CHI_SQUARED / 100


def missing_measurements(run: RunDirectory) -> list[int]:
    """Return the shards of a run that have not been measured, or not with all advantages that estimators need."""
    shards, n_shards = _shards(run), n_planned_shards(run)
    if run.measures_part:  # whose shards are finished with the proxies of what they do not measure
        return _scored_shards(run).missing(n_shards)
    wanted = set(possible_weightings(run.experiment).advantages)
    finished = shards.finished(n_shards) if wanted else []
    lacking = [number for number in finished if not wanted <= set(weightings_in(shards.path(number)))]
    return sorted([*shards.missing(n_shards), *lacking])


def is_measured(run: RunDirectory) -> bool:
    """Return whether every shard of a run has been measured."""
    complete = run.measurement / "complete.json"
    there = complete.exists() and _complete(run).items() <= read_json(complete).items()
    return there and not missing_measurements(run)


def _complete(run: RunDirectory) -> dict[str, int | None]:
    part = {"n_prompts": run.experiment.measurement.n_prompts} if run.scored.exists() else {}
    return {"n_shards": n_planned_shards(run), **part}


def measured_prompts(run: RunDirectory) -> frozenset[str] | None:
    """Return the prompts that a run measures, a random sample; None where nothing else was ever asked for than all."""
    return frozenset(run.measuring_order()[: run.experiment.measurement.n_prompts]) if run.measures_part else None


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    if agreed(lambda: is_measured(run)):
        return
    shards = _shards(run)
    agreed(lambda: _begin_part(run))
    n_shards, missing = agreed(lambda: (n_planned_shards(run), missing_measurements(run)))
    with run.step("measuring"):
        if is_first() and shards.origin:
            with run.turn():
                write_json(run.measurement / PLAN, {"format": FORMAT, **shards.origin, "n_shards": n_shards})
        if missing:
            _measure(run, shards, drawn_shards(run.rollouts).read_all(n_shards), missing, progress)
        if is_first():
            with run.turn():
                _refuse_other_part(run)
                write_json(run.measurement / "complete.json", _complete(run))


def _begin_part(run: RunDirectory) -> None:
    """Remove the proxies of shards of which completions are measured from now on; what is measured of them stays."""
    if not run.measures_part:
        return
    with run.turn():
        run.write_experiment()  # whose number of measured prompts may have grown
        run.scored.mkdir(exist_ok=True)
        for path in _of_smaller_part(run):
            path.unlink()


def _refuse_other_part(run: RunDirectory) -> None:
    """Refuse to finish what processes measured together that were to measure different numbers of prompts."""
    if not run.measures_part:
        return
    recorded = read_recorded_experiment(run.path / "experiment.yaml").measurement.n_prompts
    if recorded != run.experiment.measurement.n_prompts or _of_smaller_part(run):
        raise ValueError(
            f"a process with another measurement.n_prompts has worked on {run.path} meanwhile: repeat the command with "
            "the largest number"
        )


def _of_smaller_part(run: RunDirectory) -> list[Path]:
    """Return the files of proxies that hold completions which are to be measured."""
    chosen, files = measured_prompts(run) or frozenset(), sorted(run.scored.glob("shard-*.parquet"))
    return [path for path in files if not chosen.isdisjoint(read_forward_proxies(path).completions["prompt_id"])]


def _measure(
    run: RunDirectory, shards: Shards[Measurement], tables: list[Rollouts], missing: list[int], progress: bool
) -> None:
    from gradstats.gradients.parameters import n_block_sketches

    section = run.experiment.measurement
    if section.second_moments is not None:
        from gradstats.gradients.second_moments import with_moments_on_file

        file = run.measurement / "second_moments.safetensors"
        with run.turn(), run.loaded(lambda: None):
            tables, section = with_moments_on_file(file, lambda: _policy(run, progress), tables, section, progress)
    chosen, parts = measured_prompts(run), dict(enumerate(tables))
    if chosen is not None:
        masks = (np.isin(table.prompt_id, [*chosen]) for table in tables)
        parts = {number: tables[number].select(mask) for number, mask in enumerate(masks) if mask.any()}
    some = [*parts.values()]
    unmeasured = Rollouts.concatenate([parts[number] for number in missing if number in parts] or some)
    # Of shards that are made and lack something only what they lack is new. Again below: how many blocks there are, and
    # which weightings are needed, is known only where the model is.
    new = [parts[number] for number in missing if number in parts and not shards.is_made(number)]
    require_space(run.measurement, sum(measured_bytes(table, section) for table in new))
    # Shards of one measurement hold the same weightings and sketches; the newest has the latest self-check.
    done = agreed(
        lambda: max(shards.finished(len(tables)), key=lambda number: shards.path(number).stat().st_mtime, default=None)
    )
    earlier = None if done is None else shards.read_one(done)
    with run.loaded(lambda: _session(run, section, earlier, some, unmeasured, progress)) as session:
        if earlier is None:
            names = _chosen_weightings(run, session, some, progress)
        else:
            # Of weightings by ratios, which the first shards decided on, all shards hold the same.
            further = possible_weightings(run.experiment).advantages
            names = tuple(dict.fromkeys([*earlier.weighted, *further]))
        n_blocks = n_block_sketches(session.policy, section)
        require_space(run.measurement, sum(measured_bytes(table, section, n_blocks, len(names)) for table in new))
        values = StoredValues(run.values) if any(map(is_of_estimator, names)) else None
        if values is not None and done is not None and earlier is not None:
            _refuse_other_advantages(run, earlier, tables[done], values.of_shard(done, tables[done]))
        run.tracking.begin()
        n_sequences, sizes = sum(map(len, tables)), {number: len(tables[number]) for number in missing}
        done_before = n_sequences - sum(sizes.values())
        with progress_bar("measuring", n_sequences, done=done_before, shown=progress) as report:
            scored = _scored_shards(run)

            def measure_part(claim: Claim) -> None:
                number, table = claim.number, tables[claim.number]
                if number in parts:
                    old = shards.read_one(number) if shards.is_made(number) else None
                    measured = _with_rest(session, parts[number], names, old, claim)
                    if measured is not old and is_first():
                        shards.write_one(number, measured)
                others = np.flatnonzero(~np.isin(table.prompt_id, [*(chosen or ())]))
                proxies: dict[str, np.ndarray] = {}
                if len(others):
                    rest = table.select(others)
                    found = session.token_statistics(rest)
                    claim.chunk(len(rest), int(rest.times.sum()))
                    proxies = forward_proxies(found["logprobs"], found["entropy"], found["sum_pi_squared"], rest.masks)
                if is_first():
                    scored.write_one(number, ForwardProxies.of(table, others, proxies))

            if chosen is not None:
                make_missing(Board(scored, sizes, report, scored.is_made), run.spent, measure_part)
                return
            there = agreed(lambda: frozenset(number for number in missing if shards.is_made(number)))

            def is_measured(number: int) -> bool:
                lacks = number in there and not set(names) <= set(weightings_in(shards.path(number)))
                return shards.is_made(number) and not lacks

            def measure(claim: Claim) -> None:
                number = claim.number
                old = shards.read_one(number) if number in there else None
                table = tables[number] if old is None else old.rollouts
                lacking = tuple(name for name in names if old is None or name not in old.weighted)
                of_table = {} if values is None else values.of_shard(number, table)
                measured = _measured(session, table, lacking, of_table, old, claim)
                if is_first():
                    shards.write_one(number, measured)

            make_missing(Board(shards, sizes, report, is_measured), run.spent, measure)


def _measured(
    session: MeasuringSession,
    rollouts: Rollouts,
    names: tuple[str, ...],
    values: dict[str, list[np.ndarray]],
    earlier: Measurement | None,
    report: Report,
) -> Measurement:
    """Measure one shard: all of it, or the further weightings ``names`` that an earlier measurement lacks."""
    weightings = _weightings_of(session, rollouts, names, values)
    measured = session.measure(rollouts, report.chunk, weightings, earlier)
    # Weights of ratios and KL terms follow from the measurement itself.
    weighted = {
        name: gradients if is_of_estimator(name) else replace(gradients, weights=None)
        for name, gradients in measured.weighted.items()
    }
    return replace(measured, weighted=weighted)


def _with_rest(
    session: MeasuringSession, rollouts: Rollouts, names: tuple[str, ...], earlier: Measurement | None, report: Report
) -> Measurement:
    """Measure what an earlier measurement of some completions lacks."""
    keys = [*zip(rollouts.prompt_id.tolist(), rollouts.sample_id.tolist(), strict=True)]
    known = set() if earlier is None else _known(earlier)
    lacking = [row for row, key in enumerate(keys) if key not in known]
    if earlier is not None and not lacking:
        return earlier
    measured = _measured(session, rollouts.select(lacking), names, {}, None, report)
    if earlier is None:
        return measured
    joined = Measurement.concatenate([earlier, measured])
    place = {key: row for row, key in enumerate(keys)}
    own = zip(joined.rollouts.prompt_id.tolist(), joined.rollouts.sample_id.tolist(), strict=True)
    return joined.select(np.argsort([place[key] for key in own]))


def _known(measured: Measurement) -> set[tuple[str, int]]:
    """Return the completions that were measured, those without a finite gradient included."""
    found = {*zip(measured.rollouts.prompt_id.tolist(), measured.rollouts.sample_id.tolist(), strict=True)}
    return found | {(str(prompt), int(sample)) for prompt, sample in measured.metadata.get("not_finite", ())}


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


def _session(
    run: RunDirectory,
    section: MeasurementSection,
    earlier: Measurement | None,
    tables: list[Rollouts],
    unmeasured: Rollouts,
    progress: bool,
) -> MeasuringSession:
    """Load the policy and its reference, and run the self-check; that of an earlier shard serves again."""
    from gradstats.gradients.checks.self_check import checked_rows
    from gradstats.gradients.session import MeasuringSession, sequence_to_check
    from gradstats.policy.checkpoint import refuse_other_policy

    rollouts, known = Rollouts.concatenate(tables), None
    if earlier is not None:
        known = earlier.metadata
        if section.sketch_version is None:
            section = section.model_copy(update={"sketch_version": shared_entry(earlier, "sketch_version")})
    checked = rollouts.select(checked_rows(rollouts))
    revisions = read_plan(run.rollouts).get("revisions", {})
    policy = _policy(run, progress)
    if not run.experiment.behaviour_policy:  # whose weights are meant to differ
        recorded = checked.metadata.get("policy")
        refuse_other_policy(recorded, policy.digests, f"the rollouts of {run.path}", RESTORE)
    reference = reference_policy(run.experiment, revisions, progress)
    session = MeasuringSession.open(policy, checked, section, reference_policy=reference, earlier=known)
    session.checked_later = sequence_to_check(unmeasured)
    return session


def _policy(run: RunDirectory, progress: bool) -> Policy:
    return experiment_policy(run.experiment, read_plan(run.rollouts).get("revisions", {}), progress)


def _chosen_weightings(
    run: RunDirectory, session: MeasuringSession, tables: list[Rollouts], progress: bool
) -> tuple[str, ...]:
    """Score completions where that decides which weightings are needed."""
    possible = possible_weightings(run.experiment)
    asked = possible.off_policy != possible.always
    metadata = {"policy": session.metadata["policy"]} if asked else {}
    with progress_bar("scoring", sum(map(len, tables)), shown=progress and asked) as report:

        def spreads() -> Iterator[float]:
            for table in tables:
                yield _spread_of_ratios(session, table)
                report.advance(len(table))

        return _needed_weightings(tables, possible, run.experiment.variance.target, metadata, spreads())


def _needed_weightings(
    tables: Sequence[Rollouts],
    possible: PossibleWeightings,
    target: Target,
    metadata: Mapping[str, object],
    spreads: Iterable[float],
) -> tuple[str, ...]:
    r"""Return the weightings that a run measures: those that a comparison of all its completions will combine.

    The comparison keeps ratios where it is judged against the importance-weighted target, or where :math:`χ^2` of all
    completions exceeds :data:`gradstats.estimators.ratios.NEGLIGIBLE_CHI_SQUARED`; else it takes every ratio as 1.
    Where all shards record that the scored weights drew them, and the first lies far below that limit, the others are
    not scored.

    Args:
        tables: the shards.
        possible: what the estimators may need.
        target: what the comparison is judged against.
        metadata: the scored policy, as a measurement records it.
        spreads: ``_spread_of_ratios`` of each shard, beginning with the first.
    """
    if possible.off_policy == possible.always or any("sampler_logprobs" not in table.frame for table in tables):
        return possible.of_equal_ratios
    recorded = (recorded_differences(SimpleNamespace(rollouts=table, metadata=metadata)) for table in tables)
    if target == "importance" or (target == "auto" and any(recorded)):
        return possible.of_any_ratios
    drawn_by_it = all(same_weights_recorded(table.metadata.get("policy"), metadata.get("policy")) for table in tables)
    found: list[float] = []
    for spread in spreads:
        if drawn_by_it and not found and spread < _CLEARLY_NEGLIGIBLE * len(tables[0]):
            break
        found.append(spread)
        # The sum is rounded once, so that it only grows, in whichever order the shards are scored.
        if math.fsum(found) > NEGLIGIBLE_CHI_SQUARED * sum(map(len, tables)):
            return possible.of_any_ratios
    return possible.of_equal_ratios


def _spread_of_ratios(session: MeasuringSession, rollouts: Rollouts) -> float:
    """Return the greatest :math:`χ^2` of some completions times their number, from a forward pass."""
    return largest_chi_squared(session.scored_batch(rollouts)) * len(rollouts)


def _weightings_of(
    session: MeasuringSession,
    rollouts: Rollouts,
    names: Iterable[str],
    values: Mapping[str, list[np.ndarray]] | None = None,
) -> dict[str, list[np.ndarray]] | None:
    """Return the weightings of some completions, by name, one weight per token; None where none is needed.

    ``values`` are the state values of the completions, by field, for those that are advantages.
    """
    names = tuple(names)
    found: dict[str, list[np.ndarray]] = {}
    if others := tuple(name for name in names if not is_of_estimator(name)):
        found |= ragged(rollouts, weightings_by_name(others, session.scored_batch(rollouts)))
    found |= advantages_of(rollouts, filter(is_of_estimator, names), values or {})
    return {name: found[name] for name in names} or None


def _shards(run: RunDirectory) -> Shards[Measurement]:
    def save(measured: Measurement, path: Path) -> None:
        # One of which more prompts are measured now takes the place of the smaller one.
        measured.save(path, run.experiment.measurement.token_dtype, overwrite=run.scored.exists())
        run.tracking.shard("measuring", measured.rollouts)

    return Shards(run.measurement, "", read_measurement, save, _origin(run))


def _scored_shards(run: RunDirectory) -> Shards[ForwardProxies]:
    return Shards(run.scored, ".parquet", read_forward_proxies, ForwardProxies.to_parquet, _origin(run))


def _origin(run: RunDirectory) -> dict[str, object]:
    """Return what the measured shards of a run state; runs that share completions differ in the settings."""
    drawn = read_origin(run.rollouts)
    return read_origin(run.measurement) or (drawn and drawn | {"settings": settings_digest(run.experiment)})
