"""The rollouts table: sampled completions with their rewards; its schema, validation and Parquet file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from gradstats.rollouts.schema import (
    METADATA_KEY,
    SCHEMA,
    TOKEN_COLUMNS,
    TOKEN_SOURCES,
    read_checked,
    refuse_unclear_labels,
    token_ids,
    validate,
    write_checked,
)
from gradstats.system.files import remark_on_missing_checksums
from gradstats.system.lazy_imports import pa, pd
from gradstats.system.outputs import OutputType, claim, differing_entry
from gradstats.system.shards import OF_THE_CALL, ORIGIN, planned_shards, refuse_foreign_shard


def refuse_different_policies(metadata: Iterable[Mapping[str, Any]], what: str) -> None:
    """Refuse to join tables whose recorded policies differ in weights, adapter or tokenizer.

    Tables that record no digest of a part, as those of version 0.1, are not compared in it.
    """
    policies = [entries.get("policy") for entries in metadata]
    digests = [policy.get("digests") or {} for policy in policies if isinstance(policy, Mapping)]
    known = [entries for entries in digests if entries]
    for part in sorted({part for entries in known for part in entries}):
        # Where one has an adapter and another does not, that is a difference as well.
        having = known if part == "adapter" else [entries for entries in known if part in entries]
        values = {str(entries.get(part, "none"))[:12] for entries in having}
        if len(values) > 1:
            raise ValueError(
                f"the {what} come from policies with different {part} (SHA-256 {', '.join(sorted(values))}): their "
                "gradients are of different functions; keep them apart, or join them with allow_policy_mismatch=True"
            )


#: Within a run: new rewards that are still to be written into its shards; then some hold old rewards, some new ones.
PENDING_REWARDS = Path("regraded", "pending.json")


def part_of_run(folder: Path, part: str) -> Path:
    """Return the part of a run directory, "rollouts" or "measurement"; any other folder is returned unchanged."""
    run = folder.parent if folder.name == part else folder
    if (run / PENDING_REWARDS).exists():
        raise ValueError(f"scoring {run} again was interrupted: finish it with `gradstats regrade {run}`")
    inside = folder / part
    return inside if inside.is_dir() else folder


@dataclass(frozen=True)
class Rollouts:
    """Completions of prompts, one row each, with everything that is needed to score them again.

    All numbers are computed from token ids; texts are for human readers. Construction validates the table.

    Attributes:
        frame: one row per completion, with the columns of :data:`SCHEMA` (optional ones may be absent):
            ``prompt_id`` str; ``sample_id`` int, unique within its prompt; ``prompt_tokens`` and
            ``completion_tokens`` lists of token ids (end-of-sequence included where it was sampled);
            ``completion_mask`` list of bool, False for tokens that the policy did not choose (tool output) or that the
            trainer does not learn from: without a True the completion has gradient 0, and its reward counts;
            ``reward`` float; ``token_rewards`` list of float; ``sampler_logprobs`` list of float, log-probabilities
            under the distribution that was sampled, NaN where the sampler did not record them; ``proximal_logprobs``,
            the same under the trainer's policy as the step began; ``finish_reason``
            "stop" or "length"; ``prompt_text``, ``completion_text``; ``sampler_seed`` int, where each completion has
            its own;
            ``token_source``, one of :data:`TOKEN_SOURCES`, where token ids may have been restored from text;
            ``greedy_reward`` and ``greedy_text``, of the prompt's greedy completion. Further columns are your own, for
            estimators of your own (``batch.columns``): they are kept in files, measurements and runs.
        metadata: policy, revision, sampler parameters, seed, versions; travels in the Parquet file.

    Raises:
        ValueError: for a missing column, an empty completion, a mask or per-token list of another length than
            the completion, a repeated (``prompt_id``, ``sample_id``), or a reward that is not finite.
    """

    frame: pd.DataFrame
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate(self.frame)
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
            ValueError: when lengths differ, a label in ``prompt_ids`` is missing or two become the same text, or the
                table is invalid (see the class).
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
        refuse_unclear_labels("prompt_ids", prompt_ids, as_text=True)
        columns: dict[str, Any] = {
            "prompt_id": [str(prompt_id) for prompt_id in prompt_ids],
            "prompt_tokens": token_ids("prompt_tokens", prompt_tokens),
            "completion_tokens": token_ids("completion_tokens", completion_tokens),
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
    def concatenate(cls, shards: Iterable[Rollouts], *, allow_policy_mismatch: bool = False) -> Rollouts:
        """Stack tables; where only some of them have ``sampler_logprobs``, those of the others are NaN.

        Args:
            shards: the tables.
            allow_policy_mismatch: join completions that policies of different digests drew.

        Returns:
            One table, with the metadata of the first and the grading counts of all added up.

        Raises:
            ValueError: when there are none, or they differ in any other column, or in the policy that drew them.
        """
        shards = list(shards)
        if not shards:
            raise ValueError("there are no rollouts to concatenate: give at least one table")
        if not allow_policy_mismatch:
            refuse_different_policies((shard.metadata for shard in shards), "rollouts")
        frames = [shard.frame for shard in shards]
        if any("sampler_logprobs" in frame for frame in frames):
            frames = [frame if "sampler_logprobs" in frame else _without_logprobs(frame) for frame in frames]
        for frame in frames:
            if different := sorted(set(frame) ^ set(frames[0])):
                raise ValueError(f"rollouts differ in the column {different[0]!r}: only some of them have it")
        metadata = {name: value for name, value in shards[0].metadata.items() if name != ORIGIN}
        gradings = [shard.metadata["grading"] for shard in shards if "grading" in shard.metadata]
        if gradings:
            from gradstats.rewards.grading import merge_grading_counts  # reads all rewards, which tables do without

            metadata["grading"] = merge_grading_counts(gradings)
        return cls(pd.concat(frames, ignore_index=True), metadata)

    def __repr__(self) -> str:
        """Return what the table holds, in a line."""
        return f"<Rollouts: {self.summary()}>"

    def summary(self) -> str:
        """Return the numbers of completions and prompts, mean reward and lengths, in words."""
        shortest, longest = (0, 0) if not len(self) else (min(self.lengths), max(self.lengths))
        mean = f"mean reward {self.rewards.mean():.2f}, " if len(self) else ""
        return (
            f"{len(self)} completions of {self.frame['prompt_id'].nunique()} prompts, {mean}"
            f"lengths {shortest}–{longest}"
        )

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
        """For each completion, which of its tokens count, :math:`(T_i,)` of bool; all where no mask was given."""
        if "completion_mask" in self.frame:
            return [np.asarray(mask, dtype=bool) for mask in self.frame["completion_mask"]]
        return [np.ones(len(tokens), dtype=bool) for tokens in self.frame["completion_tokens"]]

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens that count in each completion, (N,) of int."""
        return np.array([int(mask.sum()) for mask in self.masks], dtype=np.int64)

    @property
    def times(self) -> np.ndarray:
        """(n,), number of tokens, prompts included."""
        return self.frame["prompt_tokens"].map(len).to_numpy() + self.frame["completion_tokens"].map(len).to_numpy()

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

    def recorded_logprobs(self, column: str) -> list[np.ndarray] | None:
        """Return the log-probabilities of a column in eight bytes, one array per completion; None without it."""
        return [values.astype(np.float64) for values in self.tokens(column)] if column in self.frame else None

    def select(self, index: np.ndarray | Sequence[int] | slice) -> Rollouts:
        """Return the rows at the given positions, in that order."""
        return Rollouts(self.frame.iloc[index].reset_index(drop=True), dict(self.metadata))

    def to_parquet(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one Parquet file, whole or not at all; metadata, format version and checksum are in its schema.

        Args:
            path: the file; rollouts of the same settings and prompts are replaced.
            overwrite: replace rollouts of other settings as well.

        Raises:
            ValueError: when a column of your own holds what Parquet cannot store.
            FileExistsError: when something else lies there, which is left alone.
        """
        claim_rollouts(path, self.metadata, set(self.prompt_id), overwrite)
        known = {name: _arrow_type(kind) for name, (kind, _) in SCHEMA.items() if name in self.frame}
        own = [name for name in self.frame if name not in SCHEMA]
        columns = {str(name): cast("pd.Series", self.frame[name]) for name in (*known, *own)}
        table = pa.table({name: _arrow(name, column, known.get(name)) for name, column in columns.items()})
        write_checked(table, self.metadata, Path(path))


def read_rollouts(path: str | os.PathLike[str], *, partial: bool = False) -> Rollouts:
    """Read a rollouts file, or a folder of shards (``*.parquet``, in the order of their names), such as a run's.

    Args:
        path: the file, the folder or the run directory.
        partial: read the shards there are where some of those that the run planned are missing.

    Raises:
        FileNotFoundError: when there is no such file, or no shard in the folder.
        ValueError: when a file is not Parquet, is cut short, lacks a required column, has changed since it was written
            (by its checksum), or belongs to another run; when shards are missing; and for a run whose completions are
            being scored again.

    >>> import tempfile
    >>> rollouts = Rollouts.from_sequences([[5]], [[1, 2]], rewards=[1.0], prompt_ids=["a"], metadata={"seed": 0})
    >>> path = Path(tempfile.mkdtemp()) / "rollouts.parquet"
    >>> rollouts.to_parquet(path)
    >>> read_rollouts(path).metadata, read_rollouts(path).rewards.tolist()
    ({'seed': 0}, [1.0])
    """
    path = Path(path)
    if path.is_dir():
        return Rollouts.concatenate(read_rollout_shards(path, partial=partial))
    if not path.exists():
        raise FileNotFoundError(f"the rollouts file {path} does not exist")
    table = read_checked(path, "rollouts")
    if table.lacks_checksum:
        remark_on_missing_checksums()
    try:
        columns = {
            name: token_ids(name, values) if name in TOKEN_COLUMNS else values for name, values in table.columns.items()
        }
        return Rollouts(pd.DataFrame(columns), table.metadata)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the rollouts file {path}: {error}") from error


def _arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a column of :data:`SCHEMA`."""
    inner = pa.type_for_alias(kind.removeprefix("list of "))
    return pa.list_(inner) if kind.startswith("list of ") else inner


def _arrow(name: object, column: pd.Series, kind: pa.DataType | None) -> pa.Array:
    """Return a column as Arrow stores it; of a column of the user's own the type is inferred."""
    try:
        return pa.array(column.tolist(), type=kind)
    except (pa.ArrowException, OverflowError) as error:
        if kind is not None:
            raise
        raise ValueError(
            f"the column {name!r} of the rollouts cannot be stored ({' '.join(str(error).split())}): give one number, "
            "string or boolean per completion, or one list of numbers, or drop the column"
        ) from error


def read_rollout_shards(path: Path, *, partial: bool = False) -> Iterator[Rollouts]:
    """Yield the shards of a folder or run one by one: those that its plan names, or all where it has none."""
    folder = part_of_run(path, "rollouts")
    planned = planned_shards(folder, ".parquet", partial=partial)
    shards = sorted(folder.glob("*.parquet")) if planned is None else planned.paths
    if not shards:
        raise FileNotFoundError(f"the folder {folder} holds no rollouts (*.parquet): sample some first")
    for shard in shards:
        rollouts = read_rollouts(shard)
        refuse_foreign_shard(rollouts.metadata, shard, planned, partial=partial)
        yield rollouts


def claim_rollouts(
    path: str | os.PathLike[str], metadata: Mapping[str, object], prompt_ids: Collection[str], overwrite: bool
) -> None:
    """Refuse to write rollouts where something else lies, or rollouts of other settings or prompts."""

    def difference() -> str | None:
        try:
            there = read_rollouts(path)
        except ValueError as error:
            return f"damage ({error})"
        other = None if set(there.prompt_id) == set(prompt_ids) else "other prompts"
        return differing_entry(there.metadata, metadata, OF_THE_CALL) or other

    claim(path, ROLLOUTS_FILE, overwrite=overwrite, difference=difference)


def _is_rollouts_file(path: Path) -> bool:
    """Return whether a file is a table of rollouts that this program wrote."""
    import pyarrow.parquet as pq

    try:
        return path.is_file() and METADATA_KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return False


ROLLOUTS_FILE = OutputType("a rollouts file", _is_rollouts_file)


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


def _without_logprobs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with unknown log-probabilities, one NaN per token."""
    return frame.assign(sampler_logprobs=[[float("nan")] * len(tokens) for tokens in frame["completion_tokens"]])
