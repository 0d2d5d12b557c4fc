"""The measurement: what a measuring run leaves behind, and how it is read back."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gradstats.measurement.token_scores import TokenScores
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.system.files import atomic_path, write_json

_RAGGED = ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")
#: Entries of the metadata that measurements must share to be joined.
_ALIKE = (
    "sketch_dim",
    "sketch_seed",
    "block_names",
    "token_probes",
    "token_seed",
    "token_exact",
    "token_distribution",
)
_NARROWED = {"token_projections", "heavy_sketches"}
_HEAVY = ("heavy_positions", "heavy_sq_norms", "heavy_sketches")


@dataclass(frozen=True)
class WeightedGradients:
    r"""Gradients :math:`\sum_t w_t \nabla\log\pi(y_{i,t})` under the user's token weights, as norms and sketches.

    Attributes:
        sq_norms_by_block: frame (N, blocks), squared norms.
        sketches: (N, sketch_dim), projections of the same seed as the measurement's own, or None.
    """

    sq_norms_by_block: pd.DataFrame
    sketches: np.ndarray | None

    def __len__(self) -> int:
        return len(self.sq_norms_by_block)

    @property
    def sq_norms(self) -> np.ndarray:
        """(N,) squared norms."""
        return self.sq_norms_by_block.to_numpy(dtype=np.float64).sum(axis=1)

    def gram(self) -> np.ndarray:
        """(N, N) inner products: unbiased from the sketches, exact on the diagonal.

        Raises:
            ValueError: when no sketches were measured.
        """
        return _gram(self.sketches, self.sq_norms)


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
        ref_logprobs: for each sequence, (T_i,) log-probabilities of its tokens under the reference policy, or None.
        weighted: further weightings of the tokens, by name.
        token_projections: for each sequence, (T_i, K) projections :math:`\langle s_t, v_k\rangle` of every token's
            score on K random directions with :math:`\mathbb E\,v v^\top = I`, zero where masked; or None.
        heavy_positions: for each sequence, (m_i,) sorted positions of the tokens measured exactly; or None.
        heavy_sq_norms: for each sequence, (m_i,) exact :math:`\lVert s_t\rVert^2` of those; or None.
        heavy_sketches: for each sequence, (m_i, sketch_dim) sketches of those, of the same projection as
            ``sketches``; or None.

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
    ref_logprobs: list[np.ndarray] | None = None
    weighted: dict[str, WeightedGradients] = field(default_factory=dict)
    token_projections: list[np.ndarray] | None = None
    heavy_positions: list[np.ndarray] | None = None
    heavy_sq_norms: list[np.ndarray] | None = None
    heavy_sketches: list[np.ndarray] | None = None

    def __post_init__(self) -> None:
        n = len(self.rollouts)
        counts = {name: len(values) for name, values in self._ragged().items()}
        counts["sq_norms_by_block"] = len(self.sq_norms_by_block)
        if self.sketches is not None:
            counts["sketches"] = len(self.sketches)
        counts |= {name: len(rows) for name, rows in self._heavy().items()}
        counts |= {f"weighted[{name!r}]": len(part) for name, part in self.weighted.items()}
        for name, count in counts.items():
            if count != n:
                raise ValueError(f"the measurement's {name} has {count} rows for {n} rollouts")
        tokens = [len(tokens) for tokens in self.rollouts.frame["completion_tokens"]]
        for name, rows in self._ragged().items():
            if [len(values) for values in rows] != tokens:
                raise ValueError(f"the measurement's {name} does not have one value per completion token")
        for name, rows in self._heavy().items():
            if self.heavy_positions is None or list(map(len, rows)) != list(map(len, self.heavy_positions)):
                raise ValueError(f"the measurement's {name} does not have one row per position in heavy_positions")

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
        return _gram(self.sketches, self.sq_norms)

    @property
    def n_token_probes(self) -> int:
        """K, the number of random directions that token scores were projected on; 0 for none."""
        return self.token_projections[0].shape[1] if self.token_projections else 0

    def token_scores(self) -> list[TokenScores] | None:
        """What is known of each sequence's token scores; None when neither probes nor exact tokens were measured."""
        if self.token_projections is None and self.heavy_positions is None:
            return None
        nothing = np.zeros(0)
        return [
            TokenScores(
                None if self.token_projections is None else self.token_projections[row],
                nothing.astype(np.int64) if self.heavy_positions is None else self.heavy_positions[row],
                nothing if self.heavy_sq_norms is None else self.heavy_sq_norms[row],
                None if self.heavy_sketches is None else self.heavy_sketches[row],
                mask,
            )
            for row, mask in enumerate(self.rollouts.masks)
        ]

    @property
    def token_energy(self) -> list[np.ndarray] | None:
        r"""For each sequence, (T_i,) :math:`\lVert s_t\rVert^2`, unbiased: see :meth:`TokenScores.energy`."""
        self._warn_without_probes(1, "token energies")
        parts = self.token_scores()
        return None if parts is None else [part.energy() for part in parts]

    @property
    def token_energy_stderr(self) -> list[np.ndarray] | None:
        """For each sequence, (T_i,) standard errors of the token energies, 0 where they are exact."""
        self._warn_without_probes(1, "token energies")
        parts = self.token_scores()
        return None if parts is None else [part.energy_stderr() for part in parts]

    @property
    def cumulative_energy(self) -> list[np.ndarray] | None:
        r"""For each sequence, (T_i,) :math:`W_t = \sum_{u\le t}\lVert s_u\rVert^2`, unbiased."""
        self._warn_without_probes(1, "cumulative energies")
        parts = self.token_scores()
        return None if parts is None else [part.cumulative_energy() for part in parts]

    @property
    def cumulative_energy_stderr(self) -> list[np.ndarray] | None:
        """For each sequence, (T_i,) standard errors of the cumulative energies, from the spread of the probes."""
        self._warn_without_probes(2, "standard errors of cumulative energies")
        parts = self.token_scores()
        return None if parts is None else [part.cumulative_energy_stderr() for part in parts]

    @property
    def token_cross(self) -> list[np.ndarray] | None:
        r"""For each sequence, (T_i,) :math:`\langle s_t, S\rangle`, unbiased: see :meth:`TokenScores.cross`."""
        self._warn_without_probes(1, "inner products of light tokens")
        parts = self.token_scores()
        if parts is None:
            return None
        sketches = [None] * len(self) if self.sketches is None else self.sketches
        return [part.cross(sketch) for part, sketch in zip(parts, sketches, strict=True)]

    def select(self, index: np.ndarray | Sequence[int] | slice) -> Measurement:
        """The sequences at the given positions, in that order."""
        rows = np.arange(len(self))[index]

        def cut(part: Measurement | WeightedGradients) -> dict[str, Any]:
            table = part.sq_norms_by_block.iloc[rows].reset_index(drop=True)
            return {"sq_norms_by_block": table, "sketches": None if part.sketches is None else part.sketches[rows]}

        per_sequence = self._ragged() | self._heavy()
        return replace(
            self,
            rollouts=self.rollouts.select(rows),
            **cut(self),
            **{name: [values[row] for row in rows] for name, values in per_sequence.items()},
            weighted={name: WeightedGradients(**cut(part)) for name, part in self.weighted.items()},
        )

    def _warn_without_probes(self, needed: int, what: str) -> None:
        parts = self.token_scores() if self.n_token_probes < needed else None
        if parts is not None and any(part.light.any() for part in parts):
            warnings.warn(
                f"{what} are NaN on tokens that were not measured exactly, since token_probes is "
                f"{self.n_token_probes}: measure with token_probes={max(needed, 32)}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _ragged(self) -> dict[str, list[np.ndarray]]:
        """The fields with a row per token that there are."""
        optional = {name: getattr(self, name) for name in ("ref_logprobs", "token_projections")}
        found = {name: getattr(self, name) for name in _RAGGED}
        return found | {name: rows for name, rows in optional.items() if rows is not None}

    def _heavy(self) -> dict[str, list[np.ndarray]]:
        """The fields with a row per exactly measured token that there are."""
        found = {name: getattr(self, name) for name in _HEAVY}
        return {name: rows for name, rows in found.items() if rows is not None}

    @classmethod
    def concatenate(cls, parts: Iterable[Measurement]) -> Measurement:
        """Stack measurements of the same policy, parameters and sketch; the first one's metadata is kept, with what was
        not finite in any.

        Raises:
            ValueError: when there are none, or they differ in blocks, sketches, weightings or reference policy.
        """
        parts = list(parts)
        if not parts:
            raise ValueError("parts is empty: there are no measurements to concatenate")
        for name in _ALIKE:
            found = {str(part.metadata.get(name)) for part in parts}
            if len(found) > 1:
                raise ValueError(f"measurements differ in {name} ({', '.join(sorted(found))}): measure them alike")
        for name, kinds in (
            ("ref_logprobs", {part.ref_logprobs is None for part in parts}),
            ("token_projections", {part.token_projections is None for part in parts}),
            ("the tokens measured exactly", {tuple(part._heavy()) for part in parts}),
            ("the names of their token_weights", {tuple(part.weighted) for part in parts}),
        ):
            if len(kinds) > 1:
                raise ValueError(f"measurements differ in {name}: measure them alike")
        per_sequence = [part._ragged() | part._heavy() for part in parts]
        ragged: dict[str, Any] = {
            name: [values for part in per_sequence for values in part[name]] for name in per_sequence[0]
        }
        return cls(
            Rollouts.concatenate(part.rollouts for part in parts),
            **_stacked(parts),
            **ragged,
            weighted={
                name: WeightedGradients(**_stacked([part.weighted[name] for part in parts]))
                for name in parts[0].weighted
            },
            metadata=parts[0].metadata
            | {"not_finite": [lost for part in parts for lost in part.metadata.get("not_finite", [])]},
        )

    def save(self, folder: str | os.PathLike[str], token_dtype: str = "float32") -> None:
        """Write ``rollouts.parquet``, ``tensors.safetensors`` and ``measurement.json``: all of the folder or none.

        Args:
            folder: where to.
            token_dtype: "float32" or "float16", of token projections and of the sketches of exactly measured tokens.

        Raises:
            ValueError: when a projection is too large for ``token_dtype``, or the type is another.
        """
        tensors = {name: np.concatenate(rows) for name, rows in (self._ragged() | self._heavy()).items()}
        if self.heavy_positions is not None:
            tensors["heavy_counts"] = np.array([len(rows) for rows in self.heavy_positions], dtype=np.int64)
        for name in _NARROWED & set(tensors):
            tensors[name] = _narrowed(name, tensors[name], token_dtype)
        for prefix, part in {"": self, **{f"weighted/{name}/": part for name, part in self.weighted.items()}}.items():
            tensors[f"{prefix}sq_norms_by_block"] = part.sq_norms_by_block.to_numpy(dtype=np.float64)
            if part.sketches is not None:
                tensors[f"{prefix}sketches"] = part.sketches
        # safetensors writes an array's memory as it lies: a transposed one would come back scrambled.
        tensors = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        with atomic_path(folder) as partial:
            partial.mkdir()
            self.rollouts.to_parquet(partial / "rollouts.parquet")
            save_file(tensors, partial / "tensors.safetensors")
            write_json(
                partial / "measurement.json",
                {
                    "block_names": list(self.sq_norms_by_block),
                    "weighted": list(self.weighted),
                    "metadata": self.metadata,
                },
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

        def gradients(prefix: str) -> dict[str, Any]:
            norms = pd.DataFrame(tensors[f"{prefix}sq_norms_by_block"], columns=described["block_names"])
            return {"sq_norms_by_block": norms, "sketches": tensors.get(f"{prefix}sketches")}

        optional = [name for name in ("ref_logprobs", "token_projections") if name in tensors]
        per_token: dict[str, Any] = {name: np.split(tensors[name], ends) for name in (*_RAGGED, *optional)}
        if "heavy_counts" in tensors:
            heavy_ends = np.cumsum(tensors["heavy_counts"])[:-1]
            per_token |= {name: np.split(tensors[name], heavy_ends) for name in _HEAVY if name in tensors}
        return Measurement(
            rollouts,
            **gradients(""),
            **per_token,
            weighted={
                name: WeightedGradients(**gradients(f"weighted/{name}/")) for name in described.get("weighted", ())
            },
            metadata=described["metadata"],
        )
    except (SafetensorError, json.JSONDecodeError, KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"the measurement in {folder} cannot be read ({error}): remove it and measure again"
        ) from error


def _gram(sketches: np.ndarray | None, sq_norms: np.ndarray) -> np.ndarray:
    if sketches is None:
        raise ValueError("this measurement holds no sketches: measure with sketch_dim, for example 16384")
    wide = sketches.astype(np.float64)
    gram = wide @ wide.T
    np.fill_diagonal(gram, sq_norms)
    return gram


def _narrowed(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype not in ("float32", "float16"):
        raise ValueError(f'token_dtype is {dtype!r}: choose "float32" or "float16"')
    largest = np.abs(values).max(initial=0.0)
    if largest > np.finfo(dtype).max:
        raise ValueError(f'{name} reach {largest:.3g}, too large for {dtype}: save with token_dtype="float32"')
    return values.astype(dtype)


def _stacked(parts: Sequence[Measurement | WeightedGradients]) -> dict[str, Any]:
    """Norms and sketches of several parts, one after the other."""
    sketches = [part.sketches for part in parts if part.sketches is not None]
    return {
        "sq_norms_by_block": pd.concat([part.sq_norms_by_block for part in parts], ignore_index=True),
        "sketches": np.concatenate(sketches) if sketches else None,
    }
