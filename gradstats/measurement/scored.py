"""Completions of a run that measures some of its prompts: proxies of the others, which a forward pass gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradstats.rollouts.schema import read_checked, write_checked
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.system.files import digest
from gradstats.system.lazy_imports import pa, pd
from gradstats.system.shards import ORIGIN, planned_shards, refuse_foreign_shard

#: The folder, in that of a run's measurement, of a file for each shard: of its completions that are not measured.
SCORED = "scored"
#: The proxies that a forward pass gives, see :func:`gradstats.measurement.measurement.forward_proxies`.
FORWARD = ("logit", "surprisal", "entropy")
_KEY = ["prompt_id", "sample_id"]
_PREFIX = "proxy_"


@dataclass(frozen=True)
class ForwardProxies:
    """Proxies of some completions."""

    completions: pd.DataFrame  # prompt_id, sample_id, and each proxy as a column of its name
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rollouts: Rollouts, rows: np.ndarray, proxies: Mapping[str, np.ndarray]) -> ForwardProxies:
        """Return the proxies of the completions at some positions, of which there may be none."""
        frame = pd.DataFrame(rollouts.frame[_KEY].iloc[rows]).reset_index(drop=True)
        return cls(frame.assign(**{name: proxies.get(name, np.zeros(0)) for name in FORWARD}))

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all, with its checksum."""
        types = dict(zip(_KEY, (pa.string(), pa.int64()), strict=True))
        columns = {name: pa.array(self.completions[name].tolist(), type=kind) for name, kind in types.items()}
        columns |= {f"{_PREFIX}{name}": pa.array(self.completions[name], type=pa.float64()) for name in FORWARD}
        write_checked(pa.table(columns), self.metadata, Path(path))


def read_forward_proxies(path: str | os.PathLike[str]) -> ForwardProxies:
    """Read what :meth:`ForwardProxies.to_parquet` wrote."""
    table = read_checked(Path(path), "proxies")
    missing = {*_KEY, *(f"{_PREFIX}{name}" for name in FORWARD)} - set(table.columns)
    if missing:
        raise ValueError(f"{path} holds no {min(missing)}: remove it and repeat `gradstats run`")
    named = {name.removeprefix(_PREFIX): values for name, values in table.columns.items()}
    return ForwardProxies(pd.DataFrame(named), table.metadata)


def all_scored(
    folder: Path, plan_file: Path, measured: Rollouts, proxies: Mapping[str, np.ndarray], partial: bool
) -> pd.DataFrame | None:
    """Return every completion of a run with its proxies, those of the measured ones first; None where all is measured.

    Args:
        folder: of the run's measurement.
        plan_file: that says how many shards there are.
        measured: the completions that were measured.
        proxies: of these.
        partial: leave out shards that are missing.

    Returns:
        ``prompt_id``, ``sample_id``, ``reward``, ``length`` and the proxies of :data:`FORWARD`.
    """
    if not (folder / SCORED).is_dir() or not set(FORWARD) <= set(proxies):
        return None
    planned = planned_shards(folder / SCORED, ".parquet", plan_file=plan_file, partial=partial)
    shards = [(path, read_forward_proxies(path)) for path in ([] if planned is None else planned.paths)]
    for path, shard in shards:
        if ORIGIN in shard.metadata:
            refuse_foreign_shard(shard.metadata, path, planned, partial=partial)
    own = pd.DataFrame(measured.frame[_KEY]).assign(**{name: proxies[name] for name in FORWARD})
    found = pd.concat([own, *(shard.completions for _, shard in shards if len(shard.completions))], ignore_index=True)
    if len(found) == len(own):
        return None
    drawn = read_rollouts(folder.parent / "rollouts", partial=partial)
    about = pd.DataFrame(drawn.frame[[*_KEY, "reward"]]).assign(length=drawn.lengths)
    return found.merge(about, on=_KEY, how="left", validate="one_to_one")


def measured_order(prompt_ids: list[list[str]], seed: int) -> list[str]:
    """Return the prompts of a run in the order in which they are measured, at random, those of earlier rounds first.

    A larger number of them contains a smaller one, also where the run has grown by prompts in between.

    Args:
        prompt_ids: the prompts that the run had in each round of sampling.
        seed: of the order.
    """
    found: dict[str, None] = {}
    for of_round in prompt_ids:
        new = (name for name in of_round if name not in found)
        found |= dict.fromkeys(sorted(new, key=lambda name: digest([seed, name])))
    return list(found)
