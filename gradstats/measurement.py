"""The measurement: what a measuring run leaves behind, and how it is read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gradstats.atomic import atomic_path, write_json
from gradstats.rollouts import Rollouts, read_rollouts

_RAGGED = ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")


@dataclass(frozen=True)
class Measurement:
    r"""Per-sequence gradients of :math:`S_i = \sum_t \nabla\log\pi(y_{i,t})`, kept as norms and sketches.

    Attributes:
        rollouts: the N sequences that were measured.
        sq_norms_by_block: frame (N, blocks), squared gradient norms; a row sums to :math:`\lVert S_i\rVert^2`.
        sketches: (N, sketch_dim), unbiased random projections of the :math:`S_i`, or None.
        logprobs: for each sequence, (T_i,) log-probabilities of its tokens under the scored distribution, in nats.
        entropy: for each sequence, (T_i,) entropies of that distribution, in nats.
        sum_pi_squared: for each sequence, (T_i,) sums of squared probabilities.
        hidden_sq_norms: for each sequence, (T_i,) squared norms of what enters the output embedding.
        metadata: engine, parameters, sketch, policy, self-check, versions.

    Raises:
        ValueError: when the parts disagree about the number of sequences or of tokens.
    """

    rollouts: Rollouts
    sq_norms_by_block: pd.DataFrame
    sketches: np.ndarray | None
    logprobs: list[np.ndarray]
    entropy: list[np.ndarray]
    sum_pi_squared: list[np.ndarray]
    hidden_sq_norms: list[np.ndarray]
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.rollouts)
        counts = {name: len(getattr(self, name)) for name in (*_RAGGED, "sq_norms_by_block")}
        if self.sketches is not None:
            counts["sketches"] = len(self.sketches)
        for name, count in counts.items():
            if count != n:
                raise ValueError(f"the measurement's {name} has {count} rows for {n} rollouts")
        tokens = [len(tokens) for tokens in self.rollouts.frame["completion_tokens"]]
        for name in _RAGGED:
            if [len(values) for values in getattr(self, name)] != tokens:
                raise ValueError(f"the measurement's {name} does not have one value per completion token")

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) number of completion tokens that count."""
        return self.rollouts.lengths

    @property
    def sq_norms(self) -> np.ndarray:
        r"""(N,) :math:`\lVert S_i\rVert^2`."""
        return self.sq_norms_by_block.to_numpy(dtype=np.float64).sum(axis=1)

    @property
    def sketch_dim(self) -> int | None:
        """Number of buckets of the sketches, None without sketches."""
        return None if self.sketches is None else self.sketches.shape[1]

    @property
    def old_logprobs(self) -> list[np.ndarray] | None:
        """The sampler's log-probability of each token, one array per sequence, where it recorded them."""
        if "sampler_logprobs" not in self.rollouts.frame:
            return None
        return [values.astype(np.float64) for values in self.rollouts.tokens("sampler_logprobs")]

    def gram(self) -> np.ndarray:
        r"""(N, N) estimates of :math:`\langle S_i, S_j\rangle`: unbiased from the sketches, exact on the diagonal.

        Raises:
            ValueError: when no sketches were measured.
        """
        if self.sketches is None:
            raise ValueError("this measurement holds no sketches: measure with sketch_dim, for example 16384")
        sketches = self.sketches.astype(np.float64)
        gram = sketches @ sketches.T
        np.fill_diagonal(gram, self.sq_norms)
        return gram

    @classmethod
    def concatenate(cls, parts: Iterable[Measurement]) -> Measurement:
        """Stack measurements of the same policy, parameters and sketch; the first one's metadata is kept.

        Raises:
            ValueError: when there are none, or they differ in blocks or sketches.
        """
        parts = list(parts)
        if not parts:
            raise ValueError("parts is empty: there are no measurements to concatenate")
        for name in ("sketch_dim", "sketch_seed", "block_names"):
            found = {str(part.metadata.get(name)) for part in parts}
            if len(found) > 1:
                raise ValueError(f"measurements differ in {name} ({', '.join(sorted(found))}): measure them alike")
        sketches = None if parts[0].sketches is None else np.concatenate([part.sketches for part in parts])  # pyright: ignore
        ragged = {name: [values for part in parts for values in getattr(part, name)] for name in _RAGGED}
        return cls(
            Rollouts.concatenate(part.rollouts for part in parts),
            pd.concat([part.sq_norms_by_block for part in parts], ignore_index=True),
            sketches,
            **ragged,
            metadata=dict(parts[0].metadata),
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``rollouts.parquet``, ``tensors.safetensors`` and ``measurement.json``: all of the folder or none."""
        tensors = {"sq_norms_by_block": self.sq_norms_by_block.to_numpy(dtype=np.float64)}
        tensors |= {name: np.concatenate(getattr(self, name)) for name in _RAGGED}
        if self.sketches is not None:
            tensors["sketches"] = self.sketches
        # safetensors writes an array's memory as it lies: a transposed one would come back scrambled.
        tensors = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        with atomic_path(folder) as partial:
            partial.mkdir()
            self.rollouts.to_parquet(partial / "rollouts.parquet")
            save_file(tensors, partial / "tensors.safetensors")
            write_json(
                partial / "measurement.json",
                {"block_names": list(self.sq_norms_by_block), "metadata": self.metadata},
            )


def read_measurement(folder: str | os.PathLike[str]) -> Measurement:
    """Read what :meth:`Measurement.save` wrote, or a folder of such folders (in the order of their names).

    Raises:
        FileNotFoundError: when nothing is there.
        ValueError: when a file is broken.
    """
    folder = Path(folder)
    if not (folder / "measurement.json").exists():
        shards = sorted(path.parent for path in folder.glob("[!.]*/measurement.json"))
        if not shards:
            raise FileNotFoundError(f"the folder {folder} holds no measurement: run `gradstats measure` or `run` first")
        return Measurement.concatenate(read_measurement(shard) for shard in shards)
    rollouts = read_rollouts(folder / "rollouts.parquet")
    try:
        described = json.loads((folder / "measurement.json").read_text())
        tensors = load_file(folder / "tensors.safetensors")
        ends = np.cumsum([len(tokens) for tokens in rollouts.frame["completion_tokens"]])[:-1]
        return Measurement(
            rollouts,
            pd.DataFrame(tensors["sq_norms_by_block"], columns=described["block_names"]),
            tensors.get("sketches"),
            **{name: np.split(tensors[name], ends) for name in _RAGGED},
            metadata=described["metadata"],
        )
    except (SafetensorError, json.JSONDecodeError, KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"the measurement in {folder} cannot be read ({error}): remove it and measure again"
        ) from error
