"""Parquet files that state a checksum: of what the table holds, not of how Parquet packed it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gradstats.system.checksums import FORMAT, changed_sentence, refuse_newer_format
from gradstats.system.files import atomic_path

#: Entry of the schema of every file that this program wrote.
METADATA_KEY = b"gradstats"
_FORMAT_KEY, _CHECKSUM_KEY = b"gradstats_format", b"gradstats_checksum"


@dataclass(frozen=True)
class CheckedTable:
    """A table as it was written.

    Attributes:
        columns: name → entries.
        metadata: what was written with it.
        lacks_checksum: whether this program wrote it without a checksum, as version 0.1 did.
    """

    columns: dict[str, list[Any]]
    metadata: dict[str, Any]
    lacks_checksum: bool


def write_checked(table: pa.Table, metadata: Mapping[str, Any], path: Path) -> None:
    """Write one Parquet file, whole or not at all; metadata, format version and checksum are in its schema."""
    packed = json.dumps(metadata).encode()
    about = {METADATA_KEY: packed, _FORMAT_KEY: b"%d" % FORMAT, _CHECKSUM_KEY: table_digest(table, packed)}
    with atomic_path(path) as partial:
        pq.write_table(table.replace_schema_metadata(about), partial, compression="zstd", write_page_checksum=True)


def read_checked(path: Path, what: str) -> CheckedTable:
    """Read a Parquet file and compare it with the checksum that it states.

    Args:
        path: the file.
        what: what it holds, for messages, as in "rollouts".

    Raises:
        ValueError: when it is not Parquet, is cut short, or has changed since it was written.
    """
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
