"""How a run grows: by more prompts or more completions per prompt, while finished shards stay as they are.

A round consists of the completions that one setting of ``prompts.n`` and ``sampling.group_size`` added to the existing
ones. Its batches follow those of the earlier rounds, so that each keeps its number, its seed and its shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradstats.config.experiment import Experiment
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.system.files import FORMAT, digest, read_json, write_json
from gradstats.system.shards import PLAN, Shards, read_origin

if TYPE_CHECKING:
    from gradstats.sampling.plan import SamplingPlan


#: The remedy where a run's policy has changed.
RESTORE = "restore that policy, or choose another directory (--out)"


@dataclass(frozen=True)
class Round:
    """One round of a run."""

    prompt_ids: list[str]  # the prompts that the run had then
    group_size: int  # the completions of each that it had then
    batches: list[int]  # how many completions each batch of the round holds
    prompts: str  # digest of the round's prompts, as token ids, and of which completions it drew
    answers: str  # digest of their reference answers


def may_grow(name: str, before: object, wanted: object) -> bool:
    """Return whether a run with one value of a setting can be extended to another; None stands for all problems."""
    if name not in Experiment.settings_that("grows") or not isinstance(before, int):
        return False
    return wanted is None or (isinstance(wanted, int) and wanted >= before)


def size_of(experiment: Experiment) -> dict[str, int | None]:
    """Return the settings that may grow."""
    return {"n": experiment.prompts.n, "group_size": experiment.sampling.group_size}


def read_plan(folder: Path) -> dict[str, Any]:
    """Return the ``plan.json`` of a run's rollouts: its rounds, and revisions on the hub; empty where there is none."""
    return read_json(folder / PLAN) if (folder / PLAN).exists() else {}


def rounds_of(folder: Path) -> list[Round]:
    """Return the rounds of a run, in order."""
    return [Round(**entry) for entry in read_plan(folder).get("rounds", [])]


def drawn_shards(folder: Path) -> Shards[Rollouts]:
    """Return the shards of the rollouts of a run."""
    return Shards(folder, ".parquet", read_rollouts, Rollouts.to_parquet, read_origin(folder))


def settings_digest(experiment: Experiment) -> str:
    """Return a digest of the settings that all shards of a run share: those that neither grow nor are scored again."""
    changing = Experiment.settings_that("grows", "regraded", "unstated")
    return digest(
        sorted((name, value) for name, value in experiment.settled_settings().items() if name not in changing)
    )


def rounds_to_extend(folder: Path) -> list[Round]:
    """Return the rounds that a run's shards were drawn in; none before the first shard exists."""
    drawn = any(folder.glob("*.parquet"))
    rounds = rounds_of(folder) if drawn else []
    if drawn and not rounds:
        raise ValueError(f"{folder} contains shards but no {PLAN} that describes them: restore it from a copy")
    return rounds


@dataclass(frozen=True)
class GrownPlan:
    """The batches of every round of a run."""

    rows: list[list[tuple[int, int]]]  # for each batch, pairs of problem index and sample number
    rounds: list[Round]  # the rounds, the last of which draws what the present settings add to the earlier ones
    origin: dict[str, object]  # the run and settings that each shard states


def grown_plan(
    plan: SamplingPlan, earlier: Sequence[Round], origin: dict[str, object], path: Path, experiment: Experiment
) -> GrownPlan:
    """Return the batches of every round of a run, the last of which draws what the plan adds to the earlier ones."""
    rounds = list(earlier)
    ids = [problem.prompt_id for problem in plan.problems]
    waiting = [pair for batch in plan.rows for pair in batch]
    rows: list[list[tuple[int, int]]] = []
    for one in earlier:
        members = set(one.prompt_ids)
        chosen = [pair for pair in waiting if ids[pair[0]] in members and pair[1] < one.group_size]
        again = _round(plan, one.prompt_ids, one.group_size, chosen, one.batches)
        if again.prompts != one.prompts or sum(one.batches) != len(chosen):
            raise ValueError(
                f"the problems or the tokenizer have changed since {path} was begun: choose another directory (--out), "
                "or remove it to start again"
            )
        if again.answers != one.answers:
            raise ValueError(
                f"the reference answers have changed since {path} was begun: score its completions again "
                f"first (gradstats regrade {path})"
            )
        rows += _cut(chosen, one.batches)
        taken = set(chosen)
        waiting = [pair for pair in waiting if pair not in taken]
    if waiting:
        size = len(plan.rows[0])
        batches = [len(waiting[start : start + size]) for start in range(0, len(waiting), size)]
        rounds.append(_round(plan, ids, plan.section.group_size, waiting, batches))
        rows += _cut(waiting, batches)
    return GrownPlan(rows, rounds, origin if earlier else _origin(plan, rounds[0], experiment))


def write_plan(
    folder: Path, rounds: Sequence[Round], revisions: dict[str, str | None], origin: Mapping[str, object]
) -> None:
    """Record a run's rounds, revisions and number of shards, and the ``run`` and ``settings`` that each states."""
    n_shards = sum(len(one.batches) for one in rounds)
    plan = {"n_shards": n_shards, "revisions": revisions, "rounds": [asdict(one) for one in rounds]}
    write_json(folder / PLAN, {"format": FORMAT, **origin, **plan})


def _origin(plan: SamplingPlan, first: Round, experiment: Experiment) -> dict[str, object]:
    """Return the identifier of a run, which is the same on every machine for the same settings, policy and prompts."""
    settings = settings_digest(experiment)
    return {"run": digest([settings, plan.metadata["policy"], first.prompts, first.batches]), "settings": settings}


def answers_digest(prompt_ids: Sequence[str], answers: Mapping[str, str]) -> str:
    """Digest the reference answers of a round's prompts; None for a prompt that no longer has one."""
    return digest([(name, answers.get(name)) for name in prompt_ids])


def _round(
    plan: SamplingPlan, prompt_ids: list[str], group_size: int, chosen: list[tuple[int, int]], batches: list[int]
) -> Round:
    tokens = {problem.prompt_id: ids for problem, ids in zip(plan.problems, plan.prompt_tokens, strict=True)}
    prompts = [(name, tokens.get(name)) for name in prompt_ids]
    named = [(plan.problems[index].prompt_id, number) for index, number in chosen]
    answers = {problem.prompt_id: problem.answer for problem in plan.problems}
    return Round(prompt_ids, group_size, batches, digest([prompts, named]), answers_digest(prompt_ids, answers))


def _cut(pairs: list[tuple[int, int]], sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
    left = iter(pairs)
    return [list(islice(left, size)) for size in sizes]
