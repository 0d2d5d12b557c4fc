"""The columns of rollouts, and Parquet files that state a checksum of what their table holds."""

from __future__ import annotations

import hashlib
import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradstats.system.files import FORMAT, atomic_path, changed_sentence, refuse_newer_format
from gradstats.system.lazy_imports import pa, pd

#: Column name → the name of its Arrow type in files, and whether the column is required.
SCHEMA: dict[str, tuple[str, bool]] = {
    "prompt_id": ("string", True),
    "sample_id": ("int64", True),
    "prompt_tokens": ("list of int32", True),
    "completion_tokens": ("list of int32", True),
    "completion_mask": ("list of bool", False),
    "reward": ("float64", True),
    "token_rewards": ("list of float64", False),
    "sampler_logprobs": ("list of float32", False),
    "proximal_logprobs": ("list of float32", False),
    "finish_reason": ("string", False),
    "prompt_text": ("string", False),
    "completion_text": ("string", False),
    "sampler_seed": ("int64", False),
    "token_source": ("string", False),
    "greedy_reward": ("float64", False),
    "greedy_text": ("string", False),
}
#: A further column that a measurement adds where asked: by how much an adapter moves each token's last hidden state.
ADAPTER_RESIDUAL = "adapter_residual"
#: The columns of token ids.
TOKEN_COLUMNS = ("prompt_tokens", "completion_tokens")
_MOST_IDS = 2**31
#: The columns of log-probabilities. A sampler's may be NaN where it did not record them.
_LOGPROB_COLUMNS = ("sampler_logprobs", "proximal_logprobs")
_PER_TOKEN = ("completion_mask", "token_rewards", *_LOGPROB_COLUMNS)
#: Squares of rewards beyond it, times squared norms of gradients, are infinite.
LARGEST_REWARD = 1e100
_TOO_LARGE = f"beyond ±{LARGEST_REWARD:g}, of which squares are not finite: scale the rewards, or drop the row"
# A log-probability that an engine computed in low precision may lie a little above 0.
MOST_LOGPROB = 0.01
_FINISH_REASONS = ("stop", "length")
#: Where a completion's token ids come from: the engine itself; the text of each token; the whole text, re-tokenised;
#: or the whole text, where its new tokens do not decode to it (or are not as many as the engine says it drew).
TOKEN_SOURCES = ("engine", "pieces", "text", "mismatch")


def validate(frame: pd.DataFrame) -> None:
    """Refuse a table that is not one of completions, naming the first row that is wrong."""
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
    _refuse(frame, np.abs(rewards) > LARGEST_REWARD, f"has a reward {_TOO_LARGE}")
    for name in _PER_TOKEN:
        if name in frame:
            _refuse(
                frame,
                frame[name].map(lambda values: -1 if values is None else len(values)).to_numpy() != lengths,
                f"has a {name} of another length than its completion_tokens",
            )
    for name in _LOGPROB_COLUMNS:
        if name in frame:
            likeliest = frame[name].map(_largest).to_numpy()
            _refuse(frame, likeliest > MOST_LOGPROB, f"has a {name} above 0: give natural log-probabilities")
    if "proximal_logprobs" in frame:
        # Without them a correction is another one: a table has those of every token, or none.
        known = frame["proximal_logprobs"].map(lambda values: bool(np.isfinite(values).all())).to_numpy(dtype=bool)
        _refuse(frame, ~known, "has a proximal_logprobs that is not finite: give all of them, or leave out the column")
    if "finish_reason" in frame:
        known = frame["finish_reason"].isin(_FINISH_REASONS).to_numpy()
        _refuse(frame, ~known, f"has a finish_reason that is none of {', '.join(_FINISH_REASONS)}")
    if "token_source" in frame:
        known = frame["token_source"].isin(TOKEN_SOURCES).to_numpy()
        _refuse(frame, ~known, f"has a token_source that is none of {', '.join(TOKEN_SOURCES)}")
    if "greedy_reward" in frame:
        greedy = frame["greedy_reward"].to_numpy(dtype=np.float64)
        _refuse(frame, ~np.isfinite(greedy), "has a greedy_reward that is not finite: grade it, or drop the column")
        _refuse(frame, np.abs(greedy) > LARGEST_REWARD, f"has a greedy_reward {_TOO_LARGE}")
    _refuse(
        frame, frame["prompt_id"].isna().to_numpy(), "has no prompt_id: give each completion the name of its prompt"
    )
    repeated = frame.duplicated(["prompt_id", "sample_id"]).to_numpy()
    _refuse(frame, repeated, "repeats its sample_id: number the completions of a prompt from 0")


def token_ids(name: str, rows: Iterable[Iterable[object]]) -> list[list[int]]:
    """Return token ids as integers."""
    ids = []
    for number, row in enumerate(rows):
        given = list(row)
        try:
            whole = [int(token) for token in given]  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError, OverflowError):
            whole = []
        if whole != given or (whole and not 0 <= min(whole) <= max(whole) < _MOST_IDS):
            wrong = next(token for token in given if not _is_token_id(token))
            raise ValueError(
                f"{name} of row {number} hold {wrong!r}, which is not a token id: ids are whole numbers from 0 to "
                f"{_MOST_IDS - 1}"
            )
        ids.append(whole)
    return ids


def refuse_unclear_labels(name: str, labels: Any, *, as_text: bool = False) -> None:
    """Refuse labels of groups, one per completion, that are missing (None, NaN) or mix numbers and text.

    Missing ones would be one group, or each its own; and whether 1 and "1" are one group depends on who compares them.
    Where labels are used ``as_text``, mixed ones are refused only where two become the same text.
    """
    if getattr(getattr(labels, "dtype", None), "kind", "O") in "iubUS":
        return
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    missing = [row for row, label in enumerate(values) if label is None or label is pd.NA or label is pd.NaT]
    missing += [row for row, label in enumerate(values) if isinstance(label, numbers.Real) and label != label]
    if missing:
        row = min(missing)
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise ValueError(
            f"{name} has no label at completion {row}, but {values[row]}{more}: give each completion the label of its "
            "prompt, or leave it out"
        )
    kinds: dict[str, Any] = {}
    by_text: dict[str, dict[str, Any]] = {}
    for label in values:
        kinds.setdefault(_kind(label), label)
        by_text.setdefault(str(label), {}).setdefault(_kind(label), label)
    if as_text:
        kinds = max(by_text.values(), key=len, default={})
    if len(kinds) > 1:
        (first, label), (second, other) = list(kinds.items())[:2]
        raise ValueError(
            f"{name} mixes {first} and {second} ({label!r} and {other!r}): give labels of one type, as in "
            "[str(label) for label in labels]"
        )


def _kind(label: object) -> str:
    if isinstance(label, str):
        return "text"
    return "numbers" if isinstance(label, numbers.Number) else f"{type(label).__name__} objects"


def _is_token_id(token: object) -> bool:
    try:
        whole = int(token)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return False
    return bool(whole == token) and 0 <= whole < _MOST_IDS


def _largest(values: Sequence[float] | np.ndarray) -> float:
    """Return the largest of some numbers; NaN, which stands for an unknown one, is below every other."""
    return float(np.fmax.reduce(np.asarray(values, dtype=np.float64), initial=-np.inf))


def _refuse(frame: pd.DataFrame, wrong: np.ndarray, what: str) -> None:
    """Raise for the first row that is wrong, naming it, with how many more there are."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        more = f" ({int(wrong.sum()) - 1} more rows have the same problem)" if wrong.sum() > 1 else ""
        name = f"prompt_id {frame['prompt_id'].iloc[row]!r}, sample_id {frame['sample_id'].iloc[row]}"
        raise ValueError(f"row {row} ({name}) {what}{more}")


#: Entry of the schema of every file that this program wrote.
METADATA_KEY = b"gradstats"
_FORMAT_KEY, _CHECKSUM_KEY = b"gradstats_format", b"gradstats_checksum"


@dataclass(frozen=True)
class CheckedTable:
    """A table as it was written."""

    columns: dict[str, list[Any]]  # name → entries
    metadata: dict[str, Any]
    lacks_checksum: bool  # whether this program wrote it without a checksum, as version 0.1 did


def write_checked(table: pa.Table, metadata: Mapping[str, Any], path: Path) -> None:
    """Write one Parquet file, whole or not at all; metadata, format version and checksum are in its schema."""
    import pyarrow.parquet as pq

    packed = json.dumps(metadata).encode()
    about = {METADATA_KEY: packed, _FORMAT_KEY: b"%d" % FORMAT, _CHECKSUM_KEY: table_digest(table, packed)}
    with atomic_path(path) as partial:
        pq.write_table(table.replace_schema_metadata(about), partial, compression="zstd", write_page_checksum=True)


def read_checked(path: Path, what: str) -> CheckedTable:
    """Read a Parquet file and compare it with the checksum that it states."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        about = table.schema.metadata or {}
        packed = about.get(METADATA_KEY)
        metadata = {} if packed is None else json.loads(packed)
        if _CHECKSUM_KEY in about:
            changed = about[_CHECKSUM_KEY] != table_digest(table, packed or b"").encode()
        else:  # format 1 had none
            changed = about.get(_FORMAT_KEY, b"1") != b"1"
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"the {what} file {path} cannot be read as Parquet ({error}): write it again") from error
    if changed:
        raise ValueError(changed_sentence(path))
    refuse_newer_format(path, about.get(_FORMAT_KEY, b"1"))
    return CheckedTable(columns, metadata, packed is not None and _CHECKSUM_KEY not in about)


def table_digest(table: pa.Table, packed_metadata: bytes) -> str:
    """Return the SHA-256 of a table's columns, names and types, and of its metadata, in hexadecimal digits.

    It does not depend on chunks, compression or the version of Arrow, so that it can be compared with that of the
    table that was written.
    """
    sha = hashlib.sha256(packed_metadata)
    for name in table.column_names:
        column = table.column(name)
        # Parquet does not preserve the name that Arrow gives to the entries of a list.
        kind = f"list of {column.type.value_type}" if pa.types.is_list(column.type) else str(column.type)
        sha.update(f"\0{name}\0{kind}\0{len(column)}\0".encode())
        _add(sha, column)
    return sha.hexdigest()


def _add(sha: Any, column: pa.ChunkedArray) -> None:
    """Add a column: which entries are missing, how long each is, and the values."""
    import pyarrow.compute as pc

    sha.update(column.is_valid().to_numpy().tobytes())
    if pa.types.is_list(column.type):
        sha.update(pc.fill_null(pc.call_function("list_value_length", [column]), -1).to_numpy().tobytes())
        _add(sha, pa.chunked_array(pc.call_function("list_flatten", [column])))
    elif pa.types.is_string(column.type):
        sha.update(pc.fill_null(pc.call_function("binary_length", [column]), -1).to_numpy().tobytes())
        for text in column.to_pylist():
            sha.update((text or "").encode())
    else:
        zero = False if pa.types.is_boolean(column.type) else 0
        sha.update(pc.fill_null(column, zero).to_numpy().tobytes())
