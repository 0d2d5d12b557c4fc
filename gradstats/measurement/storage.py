"""The folder of a measurement: ``rollouts.parquet``, ``tensors.safetensors`` and ``measurement.json``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gradstats.measurement.concatenation import concatenate_measurements
from gradstats.measurement.measurement import HEAVY_FIELDS, OPTIONAL_TOKEN_FIELDS, TOKEN_FIELDS, Measurement
from gradstats.measurement.state_values import with_state_values
from gradstats.measurement.weighted_gradients import WeightedGradients
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.rollouts.within_run import part_of_run
from gradstats.system.checksums import FORMAT, changed_sentence, digest, file_digest, refuse_newer_format
from gradstats.system.files import atomic_path, read_json, write_json
from gradstats.system.outputs import differing_entry, earlier_result, refuse_other_result
from gradstats.system.shards import ORIGIN, PLAN, planned_shards, read_origin, refuse_foreign_shard

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
