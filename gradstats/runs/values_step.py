"""The step of a run that makes state values: of a fitted head, and of prefixes by further completions."""

from __future__ import annotations

from typing import Any

from gradstats.config.options import TOKEN_BUDGET
from gradstats.estimators.needs import possible_weightings
from gradstats.measurement.state_values import FITTED, StateValues, read_state_values
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.claims import Board, Claim, make_missing
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import drawn_shards, read_plan
from gradstats.runs.ranks import agreed, is_first
from gradstats.runs.regrading import read_regradings
from gradstats.runs.sampling_step import (
    behaviour_policy,
    experiment_policy,
    experiment_problems,
    n_planned_shards,
)
from gradstats.system.files import FORMAT, digest, read_json, write_json
from gradstats.system.progress import progress_bar
from gradstats.system.shards import PLAN, Shards, read_origin

#: Settings of the section that decide what values of prefixes are.
_OF_PREFIXES = ("monte_carlo", "steps", "seed", "batch_size")


def make_values(run: RunDirectory, progress: bool) -> None:
    """Make the state values that the experiment asks for and that are not there yet."""
    section = run.experiment.values

    def fit() -> None:
        with run.turn():
            if not _is_fitted(run):
                _fit_head(run, progress)

    if section.fitted:
        agreed(fit)
    if section.monte_carlo:
        continue_prefixes(run, progress)


def has_values(run: RunDirectory) -> bool:
    """Return whether every state value of a run has been made."""
    section, recorded = run.experiment.values, run.values / PLAN
    if section.fitted and not _is_fitted(run):
        return False
    if not section.monte_carlo:
        return True
    plan = _plan(run)
    return recorded.exists() and read_json(recorded) == plan and not _shards(run).missing(plan["n_shards"])


def _is_fitted(run: RunDirectory) -> bool:
    """Return whether the value head was fitted to just these completions and their rewards."""
    path = run.values / FITTED
    return path.exists() and read_state_values(path).metadata.get("made_from") == _made_from(run)


def _made_from(run: RunDirectory) -> str:
    """Return the digest of what the values of a fitted head depend on."""
    rollouts = read_rollouts(run.rollouts)
    fitted_to = [read_origin(run.rollouts), rollouts.prompt_id.tolist(), rollouts.sample_id.tolist()]
    return digest([_settings_of_head(run), *fitted_to, rollouts.rewards.tolist()])


def _settings_of_head(run: RunDirectory) -> dict[str, Any]:
    section = run.experiment.values
    return {"n_folds": section.n_folds, "tokens_per_completion": section.tokens_per_completion}


def _fit_head(run: RunDirectory, progress: bool) -> None:
    """Fit the value head to all completions.

    In a run that has grown, completions keep their values where advantages from these are measured: their head was
    fitted to other prompts as well.
    """
    from gradstats.values import fit_values

    settings, rollouts, path = _settings_of_head(run), read_rollouts(run.rollouts), run.values / FITTED
    with run.step("values"):
        revisions = read_plan(run.rollouts).get("revisions", {})
        budget = run.experiment.measurement.token_budget or TOKEN_BUDGET
        with run.loaded(lambda: experiment_policy(run.experiment, revisions, progress, sharded=False)) as policy:
            fitted = fit_values(policy, rollouts, **settings, token_budget=budget, progress=progress)
        made = {"made_from": _made_from(run), "policy": policy.describe(), "penalties": list(fitted.penalties)}
        values = StateValues.of(rollouts, fitted.values, settings | made)
        earlier = read_state_values(path) if path.exists() else None
        if earlier and earlier.metadata.items() >= settings.items() and possible_weightings(run.experiment).advantages:
            values = values.with_earlier(earlier)
        values.to_parquet(path)


def continue_prefixes(run: RunDirectory, progress: bool) -> None:
    """Draw completions from the beginning of each step, shard by shard, where a shard has none yet."""

    def planned() -> tuple[dict[str, Any], list[int]]:
        plan = _plan(run)
        with run.turn():
            _record(run, plan)
        return plan, _shards(run).missing(plan["n_shards"])

    plan, missing = agreed(planned)
    if not missing:
        return
    with run.step("values"):
        from gradstats.values import monte_carlo_values

        section, shards, drawn = run.experiment.values, _shards(run), drawn_shards(run.rollouts)
        revisions = read_plan(run.rollouts).get("revisions", {})
        with run.loaded(lambda: behaviour_policy(run.experiment, revisions, progress)) as policy:
            problems = experiment_problems(run.experiment, revisions)

            def make(claim: Claim) -> None:
                rollouts = drawn.read_one(claim.number)
                values = monte_carlo_values(
                    policy,
                    rollouts,
                    problems,
                    k=section.monte_carlo,
                    steps=section.steps,
                    reward=run.experiment.sampling.reward,
                    rng=int(digest([section.seed, claim.number])[:8], 16),
                    batch_size=section.batch_size,
                    report=claim,
                )
                if is_first():
                    about = {"policy": policy.describe(), **plan["values"]}
                    shards.write_one(claim.number, StateValues.of(rollouts, values, about))

            total, sizes = plan["n_shards"], dict.fromkeys(missing, 1)
            with progress_bar("values of prefixes", total, done=total - len(missing), shown=progress) as report:
                make_missing(Board(shards, sizes, report, shards.is_made), run.spent, make)


def _shards(run: RunDirectory) -> Shards[StateValues]:
    return Shards(run.values, ".parquet", read_state_values, StateValues.to_parquet, read_origin(run.values))


def _plan(run: RunDirectory) -> dict[str, Any]:
    """Return the plan of the shards."""
    values = {name: getattr(run.experiment.values, name) for name in _OF_PREFIXES}
    values |= {"reward": run.experiment.sampling.reward, "regraded": len(read_regradings(run.path))}
    origin = {"run": read_origin(run.rollouts).get("run"), "settings": digest(values)}
    return {"format": FORMAT, **origin, "n_shards": n_planned_shards(run), "values": values}


def _record(run: RunDirectory, plan: dict[str, Any]) -> None:
    """Write the plan of the shards, and remove those that belong to rewards from before the run was scored again."""
    recorded = run.values / PLAN
    earlier = read_json(recorded) if recorded.exists() else {}
    if plan == earlier:
        return
    made = sorted(run.values.glob("shard-*.parquet"))
    known = earlier.get("values", {})
    differing = [name for name, value in plan["values"].items() if known.get(name) != value]
    for name in differing if made and earlier else ():
        if name in _OF_PREFIXES:
            raise ValueError(
                f"the state values of the run {run.path} were made with values.{name}={known[name]!r}, not "
                f"{plan['values'][name]!r}: choose another directory (--out), or remove {run.values} to make them again"
            )
    for path in made if differing else ():
        path.unlink()
    run.values.mkdir(exist_ok=True)
    write_json(recorded, plan)
