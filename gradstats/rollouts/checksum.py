"""The checksum of a table of rollouts: of what it holds, not of how Parquet packed it."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


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
