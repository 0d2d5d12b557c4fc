"""The files of a finished run's tables as its manifest lists them, with their checksums."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gradstats.report.saved_frames import added_tables
from gradstats.system.checksums import changed_sentence, file_digest
from gradstats.system.files import read_json, write_json


def table_checksums(path: Path, files: Iterable[Path]) -> dict[str, str]:
    """Digest the tables (CSV) among some files of a run: path in the run → SHA-256, as its manifest records them."""
    return {file.relative_to(path).as_posix(): file_digest(file) for file in files if file.suffix == ".csv"}


def record_tables(path: Path, files: Sequence[Path], checksums: Mapping[str, str] | None = None) -> None:
    """List files that were added to a run, or written again, in its manifest, with the checksums of tables.

    What is listed is removed when the run is analysed again, for instance with other rewards. The manifest of a run of
    version 0.1 has no checksums, and gets none.

    Args:
        path: the run directory.
        files: files of the run.
        checksums: those of the tables among them, as :func:`table_checksums` returns them, where these are yet to be
            written; a table that it leaves out has none from then on.
    """
    if not (path / "manifest.json").exists():
        return
    manifest = read_json(path / "manifest.json")
    listed, recorded = manifest.get("files"), manifest.get("checksums")
    names = [file.relative_to(path).as_posix() for file in files]
    changes: dict[str, object] = {"files": list(dict.fromkeys([*(listed if isinstance(listed, list) else []), *names]))}
    if isinstance(recorded, dict):
        others = {name: checksum for name, checksum in recorded.items() if name not in names}
        changes["checksums"] = others | (table_checksums(path, files) if checksums is None else dict(checksums))
    write_json(path / "manifest.json", manifest | changes)


def listed_additions(path: Path) -> list[Path]:
    """Return the files of the tables that commands added to a run, as its manifest lists them."""
    manifest = path / "manifest.json"
    listed = read_json(manifest).get("files", []) if manifest.exists() else []
    names = set(map(str, listed if isinstance(listed, list) else []))
    files = [file for table in added_tables(path) for file in (table, table.with_suffix(".json"))]
    return [file for file in files if file.exists() and file.relative_to(path).as_posix() in names]


def refuse_changed_tables(path: Path, tables: Collection[Path] | None = None) -> None:
    """Refuse a run directory (not a copy of its results) in which a table is not what the manifest records.

    Args:
        path: the run directory.
        tables: the tables that are compared; all when None.

    Raises:
        ValueError: naming the first such table.
    """
    manifest = path / "manifest.json"
    recorded = read_json(manifest).get("checksums") if manifest.exists() else None
    if not isinstance(recorded, dict) or not (path / "rollouts").is_dir():
        return
    for name, checksum in recorded.items():
        table = path / name
        compared = Path(name).parts[0] != "figures" and (tables is None or table in tables)
        if compared and table.is_file() and file_digest(table) != checksum:
            raise ValueError(changed_sentence(table))
