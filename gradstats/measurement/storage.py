"""The disk space that a measurement takes, and the refusal to begin one that does not fit."""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gradstats.config.experiment import MeasurementSection
from gradstats.measurement.measurement import (
    HEAVY_FIELDS,
    OPTIONAL_TOKEN_FIELDS,
    TOKEN_FIELDS,
    Measurement,
    WeightedGradients,
    concatenate_measurements,
)
from gradstats.rollouts.schema import read_checked, write_checked
from gradstats.rollouts.table import Rollouts, part_of_run, read_rollouts
from gradstats.system.files import (
    FORMAT,
    atomic_path,
    changed_sentence,
    digest,
    file_digest,
    read_json,
    refuse_newer_format,
    write_json,
)
from gradstats.system.outputs import differing_entry, earlier_result, refuse_other_result
from gradstats.system.shards import ORIGIN, PLAN, IncompleteRunError, planned_shards, read_origin, refuse_foreign_shard

#: The file of the values of a fitted head; those of prefixes lie in numbered shards beside it.
FITTED = "fitted.parquet"
_KEY = ["prompt_id", "sample_id"]


@dataclass(frozen=True)
class StateValues:
    """One value for each token of some completions.

    Attributes:
        completions: frame with ``prompt_id``, ``sample_id`` and the ``reward`` that the values predict.
        values: for each completion, (T_i,) values of the state before each token; NaN where there is none.
        metadata: how they were obtained.
    """

    completions: pd.DataFrame
    values: list[np.ndarray]
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rollouts: Rollouts, values: Sequence[np.ndarray], metadata: dict[str, Any]) -> StateValues:
        """Return values with the completions that they belong to."""
        return cls(pd.DataFrame(rollouts.frame[[*_KEY, "reward"]]).reset_index(drop=True), list(values), metadata)

    @classmethod
    def concatenate(cls, shards: Sequence[StateValues]) -> StateValues:
        """Stack the values of several shards, with the metadata of the first."""
        completions = pd.concat([shard.completions for shard in shards], ignore_index=True)
        return cls(completions, [row for shard in shards for row in shard.values], shards[0].metadata)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all, with its checksum."""
        columns = {name: pa.array(self.completions[name].tolist()) for name in self.completions}
        values = pa.array([row.tolist() for row in self.values], type=pa.list_(pa.float64()))
        write_checked(pa.table(columns | {"values": values}), self.metadata, Path(path))

    def for_rollouts(self, rollouts: Rollouts) -> list[np.ndarray]:
        """Return the values of some completions, in their order.

        Raises:
            ValueError: for a completion without values, or with another reward or number of tokens.
        """
        place = {key: row for row, key in enumerate(zip(*(self.completions[name] for name in _KEY), strict=True))}
        rewards = self.completions["reward"].to_numpy()
        found = []
        keys = zip(rollouts.prompt_id, rollouts.sample_id, strict=True)
        for key, reward, mask in zip(keys, rollouts.rewards, rollouts.masks, strict=True):
            row = place.get(key)
            named = f"completion {key[1]} of prompt {str(key[0])!r}"
            if row is None:
                raise ValueError(f"{named} has none")
            if rewards[row] != reward:
                raise ValueError(f"{named} had another reward when they were made")
            if len(self.values[row]) != len(mask):
                raise ValueError(f"{named} has another number of tokens")
            found.append(self.values[row])
        return found


def read_state_values(path: str | os.PathLike[str]) -> StateValues:
    """Read what :meth:`StateValues.to_parquet` wrote.

    Raises:
        ValueError: when the file is damaged, or has changed since it was written.
    """
    path = Path(path)
    table = read_checked(path, "state values")
    columns = dict(table.columns)
    if "values" not in columns or not {*_KEY, "reward"} <= set(columns):
        raise ValueError(f"{path} holds no state values: remove it and repeat the command")
    values = [np.array(row, dtype=np.float64) for row in columns.pop("values")]
    return StateValues(pd.DataFrame(columns), values, table.metadata)


def digest_of_state_values(folder: Path) -> str | None:
    """Return the digest of all state values in a folder; None where there are none."""
    files = sorted(folder.glob("*.parquet"))
    return digest([[path.name, file_digest(path)] for path in files]) if files else None


def with_state_values(measured: Measurement, folder: Path) -> Measurement:
    """Return a run's measurement with the state values in a folder; a warning says why some are left out.

    Args:
        measured: the measurement.
        folder: the run's ``values``; nothing changes where there is none.
    """
    found: dict[str, list[np.ndarray]] = {}
    for name, read in (("fitted_values", _fitted), ("values", _of_prefixes)):
        try:
            stored = read(folder)
            if stored is not None:
                found[name] = stored.for_rollouts(measured.rollouts)
        except ValueError as error:
            warnings.warn(
                f"the state values in {folder} are left out ({error}): `gradstats run` makes them again, "
                "once what is damaged has been removed",
                UserWarning,
                stacklevel=3,
            )
    return replace(measured, **found) if found else measured


def _fitted(folder: Path) -> StateValues | None:
    return read_state_values(folder / FITTED) if (folder / FITTED).exists() else None


def _of_prefixes(folder: Path) -> StateValues | None:
    try:
        planned = planned_shards(folder, ".parquet")
    except IncompleteRunError as error:
        raise ValueError("not all of them were made") from error
    if planned is None and any(folder.glob("shard-*.parquet")):
        raise ValueError(f"their {PLAN} is missing")
    if planned is None or not planned.paths:
        return None
    shards = []
    for path in planned.paths:
        shard = read_state_values(path)
        refuse_foreign_shard(shard.metadata, path, planned)
        shards.append(shard)
    return StateValues.concatenate(shards)


#: What ``token_dtype`` narrows.
_NARROWED = {"token_projections", "heavy_sketches"}


#: The files of a measurement.
FILES = {"rollouts.parquet", "tensors.safetensors", "measurement.json"}
# Entries of the metadata that differ between two calls with the same settings.
_VARYING = {"self_check", "token_self_check", "versions", "not_finite", ORIGIN}


def save_measurement(
    measured: Measurement, folder: str | os.PathLike[str], token_dtype: str = "float32", *, overwrite: bool = False
) -> None:
    """Write a measurement, see :meth:`gradstats.Measurement.save`."""
    refuse_to_replace_measurement(folder, measured.metadata, measured.rollouts, overwrite)
    tensors = {
        name: np.concatenate(rows) for name, rows in (measured.per_token_fields() | measured.heavy_fields()).items()
    }
    if measured.heavy_positions is not None:
        tensors["heavy_counts"] = np.array([len(rows) for rows in measured.heavy_positions], dtype=np.int64)
    for name in _NARROWED & set(tensors):
        tensors[name] = _narrowed(name, tensors[name], token_dtype)
    for prefix, gradients in _by_prefix(measured).items():
        tensors[f"{prefix}sq_norms_by_block"] = gradients.sq_norms_by_block.to_numpy(dtype=np.float64)
        if gradients.sketches is not None:
            tensors[f"{prefix}sketches"] = gradients.sketches
        if gradients.sketches_by_block is not None:
            tensors[f"{prefix}sketches_by_block"] = gradients.sketches_by_block
    # safetensors writes an array's memory as it is laid out: a transposed array would be read back scrambled.
    tensors = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    with atomic_path(folder, replace_folder=True) as partial:
        partial.mkdir()
        measured.rollouts.to_parquet(partial / "rollouts.parquet")
        try:
            save_file(tensors, partial / "tensors.safetensors")
        except SafetensorError as error:  # the error of safetensors for a full disk
            raise OSError(
                f"the measurement cannot be written to {os.fspath(folder)} ({error}): free some space"
            ) from error
        described = {
            "format": FORMAT,
            "block_names": list(measured.sq_norms_by_block),
            "weighted": list(measured.weighted),
            "metadata": measured.metadata,
            "tensors": file_digest(partial / "tensors.safetensors"),
            "sequences": _sequences_digest(measured.rollouts),
        }
        write_json(partial / "measurement.json", described)


def refuse_to_replace_measurement(
    folder: str | os.PathLike[str], metadata: Mapping[str, object], rollouts: Rollouts, overwrite: bool
) -> None:
    """Refuse to write a measurement where something else lies, or one of other settings or completions.

    Args:
        folder: where it is to be written.
        metadata: of the new one, or those entries of it that are known; only they are compared.
        rollouts: what is measured.
        overwrite: whether another measurement may be replaced.

    Raises:
        FileExistsError: in that case.
    """
    earlier = earlier_result(folder, "a measurement", is_measurement_folder, overwrite)
    if earlier is None:
        return
    there = read_json(earlier / "measurement.json")
    known = {name: value for name, value in there["metadata"].items() if name in metadata}
    refuse_other_result(folder, differing_entry(known, metadata, _VARYING), overwrite)
    same = there.get("sequences") == _sequences_digest(rollouts)
    refuse_other_result(folder, None if same else "other completions", overwrite)


def is_measurement_folder(folder: Path) -> bool:
    """Return whether a folder holds the files of a measurement that this program wrote, and nothing else."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - FILES:
        return False
    try:
        described = read_json(folder / "measurement.json")
    except (ValueError, OSError):
        return False
    return isinstance(described.get("metadata"), dict) and "block_names" in described


def read_measurement(folder: str | os.PathLike[str], *, partial: bool = False) -> Measurement:
    """Read what :meth:`Measurement.save` wrote, a folder of such folders (in the order of their names), or a run's.

    Args:
        folder: the folder or the run directory.
        partial: read the shards there are where some of those that the run planned are missing.

    Raises:
        FileNotFoundError: when there is no measurement in it.
        ValueError: when a file is damaged, has changed since it was written (by its checksum), or belongs to another
            run; when shards are missing; and for a run whose completions are being scored again.
    """
    folder = part_of_run(Path(folder), "measurement")
    if not (folder / "measurement.json").exists():
        measured = concatenate_measurements(_read_shards(folder, partial))
        # Within a run, state values lie beside its measurement.
        return with_state_values(measured, folder.parent / "values") if folder.name == "measurement" else measured
    rollouts = read_rollouts(folder / "rollouts.parquet")
    described = read_json(folder / "measurement.json")
    refuse_newer_format(folder, described.get("format", 1))
    tensors_file = folder / "tensors.safetensors"
    try:
        if "tensors" in described and described["tensors"] != file_digest(tensors_file):
            raise ValueError(changed_sentence(tensors_file))
        if "sequences" in described and described["sequences"] != _sequences_digest(rollouts):
            raise ValueError("its rollouts.parquet holds other completions than those that were measured")
        return _measurement(described, load_file(tensors_file), rollouts)
    except (SafetensorError, LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ValueError(
            f"the measurement in {folder} cannot be read ({error}): remove it and measure again"
        ) from error


def _read_shards(folder: Path, partial: bool) -> Iterator[Measurement]:
    """Return the shards of a folder: those that its plan names, or all where it has none."""
    # Within a run, the plan of what was to be sampled: measuring may not have begun on all of it.
    sampled = folder.parent / "rollouts" / PLAN
    plan_file = sampled if folder.name == "measurement" and sampled.exists() else folder / PLAN
    planned = planned_shards(folder, "", plan_file=plan_file, partial=partial)
    if planned and plan_file != folder / PLAN:
        # Runs that share completions share the plan of these; what was measured states the settings of its own run.
        planned = replace(planned, origin=read_origin(folder) or planned.origin)
    shards = planned.paths if planned else sorted(path.parent for path in folder.glob("[!.]*/measurement.json"))
    if not shards:
        raise FileNotFoundError(f"the folder {folder} holds no measurement: run `gradstats measure` or `run` first")
    for shard in shards:
        measured = read_measurement(shard)
        refuse_foreign_shard(measured.metadata, shard, planned, partial=partial)
        yield measured


def _measurement(described: Mapping[str, Any], tensors: Mapping[str, np.ndarray], rollouts: Rollouts) -> Measurement:
    def gradients(prefix: str) -> WeightedGradients:
        norms = pd.DataFrame(tensors[f"{prefix}sq_norms_by_block"], columns=described["block_names"])
        return WeightedGradients(norms, tensors.get(f"{prefix}sketches"), tensors.get(f"{prefix}sketches_by_block"))

    lengths = [len(tokens) for tokens in rollouts.frame["completion_tokens"]]
    measured = gradients("")
    return Measurement(
        rollouts,
        measured.sq_norms_by_block,
        measured.sketches,
        **_rows(tensors, TOKEN_FIELDS, lengths),
        **_rows(tensors, [name for name in OPTIONAL_TOKEN_FIELDS if name in tensors], lengths),
        **_rows(tensors, [name for name in HEAVY_FIELDS if name in tensors], tensors.get("heavy_counts", ())),
        weighted={name: gradients(f"weighted/{name}/") for name in described.get("weighted", ())},
        metadata=described["metadata"],
        sketches_by_block=measured.sketches_by_block,
    )


def _sequences_digest(rollouts: Rollouts) -> str:
    """Digest which completions were measured; their rewards may change when a run is scored again."""
    columns = ("prompt_id", "sample_id", "prompt_tokens", "completion_tokens", "completion_mask")
    return digest([rollouts.frame[name].map(_listed).tolist() for name in columns if name in rollouts.frame])


def _listed(cell: Any) -> Any:
    return np.asarray(cell).tolist() if isinstance(cell, (list, tuple, np.ndarray)) else cell


def _by_prefix(measured: Measurement) -> dict[str, WeightedGradients]:
    """Return the gradients of a measurement by the prefix of their tensors' names."""
    return {"": measured.gradients} | {f"weighted/{name}/": gradients for name, gradients in measured.weighted.items()}


def _rows(
    tensors: Mapping[str, np.ndarray], names: Sequence[str], counts: Sequence[int] | np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Return tensors in which the sequences lie one after another, cut into one array per sequence."""
    ends = np.cumsum(counts)[:-1]
    return {name: np.split(tensors[name], ends) for name in names}


def _narrowed(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype not in ("float32", "float16"):
        raise ValueError(f'token_dtype is {dtype!r}: choose "float32" or "float16"')
    largest = np.abs(values).max(initial=0.0)
    if largest > np.finfo(dtype).max:
        raise ValueError(f'{name} reach {largest:.3g}, too large for {dtype}: save with token_dtype="float32"')
    return values.astype(dtype)


GIB = 1024**3
_MIB = 1024**2
# Four statistics of each token in float64, its id and its sampler's log-probability.
_BYTES_PER_TOKEN = 4 * 8 + 8
_BYTES_PER_SKETCH_ENTRY = 4


def measured_bytes(rollouts: Rollouts, section: MeasurementSection, n_blocks: int = 0) -> int:
    """Return an upper bound of the disk space that the measurement of some rollouts takes, in bytes.

    Args:
        rollouts: the sequences.
        section: what is measured.
        n_blocks: blocks whose sketches are kept beside the whole's.
    """
    lengths = rollouts.frame["completion_tokens"].map(len).to_numpy()
    counted = zip(*np.unique(lengths, return_counts=True), strict=True)
    return sum(bytes_of_sequences(int(length), int(n), section, n_blocks) for length, n in counted)


def bytes_of_sequences(length: int, n: int, section: MeasurementSection, n_blocks: int = 0) -> int:
    """Return an upper bound of the disk space that ``n`` sequences of ``length`` tokens take, in bytes.

    ``n_blocks`` is as for :func:`measured_bytes`.
    """
    sketch_dim, probes, exact = section.sketch_dim or 0, section.token_probes, section.token_exact
    # The heaviest tokens that hold a share of a sum are at most that share of all tokens.
    heavy = min(length, math.ceil(exact * length) if 0 < exact < 1 else int(exact))
    item = np.dtype(section.token_dtype).itemsize
    return n * (
        length * (_BYTES_PER_TOKEN + probes * item)
        + sketch_dim * (1 + n_blocks) * _BYTES_PER_SKETCH_ENTRY
        + heavy * (sketch_dim * item + 16)
    )


def require_space(folder: Path, n_bytes: int) -> None:
    """Refuse to begin a measurement that does not fit on the disk.

    Args:
        folder: where it is going to be written; it need not exist yet.
        n_bytes: the space that it needs.

    Raises:
        OSError: when less is free there.
    """
    folder = folder.resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if n_bytes > free:
        raise OSError(
            f"the measurement takes up to {n_bytes / _MIB:,.1f} MiB, and {existing} has {free / _MIB:,.1f} MiB left: "
            "measure with fewer token_probes or token_exact, a smaller sketch_dim, or elsewhere"
        )
