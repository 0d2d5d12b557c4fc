"""Scoring a run's stored completions again: the change is recorded first, then carried out shard by shard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import yaml

from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.growth import answers_digest, read_plan, rounds_of, write_plan
from gradstats.system.files import atomic_path, write_json
from gradstats.system.progress import progress_bar

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
    process that works on the run.

    Args:
        path: the run directory.
        problems: the run's problems, with the reference answers to score against.
        reward: the reward to score with, as in an experiment file.
        progress: show a progress bar.

    Raises:
        FileNotFoundError: when the run holds no rollouts.
        ValueError: when one of the run's prompts is not among the problems.
    """
    from gradstats.rewards.grading import Grader

    shards = sorted((path / "rollouts").glob("*.parquet"))
    if not shards:
        raise FileNotFoundError(f"{path} holds no rollouts yet: run it first")
    by_name = {problem.prompt_id: problem for problem in problems}
    grader = Grader.make(reward, problems)
    tables, counts_of_shard = [], {}
    total = sum(len(read_rollouts(shard)) for shard in shards)
    with progress_bar("regrading", total, shown=progress) as report:
        for shard in shards:
            frame = read_rollouts(shard).frame
            texts = zip(frame["prompt_id"], frame["prompt_text"], strict=True)
            asked = [_problem(by_name, prompt_id, text) for prompt_id, text in texts]
            table = frame[_KEY].copy()
            for text, column in _SCORED.items():
                if text in frame:
                    table[f"old_{column}"] = frame[column]
                    table[column], counts = grader.grade(frame[text].tolist(), asked)
                    counts_of_shard.setdefault(shard.stem, counts)
            tables.append(table)
            report.advance(len(frame))
    folder = path / "regraded"
    number = len(list(folder.glob("rewards-*.parquet")))
    name = f"rewards-{number:05d}.parquet"
    table = pd.concat(tables, ignore_index=True)
    with atomic_path(folder / name) as partial:
        table.to_parquet(partial, index=False)
    answers = {problem.prompt_id: problem.answer for problem in problems}
    change = {
        "table": name,
        "old_reward": read_rollouts(shards[0]).metadata.get("reward"),
        "reward": grader.describe(),
        "n_changed": int(np.sum(table["old_reward"].to_numpy() != table["reward"].to_numpy())),
        "setting": reward,
        "tallies": counts_of_shard,
        "answers": [answers_digest(one.prompt_ids, answers) for one in rounds_of(path / "rollouts")],
    }
    write_json(folder / "pending.json", change)
    finish_regrading(path)


def finish_regrading(path: Path) -> None:
    """Write the rewards of a pending change, if there is one, into every shard of rollouts and measurement."""
    pending = path / "regraded" / "pending.json"
    if not pending.exists():
        return
    change = json.loads(pending.read_text(encoding="utf-8"))
    table = pd.read_parquet(pending.with_name(change["table"]))
    rewards = table.set_index(_KEY)
    for name, counts in change["tallies"].items():
        stored = [path / "rollouts" / f"{name}.parquet", path / "measurement" / name / "rollouts.parquet"]
        for file in stored:
            if file.exists():
                _rewrite(file, rewards, {"reward": change["reward"], "grading": counts})
    folder = path / "rollouts"
    rounds = zip(rounds_of(folder), change["answers"], strict=True)
    write_plan(
        folder, [replace(one, answers=answers) for one, answers in rounds], read_plan(folder).get("revisions", {})
    )
    experiment = yaml.safe_load((path / "experiment.yaml").read_text(encoding="utf-8"))
    experiment["sampling"]["reward"] = change["setting"]
    with atomic_path(path / "experiment.yaml") as partial:
        partial.write_text(yaml.safe_dump(experiment, sort_keys=False, allow_unicode=True), encoding="utf-8")
    done = {key: change[key] for key in ("table", "old_reward", "reward", "n_changed")}
    earlier = [entry for entry in read_regradings(path) if entry["table"] != done["table"]]
    write_json(path / "regraded" / "changes.json", {"changes": [*earlier, done]})
    pending.unlink()


def read_regradings(path: Path) -> list[dict[str, object]]:
    """How a run was scored again so far: the rewards before and after, how many changed, and the table of both."""
    changes = path / "regraded" / "changes.json"
    return json.loads(changes.read_text(encoding="utf-8"))["changes"] if changes.exists() else []


def refuse_half_regraded(path: Path) -> None:
    """Refuse to read a run in which some shards may hold old rewards and some new ones.

    Raises:
        ValueError: when a change is pending.
    """
    if (path / "regraded" / "pending.json").exists():
        raise ValueError(f"scoring {path} again was interrupted: finish it with `gradstats regrade {path}`")


def _problem(by_name: dict[str, Problem], name: str, text: str) -> Problem:
    problem = by_name.get(name)
    if problem is None or problem.prompt != text:
        what = "no longer hold" if problem is None else "have another text for"
        raise ValueError(f"the problems {what} the run's prompt {name!r}: restore them to what was sampled")
    return problem


def _rewrite(file: Path, rewards: pd.DataFrame, metadata: dict[str, object]) -> None:
    rollouts = read_rollouts(file)
    rows = rewards.loc[pd.MultiIndex.from_arrays([rollouts.prompt_id, rollouts.sample_id], names=_KEY)]
    columns = {column: rows[column].to_numpy() for column in _SCORED.values() if column in rollouts.frame}
    Rollouts(rollouts.frame.assign(**columns), rollouts.metadata | metadata).to_parquet(file)
