"""Scoring a run's stored completions again: the change is recorded first, then carried out shard by shard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from gradstats.answers.answer import COMPUTED_WITH
from gradstats.report.saved_results import read_recorded_experiment, write_recorded_experiment
from gradstats.rollouts.table import PENDING_REWARDS, Rollouts, read_rollouts
from gradstats.runs.growth import answers_digest, drawn_shards, read_plan, rounds_of, write_plan
from gradstats.system.files import atomic_path, changed_sentence, file_digest, read_json, write_json
from gradstats.system.progress import progress_bar
from gradstats.system.shards import PLAN, n_planned, read_origin, shard_path

if TYPE_CHECKING:
    from gradstats.prompts import Problem

#: Column of a text that is scored → column of its reward.
_SCORED = {"completion_text": "reward", "greedy_text": "greedy_reward"}
RewardSetting = str | list[str] | dict[str, float] | None
_KEY = ["prompt_id", "sample_id"]


def regrade_shards(path: Path, problems: Sequence[Problem], reward: RewardSetting, progress: bool) -> None:
    """Score every completion of a run again and rewrite its rewards.

    First the old and new rewards are written to ``regraded/rewards-NNNNN.parquet``, then ``regraded/pending.json``
    records that they are to replace those of the shards; from then on an interrupted change is finished by the next
    process that works on the run. Where the last change already says all that this one would, nothing is written: the
    same command, repeated after it was interrupted, leaves what it would have left at once.
    """
    from gradstats.rewards.grading import Grader

    folder = path / "rollouts"
    stored = drawn_shards(folder)
    numbers = stored.finished(n_planned(read_plan(folder), folder / PLAN)) if (folder / PLAN).exists() else []
    if not numbers:
        raise FileNotFoundError(f"{path} holds no rollouts yet: run it first")
    by_name = {problem.prompt_id: problem for problem in problems}
    answers = {name: problem.answer for name, problem in by_name.items()}
    grader = Grader.make(reward, problems)
    tables, counts_of_shard = [], {}
    shards = {stored.path(number).stem: stored.read_one(number) for number in numbers}
    with progress_bar("regrading", sum(map(len, shards.values())), shown=progress) as report:
        for name, shard in shards.items():
            frame = shard.frame
            texts = zip(frame["prompt_id"], frame["prompt_text"], strict=True)
            asked = [_problem(by_name, prompt_id, text) for prompt_id, text in texts]
            table = frame[_KEY].copy()
            for text, column in _SCORED.items():
                if text in frame:
                    table[f"old_{column}"] = frame[column]
                    table[column], counts = grader.grade(frame[text].tolist(), asked)
                    counts_of_shard.setdefault(name, counts)
            tables.append(table)
            report.advance(len(frame))
    table = pd.concat(tables, ignore_index=True)
    change = {
        "old_reward": next(iter(shards.values())).metadata.get("reward"),
        "reward": grader.describe(),
        "n_changed": int(np.sum(table["old_reward"].to_numpy() != table["reward"].to_numpy())),
        "setting": reward,
        "tallies": counts_of_shard,
        "answers": [answers_digest(one.prompt_ids, answers) for one in rounds_of(folder)],
    }
    earlier = read_regradings(path)
    if earlier and _is_in_place(change, path, shards, table):
        return
    # One that was written by a regrading that ended before its record is replaced.
    number = 1 + max((int(re.sub(r"\D", "", str(entry["table"]))) for entry in earlier), default=-1)
    name = f"rewards-{number:05d}.parquet"
    rewards_file = path / "regraded" / name
    with atomic_path(rewards_file) as partial:
        table.to_parquet(partial, index=False)
    change |= {"table": name, "checksum_of_table": file_digest(rewards_file)}
    write_json(path / PENDING_REWARDS, change)
    finish_regrading(path)


def _is_in_place(change: dict[str, Any], path: Path, shards: dict[str, Rollouts], table: pd.DataFrame) -> bool:
    """Return whether a change is that which the run holds: the same rewards, counts, answers and setting."""
    setting = yaml.safe_load((path / "experiment.yaml").read_text(encoding="utf-8"))["sampling"]["reward"]
    return (
        setting == change["setting"]
        and change["answers"] == [one.answers for one in rounds_of(path / "rollouts")]
        and all(table[f"old_{column}"].equals(table[column]) for column in _SCORED.values() if column in table)
        and all(
            shard.metadata.get("reward") == change["reward"]
            and shard.metadata.get("grading") == change["tallies"][name]
            for name, shard in shards.items()
        )
    )


def finish_regrading(path: Path) -> None:
    """Write the rewards of a pending change, if there is one, into every shard of rollouts and measurement."""
    pending = path / PENDING_REWARDS
    if not pending.exists():
        return
    change = read_json(pending)
    folder = path / "rollouts"
    _refuse_other_places(change, folder, pending)
    rewards_file = pending.with_name(change["table"])
    if change["checksum_of_table"] != file_digest(rewards_file):
        raise ValueError(changed_sentence(rewards_file))
    manifest = path / "manifest.json"
    if manifest.exists() and COMPUTED_WITH in (entries := read_json(manifest)):
        # Answers to the old rewards are left out until the analysis is repeated.
        write_json(manifest, entries | {COMPUTED_WITH: entries[COMPUTED_WITH] | {"rewards": None}})
    table = pd.read_parquet(rewards_file)
    rewards = table.set_index(_KEY)
    for name, counts in change["tallies"].items():
        stored = [path / "rollouts" / f"{name}.parquet", path / "measurement" / name / "rollouts.parquet"]
        for file in stored:
            if file.exists():
                _rewrite(file, rewards, {"reward": change["reward"], "grading": counts})
    rounds = zip(rounds_of(folder), change["answers"], strict=True)
    again = [replace(one, answers=answers) for one, answers in rounds]
    write_plan(folder, again, read_plan(folder).get("revisions", {}), read_origin(folder))
    recorded = path / "experiment.yaml"
    read_recorded_experiment(recorded)  # refuses one that has changed
    experiment = yaml.safe_load(recorded.read_text(encoding="utf-8"))
    experiment["sampling"]["reward"] = change["setting"]
    write_recorded_experiment(recorded, yaml.safe_dump(experiment, sort_keys=False, allow_unicode=True))
    done = {key: change[key] for key in ("table", "old_reward", "reward", "n_changed")}
    earlier = [entry for entry in read_regradings(path) if entry["table"] != done["table"]]
    write_json(path / "regraded" / "changes.json", {"changes": [*earlier, done]})
    pending.unlink()


def read_regradings(path: Path) -> list[dict[str, object]]:
    """Return the regradings of a run so far: old and new reward, how many values changed, and the table of both."""
    changes = path / "regraded" / "changes.json"
    return read_json(changes)["changes"] if changes.exists() else []


def _refuse_other_places(change: dict[str, Any], folder: Path, pending: Path) -> None:
    """Refuse a change that names anything but the run's own shards and a table beside it: a file may be forged."""
    shards = {shard_path(folder, number, "").name for number in range(n_planned(read_plan(folder), folder / PLAN))}
    for name in sorted(set(change["tallies"]) - shards):
        raise ValueError(f"{pending} names {name!r}, which is not a shard of the run: restore it from a copy")
    if not re.fullmatch(r"rewards-\d{5,}\.parquet", change["table"], re.ASCII):
        raise ValueError(
            f"{pending} names {change['table']!r}, which is not a table of rewards: restore it from a copy"
        )


def _problem(by_name: dict[str, Problem], name: str, text: str) -> Problem:
    problem = by_name.get(name)
    if problem is None or problem.prompt != text:
        what = "no longer contain" if problem is None else "have a different text for"
        raise ValueError(f"the problems {what} the run's prompt {name!r}: restore the problems that were sampled")
    return problem


def _rewrite(file: Path, rewards: pd.DataFrame, metadata: dict[str, object]) -> None:
    rollouts = read_rollouts(file)
    rows = rewards.loc[pd.MultiIndex.from_arrays([rollouts.prompt_id, rollouts.sample_id], names=_KEY)]
    columns = {column: rows[column].to_numpy() for column in _SCORED.values() if column in rollouts.frame}
    Rollouts(rollouts.frame.assign(**columns), rollouts.metadata | metadata).to_parquet(file, overwrite=True)
