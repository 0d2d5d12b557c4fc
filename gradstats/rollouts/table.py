"""The rollouts table: sampled completions with their rewards; its schema, validation and Parquet file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gradstats.rewards.grading_counts import merge_grading_counts
from gradstats.system.files import atomic_path

_METADATA_KEY = b"gradstats"

#: Column name → Arrow type and whether the column is required.
SCHEMA: dict[str, tuple[pa.DataType, bool]] = {
    "prompt_id": (pa.string(), True),
    "sample_id": (pa.int64(), True),
    "prompt_tokens": (pa.list_(pa.int32()), True),
    "completion_tokens": (pa.list_(pa.int32()), True),
    "completion_mask": (pa.list_(pa.bool_()), False),
    "reward": (pa.float64(), True),
    "token_rewards": (pa.list_(pa.float64()), False),
    "sampler_logprobs": (pa.list_(pa.float32()), False),
    "finish_reason": (pa.string(), False),
    "prompt_text": (pa.string(), False),
    "completion_text": (pa.string(), False),
    "sampler_seed": (pa.int64(), False),
    "token_source": (pa.string(), False),
    "greedy_reward": (pa.float64(), False),
    "greedy_text": (pa.string(), False),
}

_PER_TOKEN = ("completion_mask", "token_rewards", "sampler_logprobs")
_FINISH_REASONS = ("stop", "length")
#: Where a completion's token ids come from: the engine itself; the text of each token; the whole text, re-tokenised;
#: or the whole text, where its new tokens do not decode to it (or are not as many as the engine says it drew).
TOKEN_SOURCES = ("engine", "pieces", "text", "mismatch")


@dataclass(frozen=True)
class Rollouts:
    """Completions of prompts, one row each, with everything that is needed to score them again.

    Numbers are computed from token ids; texts are for people. Construction validates the table.

    Attributes:
        frame: one row per completion, with the columns of :data:`SCHEMA` (optional ones may be absent):
            ``prompt_id`` str; ``sample_id`` int, unique within its prompt; ``prompt_tokens`` and
            ``completion_tokens`` lists of token ids (end-of-sequence included where it was sampled);
            ``completion_mask`` list of bool, False for tokens that the policy did not choose (tool output);
            ``reward`` float; ``token_rewards`` list of float; ``sampler_logprobs`` list of float, log-probabilities
            under the distribution that was sampled, NaN where the sampler did not record them; ``finish_reason``
            "stop" or "length"; ``prompt_text``, ``completion_text``; ``sampler_seed`` int, where each completion has
            its own;
            ``token_source``, one of :data:`TOKEN_SOURCES`, where token ids may have been restored from text;
            ``greedy_reward`` and ``greedy_text``, of the prompt's greedy completion.
        metadata: policy, revision, sampler parameters, seed, versions; travels in the Parquet file.

    Raises:
        ValueError: for a missing column, an empty completion, a mask or per-token list of another length than
            the completion, a repeated (prompt_id, sample_id), or a reward that is not finite.
    """

    frame: pd.DataFrame
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate(self.frame)
        # Rows are addressed by position everywhere: a frame that was filtered before must not keep its old labels.
        object.__setattr__(self, "frame", self.frame.reset_index(drop=True))

    @classmethod
    def from_sequences(
        cls,
        prompt_tokens: Sequence[Sequence[int]],
        completion_tokens: Sequence[Sequence[int]],
        rewards: Sequence[float] | np.ndarray,
        prompt_ids: Sequence[object] | np.ndarray,
        *,
        sample_ids: Sequence[int] | np.ndarray | None = None,
        metadata: Mapping[str, object] | None = None,
        **optional: Sequence[object] | None,
    ) -> Rollouts:
        """Build a table from Python lists, one entry per completion.

        Args:
            prompt_tokens: token ids of the prompt, one list per completion.
            completion_tokens: token ids of the completion; at least one each.
            rewards: the reward of each completion.
            prompt_ids: which completions share a prompt; converted to str.
            sample_ids: number of the completion within its prompt; counted in order of appearance by default.
            metadata: anything worth keeping (policy, sampler parameters, seed).
            **optional: any optional column of :data:`SCHEMA`, one entry per completion.

        Raises:
            ValueError: when lengths differ or the table is invalid (see the class).
            TypeError: for an unknown column name.

        >>> rollouts = Rollouts.from_sequences(
        ...     prompt_tokens=[[5, 6], [5, 6], [7]],
        ...     completion_tokens=[[1, 2, 3], [1, 4], [2]],
        ...     rewards=[1.0, 0.0, 1.0],
        ...     prompt_ids=["2+2", "2+2", "1+1"],
        ...     finish_reason=["stop", "length", "stop"],
        ... )
        >>> rollouts.lengths.tolist(), rollouts.sample_id.tolist(), rollouts.truncated.tolist()
        ([3, 2, 1], [0, 1, 0], [False, True, False])
        """
        unknown = sorted(set(optional) - {name for name, (_, required) in SCHEMA.items() if not required})
        if unknown:
            known = ", ".join(name for name, (_, required) in SCHEMA.items() if not required)
            raise TypeError(f"unknown column {unknown[0]!r}; optional columns are {known}")
        columns: dict[str, Any] = {
            "prompt_id": [str(prompt_id) for prompt_id in prompt_ids],
            "prompt_tokens": [[int(token) for token in tokens] for tokens in prompt_tokens],
            "completion_tokens": [[int(token) for token in tokens] for tokens in completion_tokens],
            "reward": [float(reward) for reward in rewards],
        }
        columns |= {name: list(values) for name, values in optional.items() if values is not None}
        if sample_ids is None:
            columns["sample_id"] = (
                pd.Series(columns["prompt_id"], dtype=object).groupby(columns["prompt_id"]).cumcount().tolist()
            )
        else:
            columns["sample_id"] = [int(sample_id) for sample_id in sample_ids]
        n_rows = len(columns["prompt_id"])
        for name, values in columns.items():
            if len(values) != n_rows:
                raise ValueError(
                    f"{name} has {len(values)} entries but prompt_ids has {n_rows}: give one per completion"
                )
        ordered = {name: columns[name] for name in SCHEMA if name in columns}
        return cls(pd.DataFrame(ordered), dict(metadata or {}))

    @classmethod
    def concatenate(cls, shards: Iterable[Rollouts]) -> Rollouts:
        """Stack tables; where only some of them have ``sampler_logprobs``, those of the others are NaN.

        Args:
            shards: the tables.

        Returns:
            One table, with the metadata of the first and the grading counts of all added up.

        Raises:
            ValueError: when there are none, or they differ in any other column.
        """
        shards = list(shards)
        if not shards:
            raise ValueError("there are no rollouts to concatenate: give at least one table")
        frames = [shard.frame for shard in shards]
        if any("sampler_logprobs" in frame for frame in frames):
            frames = [frame if "sampler_logprobs" in frame else _without_logprobs(frame) for frame in frames]
        for frame in frames:
            if different := sorted(set(frame) ^ set(frames[0])):
                raise ValueError(f"rollouts differ in the column {different[0]!r}: only some of them have it")
        metadata = dict(shards[0].metadata)
        gradings = [shard.metadata["grading"] for shard in shards if "grading" in shard.metadata]
        if gradings:
            metadata["grading"] = merge_grading_counts(gradings)
        return cls(pd.concat(frames, ignore_index=True), metadata)

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def prompt_id(self) -> np.ndarray:
        """The prompt of each completion, (N,) of str."""
        return self.frame["prompt_id"].to_numpy(dtype=object).astype(str)

    @property
    def sample_id(self) -> np.ndarray:
        """The number of each completion within its prompt, (N,) of int."""
        return self.frame["sample_id"].to_numpy(dtype=np.int64)

    @property
    def rewards(self) -> np.ndarray:
        """The reward of each completion, (N,) of float."""
        return self.frame["reward"].to_numpy(dtype=np.float64)

    @property
    def masks(self) -> list[np.ndarray]:
        """For each completion, which of its tokens count, (T_i,) of bool; all where no mask was given."""
        if "completion_mask" in self.frame:
            return [np.asarray(mask, dtype=bool) for mask in self.frame["completion_mask"]]
        return [np.ones(len(tokens), dtype=bool) for tokens in self.frame["completion_tokens"]]

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens that count in each completion, (N,) of int."""
        return np.array([int(mask.sum()) for mask in self.masks], dtype=np.int64)

    @property
    def truncated(self) -> np.ndarray:
        """Whether each completion reached the length cap, (N,) of bool; False where that is not recorded."""
        if "finish_reason" not in self.frame:
            return np.zeros(len(self), dtype=bool)
        return (self.frame["finish_reason"] == "length").to_numpy(dtype=bool)

    def tokens(self, column: str) -> list[np.ndarray]:
        """Return a per-token column (or either column of token ids) as one array per completion.

        Raises:
            KeyError: when there is no such column.
        """
        if column not in self.frame:
            raise KeyError(f"these rollouts have no column {column!r}; they have {', '.join(self.frame)}")
        return [np.asarray(values) for values in self.frame[column]]

    def select(self, index: np.ndarray | Sequence[int] | slice) -> Rollouts:
        """Return the rows at the given positions, in that order."""
        return Rollouts(self.frame.iloc[index].reset_index(drop=True), dict(self.metadata))

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, whole or not at all; the metadata travels in its schema."""
        fields = [pa.field(name, kind) for name, (kind, _) in SCHEMA.items() if name in self.frame]
        packed = json.dumps(self.metadata).encode()
        schema = pa.schema(fields, metadata={_METADATA_KEY: packed})
        table = pa.Table.from_arrays(
            [pa.array(self.frame[item.name].tolist(), type=item.type) for item in fields], schema=schema
        )
        with atomic_path(path) as partial:
            pq.write_table(table, partial, compression="zstd")


def read_rollouts(path: str | os.PathLike[str]) -> Rollouts:
    """Read a rollouts file, or a folder of shards (``*.parquet``, in the order of their names).

    Args:
        path: the file or folder.

    Raises:
        FileNotFoundError: when there is no such file, or no shard in the folder.
        ValueError: when a file is not Parquet, is cut short, or lacks a required column.

    >>> import tempfile
    >>> rollouts = Rollouts.from_sequences([[5]], [[1, 2]], rewards=[1.0], prompt_ids=["a"], metadata={"seed": 0})
    >>> path = Path(tempfile.mkdtemp()) / "rollouts.parquet"
    >>> rollouts.to_parquet(path)
    >>> read_rollouts(path).metadata, read_rollouts(path).rewards.tolist()
    ({'seed': 0}, [1.0])
    """
    path = Path(path)
    if path.is_dir():
        shards = sorted(path.glob("*.parquet"))
        if not shards:
            raise FileNotFoundError(f"the folder {path} holds no rollouts (*.parquet): sample some first")
        return Rollouts.concatenate(read_rollouts(shard) for shard in shards)
    if not path.exists():
        raise FileNotFoundError(f"the rollouts file {path} does not exist")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"the rollouts file {path} cannot be read as Parquet ({error}): write it again") from error
    columns = {name: table.column(name).to_pylist() for name in table.column_names if name in SCHEMA}
    packed = (table.schema.metadata or {}).get(_METADATA_KEY)
    try:
        return Rollouts(pd.DataFrame(columns), json.loads(packed) if packed else {})
    except ValueError as error:
        raise ValueError(f"the rollouts file {path}: {error}") from error


def token_sources(rollouts: Rollouts) -> dict[str, int]:
    """Count completions by the source of their token ids (:data:`TOKEN_SOURCES`); empty where not recorded."""
    if "token_source" not in rollouts.frame:
        return {}
    sources = rollouts.frame["token_source"].tolist()
    return {name: sources.count(name) for name in TOKEN_SOURCES if name in sources}


def retokenised_sentence(rollouts: Rollouts) -> str | None:
    """Return a sentence on completions whose token ids were restored from their text, or None where none were."""
    counts = token_sources(rollouts)
    text, wrong = counts.get("text", 0), counts.get("mismatch", 0)
    if not text + wrong:
        return None
    first = ""
    if wrong:
        row = int(np.flatnonzero((rollouts.frame["token_source"] == "mismatch").to_numpy())[0])
        first = f" (the first: prompt {rollouts.prompt_id[row]}, sample {rollouts.sample_id[row]})"
    return (
        f"the token ids of {text + wrong} of {len(rollouts)} completions were restored by tokenising their text, which "
        f"may differ from what was sampled; {wrong} certainly do{first}, since they do not round-trip: use a sampler "
        "that returns token ids where that matters"
    )


def _validate(frame: pd.DataFrame) -> None:
    for name, (_, required) in SCHEMA.items():
        if required and name not in frame:
            raise ValueError(f"the rollouts have no column {name!r}; they have {', '.join(map(str, frame)) or 'none'}")
    if not len(frame):
        raise ValueError("the rollouts are empty: at least one completion is needed")
    lengths = frame["completion_tokens"].map(len).to_numpy()
    _refuse(frame, lengths == 0, "has no completion tokens: drop empty completions before building the table")
    _refuse(
        frame,
        frame["prompt_tokens"].map(len).to_numpy() == 0,
        "has no prompt tokens: give at least one (a start token)",
    )
    rewards = frame["reward"].to_numpy(dtype=np.float64)
    _refuse(frame, ~np.isfinite(rewards), "has a reward that is not finite: grade it, or drop the row")
    for name in _PER_TOKEN:
        if name in frame:
            _refuse(
                frame,
                frame[name].map(_length).to_numpy() != lengths,
                f"has a {name} of another length than its completion_tokens",
            )
    if "completion_mask" in frame:
        counted = frame["completion_mask"].map(sum).to_numpy()
        _refuse(frame, counted == 0, "has a completion_mask with no True: no token of it counts, drop the row")
    if "finish_reason" in frame:
        known = frame["finish_reason"].isin(_FINISH_REASONS).to_numpy()
        _refuse(frame, ~known, f"has a finish_reason that is none of {', '.join(_FINISH_REASONS)}")
    if "token_source" in frame:
        known = frame["token_source"].isin(TOKEN_SOURCES).to_numpy()
        _refuse(frame, ~known, f"has a token_source that is none of {', '.join(TOKEN_SOURCES)}")
    if "greedy_reward" in frame:
        greedy = frame["greedy_reward"].to_numpy(dtype=np.float64)
        _refuse(frame, ~np.isfinite(greedy), "has a greedy_reward that is not finite: grade it, or drop the column")
    repeated = frame.duplicated(["prompt_id", "sample_id"]).to_numpy()
    _refuse(frame, repeated, "repeats its sample_id: number the completions of a prompt from 0")


def _without_logprobs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with unknown log-probabilities, one NaN per token."""
    return frame.assign(sampler_logprobs=[[float("nan")] * len(tokens) for tokens in frame["completion_tokens"]])


def _length(values: Sized | None) -> int:
    return -1 if values is None else len(values)


def _refuse(frame: pd.DataFrame, wrong: np.ndarray, what: str) -> None:
    """Raise for the first row that is wrong, naming it, with how many more there are."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        more = f" ({int(wrong.sum()) - 1} more rows have the same problem)" if wrong.sum() > 1 else ""
        name = f"prompt_id {frame['prompt_id'].iloc[row]!r}, sample_id {frame['sample_id'].iloc[row]}"
        raise ValueError(f"row {row} ({name}) {what}{more}")
