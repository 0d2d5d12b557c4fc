"""The folder of a measurement: ``rollouts.parquet``, ``tensors.safetensors`` and ``measurement.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gradstats.measurement.concatenation import concatenate_measurements
from gradstats.measurement.measurement import HEAVY_FIELDS, OPTIONAL_TOKEN_FIELDS, TOKEN_FIELDS, Measurement
from gradstats.measurement.weighted_gradients import WeightedGradients
from gradstats.rollouts.table import read_rollouts
from gradstats.system.files import atomic_path, write_json

#: What ``token_dtype`` narrows.
_NARROWED = {"token_projections", "heavy_sketches"}


def save_measurement(measured: Measurement, folder: str | os.PathLike[str], token_dtype: str = "float32") -> None:
    """Write a measurement, see :meth:`gradstats.Measurement.save`."""
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
    # safetensors writes an array's memory as it lies: a transposed one would be read back scrambled.
    tensors = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    described = {
        "block_names": list(measured.sq_norms_by_block),
        "weighted": list(measured.weighted),
        "metadata": measured.metadata,
    }
    with atomic_path(folder) as partial:
        partial.mkdir()
        measured.rollouts.to_parquet(partial / "rollouts.parquet")
        save_file(tensors, partial / "tensors.safetensors")
        write_json(partial / "measurement.json", described)


def read_measurement(folder: str | os.PathLike[str]) -> Measurement:
    """Read what :meth:`Measurement.save` wrote, or a folder of such folders (in the order of their names).

    Args:
        folder: the folder.

    Raises:
        FileNotFoundError: when there is no measurement in it.
        ValueError: when a file is damaged.
    """
    folder = Path(folder)
    if not (folder / "measurement.json").exists():
        shards = sorted(path.parent for path in folder.glob("[!.]*/measurement.json"))
        if not shards:
            raise FileNotFoundError(f"the folder {folder} holds no measurement: run `gradstats measure` or `run` first")
        return concatenate_measurements(read_measurement(shard) for shard in shards)
    rollouts = read_rollouts(folder / "rollouts.parquet")
    try:
        described = json.loads((folder / "measurement.json").read_text())
        tensors = load_file(folder / "tensors.safetensors")

        def gradients(prefix: str) -> WeightedGradients:
            norms = pd.DataFrame(tensors[f"{prefix}sq_norms_by_block"], columns=described["block_names"])
            return WeightedGradients(norms, tensors.get(f"{prefix}sketches"))

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
        )
    except (SafetensorError, json.JSONDecodeError, KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"the measurement in {folder} cannot be read ({error}): remove it and measure again"
        ) from error


def _by_prefix(measured: Measurement) -> dict[str, WeightedGradients]:
    """Return the gradients of a measurement by the prefix of their tensors' names."""
    plain = WeightedGradients(measured.sq_norms_by_block, measured.sketches)
    return {"": plain} | {f"weighted/{name}/": gradients for name, gradients in measured.weighted.items()}


def _rows(
    tensors: Mapping[str, np.ndarray], names: Sequence[str], counts: Sequence[int] | np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Tensors in which the sequences lie one after another, cut into one array per sequence."""
    ends = np.cumsum(counts)[:-1]
    return {name: np.split(tensors[name], ends) for name in names}


def _narrowed(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype not in ("float32", "float16"):
        raise ValueError(f'token_dtype is {dtype!r}: choose "float32" or "float16"')
    largest = np.abs(values).max(initial=0.0)
    if largest > np.finfo(dtype).max:
        raise ValueError(f'{name} reach {largest:.3g}, too large for {dtype}: save with token_dtype="float32"')
    return values.astype(dtype)
