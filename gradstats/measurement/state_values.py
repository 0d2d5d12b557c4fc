"""State values of completions, as a value head or completed prefixes give them, and their files in a run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradstats.rollouts.schema import read_checked, write_checked
from gradstats.rollouts.table import Rollouts
from gradstats.system.files import digest, file_digest
from gradstats.system.lazy_imports import pa, pd
from gradstats.system.shards import (
    PLAN,
    IncompleteRunError,
    Shards,
    planned_shards,
    read_origin,
    refuse_foreign_shard,
)

#: The file of the values of a fitted head; those of prefixes lie in numbered shards beside it.
FITTED = "fitted.parquet"
_KEY = ["prompt_id", "sample_id"]


@dataclass(frozen=True)
class StateValues:
    """One value for each token of some completions, of the state before it; NaN where there is none."""

    completions: pd.DataFrame  # ``prompt_id``, ``sample_id`` and the ``reward`` that the values predict
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

    def with_earlier(self, earlier: StateValues) -> StateValues:
        """Return the earlier values of completions that had some, unless one of them has another reward now."""
        place = {tuple(key): row for row, key in enumerate(self.completions[_KEY].itertuples(index=False))}
        rows = [place.get(tuple(key)) for key in earlier.completions[_KEY].itertuples(index=False)]
        rewards = self.completions["reward"].to_numpy()
        kept = {row: number for number, row in enumerate(rows) if row is not None}
        if any(rewards[row] != earlier.completions["reward"].iloc[number] for row, number in kept.items()):
            return self
        values = [earlier.values[kept[row]] if row in kept else own for row, own in enumerate(self.values)]
        return replace(self, values=values)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all, with its checksum."""
        columns = {name: pa.array(self.completions[name].tolist()) for name in self.completions}
        values = pa.array([row.tolist() for row in self.values], type=pa.list_(pa.float64()))
        write_checked(pa.table(columns | {"values": values}), self.metadata, Path(path))

    def for_rollouts(self, rollouts: Rollouts) -> list[np.ndarray]:
        """Return the values of some completions, in their order."""
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
    """Read what :meth:`StateValues.to_parquet` wrote."""
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


def stored_values(folder: Path, rollouts: Rollouts) -> dict[str, list[np.ndarray]]:
    """Return the state values of a run's completions by the field that holds them.

    A warning says why some are left out; there are none where the run made none.
    """
    found: dict[str, list[np.ndarray]] = {}
    for name, read in (("fitted_values", _fitted), ("values", _of_prefixes)):
        try:
            stored = read(folder)
            if stored is not None:
                found[name] = stored.for_rollouts(rollouts)
        except ValueError as error:
            warnings.warn(
                f"the state values in {folder} are left out ({error}): `gradstats run` makes them again, "
                "once what is damaged has been removed",
                UserWarning,
                stacklevel=3,
            )
    return found


class StoredValues:
    """The state values of a run, read shard by shard; those of a fitted head lie in one file, which is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fitted = _fitted(folder)
        self._of_prefixes = Shards(folder, ".parquet", read_state_values, StateValues.to_parquet, read_origin(folder))

    def of_shard(self, number: int, rollouts: Rollouts) -> dict[str, list[np.ndarray]]:
        """Return those of the completions of a shard by the field that holds them."""
        found = {} if self._fitted is None else {"fitted_values": self._fitted}
        if self._of_prefixes.path(number).exists():
            found["values"] = self._of_prefixes.read_one(number)
        return {name: values.for_rollouts(rollouts) for name, values in found.items()}


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
