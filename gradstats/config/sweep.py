"""A sweep: one experiment file in which some settings take several values."""

from __future__ import annotations

import copy
import glob
import hashlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradstats.config.experiment import (
    VARY,
    Experiment,
    experiment_of,
    find_experiment,
    in_its_folder,
    set_setting,
    settings_in,
    shipped_experiments,
    with_settings,
)
from gradstats.config.trust import refuse_untrusted

#: Settings whose values may be patterns, such as ``checkpoints/step-*``.
_PATTERNS = ("policy.name", "policy.adapter")
#: More cells than anyone runs; a few lines of lists can stand for billions.
_MOST_CELLS = 10_000
_LONGEST_NAME = 120
_PATTERN = re.compile(r"[*?\[]")
_NOT_IN_NAMES = re.compile(r"[^\w.=+,\-]+")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    settings: dict[str, object]  # these settings, each by its full name
    experiment: Experiment


@dataclass(frozen=True)
class Sweep:
    """An experiment whose settings vary from cell to cell."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """The names of all settings that vary."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.settings))


def varies(name_or_path: str) -> bool:
    """Return whether an experiment file has ``vary``, or a name is that of a sweep that comes with the project."""
    path = Path(name_or_path)
    if path.is_file():
        return VARY in settings_in(path)
    return name_or_path not in shipped_experiments() and name_or_path in shipped_experiments(sweeps=True)


def load_sweep(name_or_path: str | os.PathLike[str], overrides: Sequence[str] = (), *, trust: bool = False) -> Sweep:
    """Read a file with ``vary`` to run it, or a sweep that comes with the project by its name.

    ``vary`` is a mapping, every combination of whose values is a cell, or a list of the cells, each a mapping of its
    own settings. A name in a mapping may list several settings, separated by commas, which then take the same value:
    ``"policy.temperature, sampling.temperature": [0.6, 1.0]``. A value of ``policy.name`` or ``policy.adapter`` may be
    a pattern, such as ``out/checkpoint-*``, which stands for all folders that match, in the order of their numbers.
    """
    path = find_experiment(os.fspath(name_or_path), sweep=True)
    data, given = with_settings(settings_in(path), overrides), with_settings({}, overrides)
    vary = data.pop(VARY, None)
    given.pop(VARY, None)
    if not trust:  # before patterns are looked up
        for cell in _cells(path, vary, expand=False):
            refuse_untrusted(path, _with(data, cell), given)
    chosen = list(_cells(path, vary))
    for cell in chosen:
        for name in cell:
            if any(word.partition("=")[0].strip() == name for word in overrides):
                raise ValueError(f"{name} is set for all cells and varied by {path}: change {VARY} in the file")
    name = str(data.get("name", path.stem))
    experiment_of(path, _with(data, chosen[0]) | {"name": name})  # checks the name
    cells = []
    for cell, label in zip(chosen, _names(chosen), strict=True):
        experiment = experiment_of(path, _with(data, cell) | {"name": f"{name} {label}"})
        cells.append(Cell(label, cell, in_its_folder(experiment, path, trust)))
    return Sweep(name, tuple(cells))


def _cells(path: Path, vary: object, *, expand: bool = True) -> Iterator[dict[str, object]]:
    """Yield the settings of each cell: those listed, or every combination."""
    if isinstance(vary, list) and vary and all(isinstance(entry, Mapping) and entry for entry in vary):
        for entry in vary:
            yield from _combinations({name: [value] for name, value in entry.items()}, expand)
    elif isinstance(vary, Mapping) and vary:
        for name, values in vary.items():
            if not (isinstance(values, list) and values) and not _is_pattern(str(name), values):
                raise ValueError(f"{VARY} in {path}: {name} is {values!r}; give a list of values")
        yield from _combinations({str(name): values for name, values in vary.items()}, expand)
    else:
        raise ValueError(
            f"{path} varies nothing: give {VARY}, as in {VARY}: {{sampling.temperature: [0.8, 1.0]}}, or run it as "
            "one experiment"
        )


def _combinations(lists: Mapping[str, Any], expand: bool) -> Iterator[dict[str, object]]:
    """Yield every combination of some values, in which the last setting changes first."""
    axes = []
    for key, values in lists.items():
        names = [name.strip() for name in str(key).split(",")]
        listed = values if isinstance(values, list) else [values]
        expanded = [one for value in listed for one in (_expanded(names[0], value) if expand else [value])]
        axes.append([dict.fromkeys(names, value) for value in expanded])
    if math.prod(map(len, axes)) > _MOST_CELLS:
        raise ValueError(f"{VARY} stands for {math.prod(map(len, axes)):,} cells: give at most {_MOST_CELLS:,}")
    for chosen in itertools.product(*axes):
        yield {name: value for settings in chosen for name, value in settings.items()}


def _is_pattern(name: str, value: object) -> bool:
    return name in _PATTERNS and isinstance(value, str) and bool(_PATTERN.search(value))


def _expanded(name: str, value: object) -> list[object]:
    """Return a value, or the folders that it stands for, ``step-90`` before ``step-100``."""
    if not _is_pattern(name, value):
        return [value]
    found = sorted(
        glob.glob(str(value)), key=lambda path: [int(part) if part.isdigit() else part for part in _parts(path)]
    )
    if not found:
        raise FileNotFoundError(f"no folder matches {name}={value!r}: patterns are relative to the working directory")
    return list(found)


def _parts(path: str) -> list[str]:
    """Split a path into texts and numbers, in turn."""
    return re.split(r"(\d+)", path)


def _with(data: Mapping[str, Any], cell: Mapping[str, object]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(data))
    for name, value in cell.items():
        set_setting(changed, name, value)
    return changed


def _names(cells: Sequence[Mapping[str, object]]) -> list[str]:
    """Name each cell by its settings; settings that always agree with one before are left out."""
    columns = list(dict.fromkeys(name for cell in cells for name in cell))
    kept: list[str] = []
    for name in columns:
        if not any(all(cell.get(name) == cell.get(other) for cell in cells) for other in kept):
            kept.append(name)
    last = Counter(name.rpartition(".")[2] for name in kept)
    short = {name: name.rpartition(".")[2] if last[name.rpartition(".")[2]] == 1 else name for name in kept}
    labels = [",".join(f"{short[name]}={_shown(name, cell[name])}" for name in kept if name in cell) for cell in cells]
    names: list[str] = []
    for label in labels:
        name = _NOT_IN_NAMES.sub("_", label)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        names.append(name if name not in names else next(one for one in numbered if one not in names))
    return names


def _shown(name: str, value: object) -> str:
    return Path(value).name if name in _PATTERNS and isinstance(value, str) else str(value)
