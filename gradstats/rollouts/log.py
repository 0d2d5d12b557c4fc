"""A trainer's log: completions with a prompt and a reward each, from any table, without policy and tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.config.options import counted
from gradstats.rollouts.dump_groups import GROUP_COLUMNS, number_groups
from gradstats.rollouts.schema import LARGEST_REWARD, MOST_LOGPROB
from gradstats.system.files import read_csv, read_json_lines
from gradstats.system.lazy_imports import pa, pd
from gradstats.system.progress import progress_bar

#: Part of a log → the names of its column in the tables of trainers, the surer first.
COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt_id", "problem_id", "question_id", "prompt", "input", "question", "problem", *GROUP_COLUMNS),
    "reward": ("reward", "score", "rewards", "total_reward"),
    "step": ("step", "global_step", "training_step"),
    "sample": ("sample_id",),
    "length": (
        *("length", "completion_length", "response_length", "num_tokens", "n_tokens"),
        *("completion_tokens", "completion_ids", "response_ids", "output_ids", "responses"),
        *("completion", "output", "response", "completion_text"),
    ),
    "mask": ("completion_mask", "response_mask"),
    "end": ("finish_reason", "truncated", "is_truncated"),
    "sampler": ("sampler_logprobs", "rollout_log_probs", "sampling_per_token_logps", "sampling_logprobs"),
    "trainer": ("proximal_logprobs", "old_log_probs", "old_per_token_logps", "trainer_logprobs"),
    "entropy": ("entropy", "entropies"),
    "sum_pi_squared": ("sum_pi_squared",),
    "proxy_logit": ("proxy_logit",),
    "proxy_surprisal": ("proxy_surprisal",),
    "proxy_entropy": ("proxy_entropy",),
    "advantage": ("advantage",),
}
#: The greatest weight of truncated importance sampling (TIS), and the band of token ratios that IcePop keeps.
CAP, BAND = 2.0, (0.5, 5.0)
_ENDINGS = (".parquet", ".jsonl", ".csv", ".tsv")
# Rows that are in memory as Arrow at a time: of numbers and texts, and of lists of tokens.
_ROWS, _ROWS_OF_LISTS = 2**16, 2**10
# Beyond it numbers of steps have no neighbours as floats.
_MOST_STEPS = 2**53
# Bits that rows repeat by which they do not by chance.
_CHANCE_BITS = 30.0
# Longer names of prompts, as their texts, are kept as digests.
_LONGEST_NAME = 64
#: Letters of a prompt by which it is named.
_LONGEST_SHOWN = 24


@dataclass(frozen=True, eq=False, repr=False)
class Log:
    """The completions of a log; :func:`read_log` reads one.

    Attributes:
        frame: a row per completion: ``step``, ``prompt`` and ``group`` (numbers from 0), ``reward``; where known
            ``length``, ``truncated``, ``advantage``, ``entropy`` and ``sum_pi_squared`` (means over its tokens),
            ``proxy_surprisal``, ``proxy_entropy`` and ``proxy_logit`` (the sums of −log π, of entropies and of
            1 − 2π + Σπ², by the trainer's log-probabilities, or else the sampler's); with
            log-probabilities of sampler and trainer ``log_ratio``, the sum of log π_trainer/π_sampler (NaN where tokens
            are unknown), ``n_ratios`` (tokens with both), ``abs_gap`` (the sum of absolute values), ``n_capped``
            (ratios above :data:`CAP`) and ``n_outside`` (ratios outside :data:`BAND`).
        name: of what was read.
        unit: of lengths, "tokens" or "letters".
        notes: what was assumed and left out, one sentence each.
        prompts: the name of each number of ``prompt``, a long text by its beginning; empty where they have none.
        digests: the same names, long ones as digests, by which prompts of elsewhere are found.
    """

    frame: pd.DataFrame
    name: str
    unit: str = "tokens"
    notes: tuple[str, ...] = ()
    prompts: Sequence[str] = ()
    digests: Sequence[str] = ()

    def __repr__(self) -> str:
        """Return what the log holds, in a line."""
        return f"<Log: {self.summary()}>"

    def summary(self) -> str:
        """Return the numbers of steps, prompts, groups and completions, in words."""
        steps, prompts, groups = map(self.count, ("step", "prompt", "group"))
        over = f" over {steps:,} steps" if steps > 1 else ""
        n = len(self.frame)
        return f"{counted(n, 'completion')} of {counted(prompts, 'prompt')} in {counted(groups, 'group')}{over}"

    def column(self, name: str) -> Float[np.ndarray, " n"]:
        """Return a column as numbers."""
        return self.frame[name].to_numpy(dtype=np.float64)

    def labels(self, name: str) -> Int[np.ndarray, " n"]:
        """Return ``step``, ``prompt`` or ``group`` of each completion."""
        return self.frame[name].to_numpy(dtype=np.int64)

    def prompt_name(self, number: int) -> str:
        """Return the name of a prompt, or its number where prompts have no names."""
        return self.prompts[number] if self.prompts else f"prompt {number + 1}"

    def count(self, name: str) -> int:
        """Return the number of steps, prompts or groups."""
        return len(np.unique(self.labels(name)))

    def numbers_of(self, prompts: Sequence[str]) -> Int[np.ndarray, " m"]:
        """Return the numbers of prompts by their names; −1 for one that the log does not have."""
        known = {name: number for number, name in enumerate(self.digests)}
        return np.array([known.get(_key(name), -1) for name in prompts], dtype=np.int64)

    @property
    def group_size(self) -> int:
        """The most common number of completions of a group; of several the largest."""
        counts = np.bincount(np.bincount(self.labels("group")))
        return int(np.flatnonzero(counts == counts.max())[-1])


def read_log(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    prompt: str | None = None,
    reward: str | Sequence[str] | Mapping[str, float] | None = None,
    length: str | None = None,
    group_size: int | None = None,
    max_completion_length: int | None = None,
    progress: bool = False,
) -> Log:
    """Read what a trainer logged of its completions, for questions that need no gradient.

    TRL's ``completions_*.parquet``, verl's JSONL, rollouts and runs of gradstats, or any CSV, TSV, JSON Lines or
    Parquet with the name of a prompt and a reward in each row. Columns are found by the names that trainers give
    (:data:`COLUMNS`). A group is the completions drawn together for one prompt in one step, as
    :func:`gradstats.rollouts.read_trl_completions` tells them apart. Nothing is tokenised: without tokens or their
    number lengths are those of texts, in letters.

    Args:
        paths: files, or folders of them; several steps are a series.
        prompt: the column that names the prompt.
        reward: the column of the reward, or several with the trainer's weights, as in ``"format=0.5"``; without a
            column of a usual name the only column of numbers that has no other meaning.
        length: the column of the number of tokens, of the tokens, or of the text.
        group_size: completions of a prompt that were drawn together, where prompts occur more than once in a step; a
            log without names of prompts is cut into such groups in the order of its rows.
        max_completion_length: the trainer's limit, at which completions count as cut off where the log does not say.
        progress: show a progress bar over the files.

    Returns:
        The log.

    Raises:
        FileNotFoundError: for a path where nothing lies, or a folder without tables.
        ValueError: for a file that cannot be read, a column that is missing or holds something else, names of prompts
            that are missing, rows that stand there twice, or fewer than two completions with a reward.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.csv"
        >>> pd.DataFrame({"prompt_id": ["a", "a", "b", "b"], "reward": [1, 0, 1, 1]}).to_csv(path)
        >>> read_log(path)
        <Log: 4 completions of 2 prompts in 2 groups>
    """
    if group_size is not None and group_size < 2:
        raise ValueError(f"group_size={group_size} must be at least 2: the trainer's completions for a prompt")
    weights = _weights_of(reward)
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files = [file for path in given for file in _files(Path(path))]
    if not files:
        raise ValueError("paths is empty: give at least one file of a log")
    repeated = next(
        (file for at, file in enumerate(files) if file.resolve() in {one.resolve() for one in files[:at]}), None
    )
    if repeated is not None:
        raise ValueError(f"{repeated} is given twice: give each file once")
    reader = _Reader({"prompt": prompt, "length": length}, weights, group_size is not None, max_completion_length)
    with progress_bar("reading", len(files), shown=progress) as bar:
        for number, file in enumerate(files):
            reader.step_of_file = _step_in_name(file, number) if len(files) > 1 else 0
            for table in _tables(file, reader):
                reader.add(table, file)
            bar.advance()
    return reader.log(
        ", ".join(Path(path).name or str(path) for path in given[:3]) + ", …" * (len(given) > 3), group_size
    )


def _weights_of(reward: str | Sequence[str] | Mapping[str, float] | None) -> dict[str, float]:
    if reward is None or isinstance(reward, Mapping):
        return dict(reward or {})
    weights: dict[str, float] = {}
    for word in [reward] if isinstance(reward, str) else reward:
        name, equals, weight = word.rpartition("=")
        try:
            weights[name if equals else word] = float(weight) if equals else 1.0
        except ValueError:
            raise ValueError(f"reward {word!r} has a weight that is not a number: write it as NAME=0.5") from None
    return weights


def _files(path: Path) -> list[Path]:
    """Return the files of a path, those of a folder in the order of their numbers; of a run those of its rollouts."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: give the files of a log ({', '.join(_ENDINGS)}) or their folder"
        )
    if not path.is_dir():
        return [path]
    inner = next((path / name for name in ("rollouts", "completions") if (path / name).is_dir()), path)
    for ending in _ENDINGS:
        if found := sorted(inner.glob(f"*{ending}"), key=lambda file: (len(file.name), file.name)):
            return found
    raise FileNotFoundError(f"the folder {inner} holds no table ({', '.join(_ENDINGS)}): name the files of the log")


def _step_in_name(file: Path, number: int) -> int:
    """Return the last number in the name of a file, as trainers name the files of steps, or the number of the file.

    The shards of a run of gradstats are of one step: that of its folder, as the monitor names it, or 0.
    """
    if re.fullmatch(r"shard-\d+", file.stem):
        return int(file.parent.parent.name[5:]) if re.fullmatch(r"step-\d+", file.parent.parent.name) else 0
    found = re.findall(r"\d+", file.stem)
    return int(found[-1]) if found else number


def _tables(file: Path, reader: _Reader) -> Iterator[pa.Table]:
    """Yield the rows of a file, some at a time, with the columns that are read."""
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(file) as opened:
                reader.choose(opened.schema_arrow.names, file)
                wanted = [
                    name for name in opened.schema_arrow.names if name in reader.wanted(opened.schema_arrow.names)
                ]
                lists = any(pa.types.is_nested(opened.schema_arrow.field(name).type) for name in wanted)
                for batch in opened.iter_batches(_ROWS_OF_LISTS if lists else _ROWS, columns=wanted):
                    yield pa.Table.from_batches([batch])
        elif file.suffix in (".jsonl", ".json"):
            lines = read_json_lines(file)
            while rows := list(islice(lines, 4 * _ROWS_OF_LISTS)):
                names = list(dict.fromkeys(name for _, row in rows for name in row))
                reader.choose(names, file)
                wanted = [name for name in names if name in reader.wanted(names)]
                yield pa.table({name: _json_column(name, rows, file) for name in wanted})
        else:
            frame = read_csv(file, separator="\t" if file.suffix == ".tsv" else ",")
            reader.choose(list(map(str, frame)), file)
            wanted = [name for name in map(str, frame) if name in reader.wanted(list(map(str, frame)))]
            yield pa.table({name: pa.array(frame[name], from_pandas=True) for name in wanted})
    except (pa.ArrowException, OSError, pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{file} cannot be read as a table ({said}): copy it again from the trainer") from error


def _json_column(name: str, rows: Sequence[tuple[int, Mapping[str, object]]], file: Path) -> pa.Array:
    values = [row.get(name) for _, row in rows]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):  # of several types
        try:
            return pa.array([None if one is None else float(one) for one in values], type=pa.float64())  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            return pa.array([one if one is None or isinstance(one, str) else json.dumps(one) for one in values])


@dataclass
class _Reader:
    """Reduces tables to one row of numbers per completion, whatever the lists of tokens that they hold."""

    named: dict[str, str | None]  # part → the column that the caller names
    weights: dict[str, float]  # of the columns of rewards
    by_order: bool  # whether groups may be found by the order of rows
    cap: int | None
    step_of_file: int = 0
    chosen: dict[str, str] = field(default_factory=dict)  # part → its column in the present file
    unit: str = "tokens"
    notes: list[str] = field(default_factory=list)
    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    n_rows: int = 0
    names: dict[str, dict[str, int]] = field(default_factory=dict)  # part → name → its number
    prompts: list[str] = field(default_factory=list)  # by their numbers, as they are shown

    def choose(self, there: Sequence[str], file: Path) -> None:
        """Choose the columns of a file."""
        has = f"(it has {', '.join(there)})"
        found: dict[str, str] = {}
        for part, usual in COLUMNS.items():
            asked = self.named.get(part)
            if asked is not None and asked not in there:
                raise ValueError(f"{file} has no column {asked!r} for the {part} {has}")
            name = asked or next((name for name in usual if name in there), None)
            if name is not None:
                found[part] = name
        if "prompt" not in found and not self.by_order:
            raise ValueError(
                f"{file} has no column that names prompts {has}: name it with prompt, or give group_size where the "
                "rows stand in the order of groups"
            )
        if missing := [name for name in self.weights if name not in there]:
            raise ValueError(f"{file} has no column {missing[0]!r} for the reward {has}")
        if self.parts and set(found) != set(self.chosen):
            other = sorted(set(found) ^ set(self.chosen))[0]
            raise ValueError(f"only some files have a column for the {other}, and {file} differs: read them apart")
        self.chosen = found

    def wanted(self, there: Sequence[str]) -> set[str]:
        """Return the columns to be read, among them any that may be the reward."""
        known = {*self.chosen.values(), *self.weights, *GROUP_COLUMNS}
        if "reward" in self.chosen or self.weights:
            return known
        usual = {name for names in COLUMNS.values() for name in names}
        return known | {name for name in there if name not in usual}

    def add(self, table: pa.Table, file: Path) -> None:
        """Reduce a table."""
        of_part = {part: table.column(name) for part, name in self.chosen.items() if name in table.column_names}
        where = _Place(file, self.n_rows)
        n = table.num_rows
        rows: dict[str, np.ndarray] = {"reward": self._rewards(table, where)}
        for part in ("prompt", *GROUP_COLUMNS):
            column = of_part.get(part) if part == "prompt" else table[part] if part in table.column_names else None
            if column is not None and not (part != "prompt" and self.chosen.get("prompt") == part):
                shown = self.prompts if part == "prompt" else []
                rows[part] = _codes(column, self.names.setdefault(part, {}), part, where, shown)
        rows["step"] = np.full(n, self.step_of_file, dtype=np.int64)
        if "step" in of_part:
            steps = _numbers(of_part["step"], "step", where)
            if (odd := ~(np.abs(steps) < _MOST_STEPS) | (steps != np.round(steps))).any():
                raise ValueError(f"{where.row(odd)} has the step {steps[odd][0]:g}, which is not the number of a step")
            rows["step"] = steps.astype(np.int64)
        for part in ("sample", "advantage"):
            if part in of_part:
                rows[part] = _numbers(of_part[part], part, where)
        rows |= self._lengths(of_part, where)
        if "length" in rows and (odd := rows["length"] < 0).any():
            raise ValueError(
                f"{where.row(odd)} has the length {rows['length'][odd][0]:g}, which is below 0: name another column "
                "with length"
            )

        def flat(part: str) -> tuple[Float[np.ndarray, " tokens"], Int[np.ndarray, " n"]]:
            return _flat(of_part[part], self.chosen[part], where)

        marked, sizes_of_mask = flat("mask") if "mask" in of_part else (np.zeros(0), None)

        def mask_of(sizes: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " tokens"]:
            same = sizes_of_mask is not None and np.array_equal(sizes, sizes_of_mask)
            return marked > 0 if same else np.ones(int(sizes.sum()), dtype=bool)

        for part in ("entropy", "sum_pi_squared"):
            if part in of_part and _is_list(of_part[part]):
                values, sizes = flat(part)
                kept = mask_of(sizes) & np.isfinite(values)
                owner = np.repeat(np.arange(n), sizes)[kept]
                sums, counts = (np.bincount(owner, one, n) for one in (values[kept], None))
                rows[part] = np.divide(sums, counts, out=np.full(n, np.nan), where=counts > 0)
            elif part in of_part:
                rows[part] = _numbers(of_part[part], part, where)
        rows |= _proxies(of_part, flat, mask_of)
        for part in ("proxy_logit", "proxy_surprisal", "proxy_entropy"):
            if part in of_part:
                rows[part] = _numbers(of_part[part], part, where)
        if {"sampler", "trainer"} <= set(of_part):
            drawn, sizes = flat("sampler")
            scored, others = flat("trainer")
            if (odd := sizes != others).any():
                raise ValueError(
                    f"{where.row(odd)} has {self.chosen['sampler']} and {self.chosen['trainer']} of different lengths"
                )
            for part, logs in (("sampler", drawn), ("trainer", scored)):
                if (odd := logs > MOST_LOGPROB).any():
                    row = np.repeat(np.arange(n), sizes)[odd]
                    raise ValueError(
                        f"{where.row(np.isin(np.arange(n), row))} has a {self.chosen[part]} above 0: give natural "
                        "log-probabilities"
                    )
            rows |= _ratios(scored - drawn, mask_of(sizes), np.repeat(np.arange(n), sizes), n)
        self.parts.append(rows)
        self.n_rows += n

    def _rewards(self, table: pa.Table, where: _Place) -> Float[np.ndarray, " n"]:
        if not self.weights and "reward" not in self.chosen:
            numeric = [
                str(name)
                for name in table.column_names
                if name not in self.chosen.values() and name not in GROUP_COLUMNS and _is_number(table.column(name))
            ]
            if len(numeric) != 1:
                raise ValueError(
                    f"{where.file} does not have exactly one column of numbers that may be the reward "
                    f"({', '.join(numeric) or 'none'}): name it with reward"
                )
            self.weights = {numeric[0]: 1.0}
        weights = self.weights or {self.chosen["reward"]: 1.0}
        values = np.array([_numbers(table.column(name), name, where) for name in weights])
        total = np.nansum(values * np.array(list(weights.values()))[:, None], axis=0)
        if (odd := np.isfinite(total) & (np.abs(total) > LARGEST_REWARD)).any():
            raise ValueError(
                f"{where.row(odd)} has the reward {total[odd][0]:g}, beyond ±{LARGEST_REWARD:g}: scale the rewards, or "
                "drop the row"
            )
        return np.where(np.isnan(values).all(axis=0), np.nan, total)

    def _lengths(self, of_part: Mapping[str, pa.ChunkedArray], where: _Place) -> dict[str, np.ndarray]:
        """Return lengths, and which completions were cut off, as far as the log says."""
        found: dict[str, np.ndarray] = {}
        listed = [part for part in ("sampler", "trainer") if part in of_part and _is_list(of_part[part])]
        if "mask" in of_part:
            values, sizes = _flat(of_part["mask"], self.chosen["mask"], where)
            found["length"] = np.bincount(np.repeat(np.arange(len(sizes)), sizes), values, len(sizes))
        elif listed and not _counts_tokens(of_part.get("length")):
            found["length"] = _flat_sizes(of_part[listed[0]])
        elif "length" in of_part:
            found["length"], in_letters = _lengths_of(of_part["length"], self.chosen["length"], where)
            self.unit = "letters" if in_letters else "tokens"
        if "end" in of_part:
            end = of_part["end"]
            if pa.types.is_string(end.type) or pa.types.is_large_string(end.type):
                cut = [one if one is None else one in ("length", "True", "true") for one in end.to_pylist()]
                found["truncated"] = np.array(cut, dtype=float)
            else:
                found["truncated"] = _numbers(end, self.chosen["end"], where)
                if (odd := ~np.isin(found["truncated"], (0.0, 1.0)) & ~np.isnan(found["truncated"])).any():
                    raise ValueError(
                        f"{where.row(odd)} has {self.chosen['end']}={found['truncated'][odd][0]:g}: write true or false"
                    )
        elif self.cap is not None and self.unit == "tokens" and "length" in found:
            found["truncated"] = (found["length"] >= self.cap).astype(float)
        return found

    def log(self, name: str, group_size: int | None) -> Log:
        """Return the log."""
        columns = {key: np.concatenate([part[key] for part in self.parts]) for key in (self.parts or [{}])[0]}
        frame, notes = pd.DataFrame(columns), self.notes
        if len(frame) and not np.isfinite(columns["reward"]).all():
            kept = np.isfinite(columns["reward"])
            notes.append(f"{int((~kept).sum()):,} of {len(kept):,} completions have no finite reward and are left out")
            frame = frame.loc[kept].reset_index(drop=True)
        if len(frame) < 2:
            raise ValueError(f"{name} holds {counted(len(frame), 'completion')} with a reward: at least two are needed")
        _refuse_repeated(frame, name)
        if "sample" in frame and "prompt" in frame:
            repeated = frame.duplicated(["step", "prompt", "sample"]).to_numpy()
            if repeated.any():
                raise ValueError(
                    f"{name} holds {int(repeated.sum()):,} completions twice, with the same step, prompt and sample_id"
                    ": give each file once"
                )
        if "prompt" not in frame:
            frame["prompt"] = _in_order(frame["step"].to_numpy(), group_size or 2)
            notes.append(f"prompts have no names: rows are cut into groups of {group_size} in their order")
            group = frame["prompt"].to_numpy()
        else:
            group, said = _groups(frame, group_size)
            notes += said
        frame["group"] = np.unique(group, return_inverse=True)[1]
        sizes = np.bincount(np.bincount(frame["group"]))
        if np.count_nonzero(sizes) > 1:
            usual = int(sizes.argmax())
            span = f"{np.flatnonzero(sizes)[0]} to {len(sizes) - 1}"
            notes.append(
                f"groups have {span} completions, {usual} in {sizes[usual] / sizes.sum():.0%} of them: smaller ones "
                "are left out of what is said of larger groups"
            )
        if self.unit == "letters":
            notes.append("the log holds no tokens: lengths are those of texts, in letters")
        if "length" in frame and (n_without := int(np.isnan(frame["length"].to_numpy(dtype=float)).sum())):
            notes.append(
                f"{counted(n_without, 'completion')} of {len(frame):,} without a length: none of their tokens count"
            )
        if self.chosen.get("prompt") in GROUP_COLUMNS:
            notes.append(f"prompts are named by {self.chosen['prompt']}, so that every group counts as another prompt")
        if "truncated" in frame and bool(frame["truncated"].isna().to_numpy().any()):
            notes.append("not every completion says how it ended: nothing is said of those cut off")
            frame = frame.drop(columns="truncated")
        kept = [one for one in frame if one not in ("sample", *GROUP_COLUMNS)]
        digests = tuple(self.names.get("prompt", ()))
        return Log(pd.DataFrame(frame[kept]), name, self.unit, tuple(notes), self.prompts, digests)


@dataclass(frozen=True)
class _Place:
    """Where rows stand, for messages."""

    file: Path
    first: int

    def row(self, wrong: Bool[np.ndarray, " n"]) -> str:
        """Name the first row that is wrong."""
        return f"row {self.first + int(np.flatnonzero(wrong)[0]) + 1} of {self.file}"


def _is_list(column: pa.ChunkedArray) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(kind(column.type) for kind in kinds)


def _is_number(column: pa.ChunkedArray) -> bool:
    return pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)


def _numbers(column: pa.ChunkedArray, name: str, where: _Place) -> Float[np.ndarray, " n"]:
    """Return a column of numbers, or of their texts; NaN where one is missing."""
    try:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        return column.cast(pa.float64()).to_numpy().astype(np.float64)
    except pa.ArrowException:
        for row, value in enumerate(column.to_pylist()):
            try:
                float(value if value is not None else "nan")
            except (TypeError, ValueError):
                raise ValueError(
                    f"row {where.first + row + 1} of {where.file} has {name}={str(value)[:60]!r}, which is not a number"
                    ": name another column"
                ) from None
        return np.array([np.nan if one is None else float(one) for one in column.to_pylist()])


def _flat(
    column: pa.ChunkedArray, name: str, where: _Place
) -> tuple[Float[np.ndarray, " tokens"], Int[np.ndarray, " n"]]:
    """Return the numbers of a column of lists one after another, and how many each row has."""
    import pyarrow.compute as pc

    if not _is_list(column):
        return _numbers(column, name, where), np.ones(len(column), dtype=np.int64)
    sizes = pc.fill_null(pc.call_function("list_value_length", [column]), 0).to_numpy().astype(np.int64)
    values = pc.call_function("list_flatten", [column])
    values = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    try:
        return values.cast(pa.float64()).to_numpy().astype(np.float64), sizes
    except pa.ArrowException as error:
        raise ValueError(
            f"{where.file} has a list of {name} that holds something else than numbers ({error}): leave the column out"
        ) from None


def _lengths_of(column: pa.ChunkedArray, name: str, where: _Place) -> tuple[Float[np.ndarray, " n"], bool]:
    """Return lengths from numbers, lists of tokens, texts or messages, and whether they are in letters."""
    import pyarrow.compute as pc

    if _is_number(column):
        return _numbers(column, name, where), False
    if _counts_tokens(column):
        return _flat_sizes(column), False
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.fill_null(pc.call_function("utf8_length", [column]), 0).to_numpy().astype(np.float64), True
    if _is_list(column) and pa.types.is_string(_field_type(column.type.value_type, "content")):
        texts = pc.call_function(
            "struct_field", [pc.call_function("list_flatten", [column])], pc.StructFieldOptions("content")
        )
        letters = pc.fill_null(pc.call_function("utf8_length", [texts]), 0).to_numpy().astype(np.float64)
        sizes = _flat_sizes(column).astype(np.int64)
        return np.bincount(np.repeat(np.arange(len(sizes)), sizes), letters, len(sizes)), True
    said = [[message.get("content") or "" for message in turns or ()] for turns in column.to_pylist()]
    return np.array([float(sum(map(len, map(str, texts)))) for texts in said]), True


def _field_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type of a field of a structure; that of nothing where there is no such field."""
    known = pa.types.is_struct(kind) and kind.get_field_index(name) >= 0
    return kind.field(name).type if known else pa.null()


def _counts_tokens(column: pa.ChunkedArray | None) -> bool:
    """Whether a column holds numbers or lists of tokens."""
    return column is not None and (
        _is_number(column) or (_is_list(column) and not pa.types.is_struct(column.type.value_type))
    )


def _flat_sizes(column: pa.ChunkedArray) -> Float[np.ndarray, " n"]:
    import pyarrow.compute as pc

    return pc.fill_null(pc.call_function("list_value_length", [column]), 0).to_numpy().astype(np.float64)


def _codes(
    column: pa.ChunkedArray, known: dict[str, int], part: str, where: _Place, shown: list[str]
) -> Int[np.ndarray, " n"]:
    """Return the number of each name; names are numbered in order of appearance, and new ones added to those shown."""
    nested = pa.types.is_nested(column.type)
    if nested:
        written, last = [], object()
        for one in column.to_pylist():
            if one != last:  # the completions of a prompt follow one another
                text, last = json.dumps(one, sort_keys=True, default=str), one
            written.append(text)
        texts = pa.chunked_array([pa.array(written, type=pa.string())])
    else:
        texts = column.cast(pa.string())
    missing = column.is_null(nan_is_null=True).to_numpy()
    if missing.any():
        raise ValueError(
            f"{where.row(missing)} has no {part} ({int(missing.sum()):,} rows lack it): name that of each completion"
        )
    encoded = texts.combine_chunks().dictionary_encode()
    numbers = []
    for one in encoded.dictionary.to_pylist():
        number = known.setdefault(_key(one), len(known))
        numbers.append(number)
        if number == len(shown):
            words = " ".join((_last_text(one) if nested else one).split())
            shown.append(words if len(words) <= _LONGEST_SHOWN else f"{words[:_LONGEST_SHOWN]}…")
    return np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]


def _last_text(written: str) -> str:
    """Return the text of the last of some messages."""
    last = (json.loads(written) or [""])[-1] if written[:1] == "[" else written
    return str(last.get("content", written)) if isinstance(last, dict) else str(last)


def _key(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _ratios(
    gap: Float[np.ndarray, " tokens"], counted: Bool[np.ndarray, " tokens"], owner: Int[np.ndarray, " tokens"], n: int
) -> dict[str, np.ndarray]:
    """Sum up log π_trainer/π_sampler over the counted tokens of each completion.

    Servers leave out the token that ended a completion: one token may be unknown, more leave the whole ratio unknown.
    """
    known = counted & np.isfinite(gap)
    unknown = np.bincount(owner[counted & ~known], minlength=n)
    logs, at = gap[known], owner[known]
    n_ratios = np.bincount(at, minlength=n)
    total = np.bincount(at, logs, n)
    outside = (logs < np.log(BAND[0])) | (logs > np.log(BAND[1]))
    return {
        "log_ratio": np.where((unknown > 1) | (n_ratios == 0), np.nan, total),
        "n_ratios": n_ratios.astype(np.float64),
        "abs_gap": np.bincount(at, np.abs(logs), n),
        "n_capped": np.bincount(at, logs > np.log(CAP), n),
        "n_outside": np.bincount(at, outside, n),
    }


def _proxies(
    of_part: Mapping[str, pa.ChunkedArray],
    flat: Callable[[str], tuple[Float[np.ndarray, " tokens"], Int[np.ndarray, " n"]]],
    mask_of: Callable[[Int[np.ndarray, " n"]], Bool[np.ndarray, " tokens"]],
) -> dict[str, np.ndarray]:
    """Return the sums over counted tokens that grow with a completion's squared gradient, as far as tokens are known.

    They are those of the trainer's log-probabilities, or else of the sampler's; NaN where more than one is unknown.
    """
    found: dict[str, np.ndarray] = {}
    listed = [part for part, column in of_part.items() if _is_list(column)]

    def add(name: str, values: Float[np.ndarray, " tokens"], sizes: Int[np.ndarray, " n"]) -> None:
        owner, counted = np.repeat(np.arange(len(sizes)), sizes), mask_of(sizes)
        known = counted & np.isfinite(values)
        unknown = np.bincount(owner[counted & ~known], minlength=len(sizes))
        found[name] = np.where(unknown > 1, np.nan, np.bincount(owner[known], values[known], len(sizes)))

    logs = next((part for part in ("trainer", "sampler") if part in listed), "")
    if logs:
        logprobs, sizes = flat(logs)
        add("proxy_surprisal", -logprobs, sizes)
        if "sum_pi_squared" in listed:
            squares, others = flat("sum_pi_squared")
            if np.array_equal(sizes, others):
                add("proxy_logit", 1.0 - 2.0 * np.exp(logprobs) + squares, sizes)
    if "entropy" in listed:
        add("proxy_entropy", *flat("entropy"))
    return found


def _in_order(steps: Int[np.ndarray, " n"], group_size: int) -> Int[np.ndarray, " n"]:
    """Return the group of each row where groups of a size follow one another within steps."""
    counts = np.unique(steps, return_counts=True)
    for step, count in zip(*counts, strict=True):
        if count % group_size:
            raise ValueError(
                f"step {step} has {count} completions, which is not a multiple of group_size={group_size}: give the "
                "trainer's number of completions for a prompt, or name the column of prompts with prompt"
            )
    within = pd.Series(steps).groupby(steps).cumcount().to_numpy() // group_size
    return np.unique(np.stack([steps, within]), axis=1, return_inverse=True)[1].reshape(-1)  # NumPy 2.0.0 keeps an axis


def _refuse_repeated(frame: pd.DataFrame, name: str) -> None:
    """Refuse a step whose rows are the same rows two or three times over, as of a table that was appended to itself.

    Groups would be twice as large, and intervals too narrow. Where little is known of completions, rows may agree by
    chance: those are refused that do so with a probability below 2⁻³⁰, by how often their values occur in a prompt.
    """
    values = [frame[name].fillna(-1.0).to_numpy() for name in frame if name not in ("step", "sample")]
    prompts, steps = frame["prompt"].to_numpy() if "prompt" in frame else np.zeros(len(frame)), frame["step"].to_numpy()
    order = np.argsort(steps, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(steps[order])) + 1):
        for times in (2, 3):
            parts = rows.reshape(times, -1) if len(rows) % times == 0 else rows[:0]
            if parts.size and all((one[parts] == one[parts[0]]).all() for one in values):
                codes = (np.stack(values)[:, parts[0]], prompts[parts[0]])
                alike, of_prompt = (np.unique(one, axis=-1, return_inverse=True, return_counts=True) for one in codes)
                if np.log2(of_prompt[2][of_prompt[1]] / alike[2][alike[1].ravel()]).sum() > _CHANCE_BITS:
                    raise ValueError(
                        f"of step {steps[rows[0]]} {name} holds the same {len(parts[0]):,} rows {times} times: it was "
                        "appended to itself; keep each row once"
                    )


def _groups(frame: pd.DataFrame, group_size: int | None) -> tuple[np.ndarray, list[str]]:
    """Return a label of the group of each completion, and what is to be said of groups."""
    steps, prompts = frame["step"].to_numpy(), frame["prompt"].to_numpy()
    pairs = frame.groupby(["step", "prompt"], sort=False).ngroup().to_numpy()
    for name in GROUP_COLUMNS:
        if name in frame:
            named = frame.groupby(["step", name], sort=False).ngroup().to_numpy()
            n_named = int(named.max()) + 1
            if n_named < len(frame) and n_named == len(pd.DataFrame({"a": named, "b": pairs}).drop_duplicates()):
                return named, []
    counts = np.bincount(pairs)
    plain = "advantage" not in frame and len(counts) > 1
    if counts.max() == 1 or (plain and counts.min() == counts.max() and group_size in (None, counts.max())):
        return pairs, []
    numbers, said = number_groups(
        steps,
        list(map(str, prompts.tolist())),
        frame["reward"].to_numpy(),
        names={name: list(map(str, frame[name].tolist())) for name in GROUP_COLUMNS if name in frame},
        advantages=frame["advantage"].to_numpy() if "advantage" in frame else None,
        group_size=group_size,
    )
    return pairs * (max(numbers) + 1) + np.array(numbers), said
