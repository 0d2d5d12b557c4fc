"""What the cells of a sweep found, joined: one table, and a figure against each setting that varies."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from gradstats import plots
from gradstats.analyses import registry
from gradstats.analyses.printed import ReprMixin
from gradstats.config.experiment import FiguresSection
from gradstats.plots.save import sample_size_of, write_sample_size
from gradstats.report.figures import styled
from gradstats.report.run_tables import numbers_of_run
from gradstats.report.saved_results import (
    MEANS,
    SavedResults,
    differing_settings,
    prompt_means,
    read_results,
    setting_named,
)
from gradstats.stats.jackknife import Interval, mean_statistic
from gradstats.stats.length_scaling.diagnostics import alpha_difference
from gradstats.stats.variance.quantities import JUDGED
from gradstats.system.files import read_json, write_csv, write_json
from gradstats.system.outputs import claim, csv_with

COLUMNS = ("cell", "minus", "quantity", "difference", "difference_low", "difference_high", "n_prompts")
_LEAST_PROMPTS = 3
# Of more cells, only the differences from the first are returned: pairs grow with the square.
_MOST_CELLS = 12


def paired_differences(cells: Mapping[str, SavedResults]) -> pd.DataFrame:
    r"""Return the differences between each two cells that answer the same prompts.

    A mean (``mean_length``, ``mean_reward``) is that over prompts of a prompt's mean, and its difference has Student's
    t interval over prompts of the differences prompt by prompt. The difference of α is that of
    :func:`gradstats.stats.alpha_difference`, where both lines are fitted by least squares.
    """
    known = {cell: results for cell, results in cells.items() if results.points is not None}
    prompts = {cell: _prompts(results) for cell, results in known.items()}
    names = list(known)
    pairs = combinations(names, 2) if len(names) <= _MOST_CELLS else product(names[:1], names[1:])
    rows = []
    for one, other in pairs:
        if len(prompts[one]) < _LEAST_PROMPTS or prompts[one] != prompts[other]:
            continue
        first, second = known[one], known[other]
        # Later cells less earlier ones: a sweep's settings usually rise.
        for quantity, found in _differences(second, first, first.confidence_level).items():
            rows.append(dict(zip(COLUMNS, (other, one, quantity, *found, len(prompts[one])), strict=True)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _prompts(results: SavedResults) -> frozenset[str]:
    return frozenset() if results.points is None else frozenset(map(str, results.points["prompt_id"]))


def _differences(one: SavedResults, other: SavedResults, level: float) -> dict[str, Interval]:
    """Return quantity → difference with its interval, of two cells with the same prompts."""
    points = [results.points for results in (one, other) if results.points is not None]
    found: dict[str, Interval] = {}
    if all(results.alpha is not None and results.alpha.get("method", "ols") == "ols" for results in (one, other)):
        try:
            alpha = alpha_difference(*points)
        except ValueError:  # too few different lengths, as in a cell whose α could not be fitted
            pass
        else:
            found["alpha"] = (alpha.difference, *alpha.confidence_interval(level))
    for name, column in MEANS.items():
        if all(column in frame for frame in points):
            means = [prompt_means(frame, column) for frame in points]
            if np.isfinite(means).all():
                found[name] = mean_statistic(means[0] - means[1]).estimate().with_interval(level)
    return found


#: The file that lists the cells of a sweep, in the folder that holds them.
LISTED = "sweep.json"
#: The joined results.
TABLE = "sweep.csv"
#: The paired differences between cells.
DIFFERENCES = "cell_differences.csv"
DIFFERENCES_TABLE = csv_with(COLUMNS, "the table of a sweep's paired differences")
# What all cells should have in common to be read from one axis.
_SHARED = ("reference", "target", "metric", "confidence_level")


@dataclass(frozen=True, repr=False)
class SweepResult(ReprMixin):
    """The saved results of a sweep.

    Attributes:
        path: the folder of the sweep.
        name: of the sweep.
        varied: the names of the settings that vary.
        settings: cell → its values of them, in the order of the file.
        results: cell → its results; cells that have none yet are missing.
    """

    printed_columns: ClassVar[tuple[str, ...]] = (
        "cell",
        "alpha",
        "mean_length",
        "mean_reward",
        "estimator",
        "ratio",
        JUDGED.name,
    )

    path: Path
    name: str
    varied: list[str]
    settings: dict[str, dict[str, object]]
    results: dict[str, SavedResults]

    @property
    def missing(self) -> list[str]:
        """The cells that have no results yet."""
        return [cell for cell in self.settings if cell not in self.results]

    def to_frame(self) -> pd.DataFrame:
        r"""Return one row for each cell and estimator; one for a cell whose comparison was not possible.

        Columns: ``cell``; each setting that varies; of the cell ``n_prompts``, ``n_completions``,
        ``truncated_share``, and ``mean_length``, ``mean_reward`` and ``alpha`` with ``_low`` and ``_high``; then the
        columns of its ``variance.csv`` (``estimator``, ``group_size``, ``ratio``, …). Means are those of the prompts'
        means, with Student's t interval over prompts at the level of the cell's comparison. α is that of the cell's
        ``alpha.json``, at the level stated there.
        """
        no_comparison = pd.DataFrame({"estimator": [None]})
        frames = {
            cell: no_comparison if results.variance is None else results.variance
            for cell, results in self.results.items()
        }
        joined = self._joined(frames, _numbers)
        attrs = [results.variance.attrs for results in self.results.values() if results.variance is not None]
        shared = {key for key in _SHARED if attrs and all(one.get(key) == attrs[0].get(key) for one in attrs)}
        joined.attrs = {key: attrs[0][key] for key in sorted(shared) if key in attrs[0]}
        return joined

    def differences(self) -> pd.DataFrame:
        """Return how far α, mean length and mean reward lie apart between cells, paired over prompts.

        Cells that answer the same prompts are correlated, so that their difference is known better than their intervals
        suggest. Columns: ``cell``, ``minus`` (the cell that is subtracted), ``quantity``, ``difference`` with ``_low``
        and ``_high``, ``n_prompts``; a pair of cells with other prompts has no rows.
        Of more than 12 cells, only the differences from the first are returned.
        """
        return paired_differences(self.results)

    def blocks_frame(self) -> pd.DataFrame:
        """Return α by block of parameters in each cell: ``cell``, each setting that varies, then the blocks' columns.

        Those are ``block, alpha, alpha_low, alpha_high, …, share_of_sq_norm``, with ``total`` as the last block of a
        cell; a cell in which they were not measured has no rows.
        """
        blocks = {cell: results.table("alpha_by_block") for cell, results in self.results.items()}
        return self._joined({cell: frame for cell, frame in blocks.items() if frame is not None}, lambda results: {})

    def _joined(
        self, frames: Mapping[str, pd.DataFrame], of_cell: Callable[[SavedResults], Mapping[str, object]]
    ) -> pd.DataFrame:
        """Return tables of cells below each other, behind the name, the settings and other numbers of the cell."""
        rows = []
        for cell, frame in frames.items():
            known = {"cell": cell, **_flat(self.settings[cell], self.varied), **of_cell(self.results[cell])}
            table = frame.drop(columns=[name for name in known if name in frame]).reset_index(drop=True)
            table.attrs = {}  # which cannot be compared when tables are joined
            rows.append(pd.concat([pd.DataFrame(known, index=table.index), table], axis=1))
        return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=["cell", *self.varied])


@dataclass(frozen=True)
class SweepList:
    """The cells that the folder of a sweep lists: folder → settings that vary."""

    name: str
    varied: list[str]
    settings: dict[str, dict[str, object]]


def read_sweep(folder: str | os.PathLike[str], *, without: Collection[str] = ()) -> SweepResult:
    """Read what the finished cells of a sweep saved; needs no model.

    Args:
        folder: the folder of the sweep.
        without: cells to leave out.

    Raises:
        FileNotFoundError: when it is not the folder of a sweep.
        ValueError: when a file is damaged, or a cell was run with other settings than are listed.
    """
    path = Path(folder)
    listed = read_sweep_list(path)
    results = {}
    for cell, settings in listed.settings.items():
        finished = any((path / cell / f"{name}.json").exists() for name in registry.OF_EVERY_RUN)
        if cell in without or not finished:
            continue
        results[cell] = read_results(path / cell)
        for name, value in settings.items():
            found = setting_named(results[cell].settings, name)
            if value is not None and found != value:
                raise ValueError(
                    f"{path / cell} was run with {name}={found!r}, and {path / LISTED} lists it with {value!r}: "
                    "repeat `gradstats run`, or move that folder away"
                )
    for setting, values in differing_settings(list(results.values())).items():
        if not _is_varied(setting, listed.varied):
            by_cell = ", ".join(f"{cell}: {value}" for cell, value in zip(results, values, strict=True))
            warnings.warn(
                f"the cells of {path} differ in {setting}, which the sweep does not vary ({by_cell}): they do not "
                "measure the same thing",
                UserWarning,
                stacklevel=2,
            )
    return SweepResult(path, listed.name, listed.varied, listed.settings, results)


def _is_varied(setting: str, varied: Collection[str]) -> bool:
    """Return whether a sweep varies a setting, or an entry of it; a sampler may take the policy's temperature."""
    names = {setting, "policy.temperature"} if setting == "sampling.temperature" else {setting}
    return any(name in names or name.startswith(f"{setting}.") for name in varied)


def is_sweep(path: Path) -> bool:
    """Return whether a folder is that of a sweep."""
    return (path / LISTED).is_file()


def read_sweep_list(path: Path) -> SweepList:
    """Read which cells the folder of a sweep lists."""
    if not is_sweep(path):
        raise FileNotFoundError(
            f"{path} is not the folder of a sweep: create one with `gradstats run FILE --out {path}`"
        )
    listed = read_json(path / LISTED)
    try:
        settings = {str(cell["folder"]): dict(cell["settings"]) for cell in listed["cells"]}
        found = SweepList(str(listed["name"]), [str(setting) for setting in listed["varied"]], settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / LISTED} does not list the cells of a sweep: repeat `gradstats run`") from error
    for cell in settings:
        if Path(cell).name != cell or cell == "..":
            raise ValueError(f"{path / LISTED} names the folder {cell!r}, which is not in {path}")
    return found


def write_sweep_list(path: Path, listed: SweepList) -> None:
    """Write which cells the folder of a sweep has, for :func:`read_sweep_list`."""
    cells = [{"folder": cell, "settings": settings} for cell, settings in listed.settings.items()]
    write_json(path / LISTED, {"name": listed.name, "varied": listed.varied, "cells": cells})


def write_sweep_results(result: SweepResult, figure_style: FiguresSection) -> list[Path]:
    """Write ``sweep.csv``, and a figure for each setting that takes several values; returns the paths."""
    frame = result.to_frame()
    if frame.empty:
        return []
    table = result.path / TABLE
    claim(table, csv_with(["cell", *result.varied], "the table of a sweep"))
    write_csv(table, frame)
    return [
        table,
        *_write_differences(result),
        *draw_sweep(frame, result.varied, result.path / "figures", figure_style),
    ]


def _write_differences(result: SweepResult) -> list[Path]:
    """Write the paired differences between cells, where any share their prompts; returns the path."""
    path = result.path / DIFFERENCES
    claim(path, DIFFERENCES_TABLE)
    frame = result.differences()
    if frame.empty:
        path.unlink(missing_ok=True)
        return []
    write_csv(path, frame)
    return [path]


def draw_sweep(frame: pd.DataFrame, varied: Sequence[str], folder: Path, figure_style: FiguresSection) -> list[Path]:
    """Draw what was found against each setting that takes several values; returns the paths.

    Settings that always change together are drawn once, against the first of them.
    """
    paths = []
    for setting in plots.varying_settings(frame, varied):
        with styled(figure_style) as current_figure:
            plots.plot_sweep(frame, setting, varied=varied)
            write_sample_size(current_figure(), sample_size_of(frame))
            name = setting.replace(".", "_")
            paths += plots.save_figure(current_figure(), folder / name, figure_style.formats, source=frame)
    return paths


def _numbers(results: SavedResults) -> dict[str, float]:
    """Return the numbers of a cell without α within prompts, which its own files have."""
    return {name: value for name, value in numbers_of_run(results).items() if not name.startswith("alpha_within")}


def _flat(settings: Mapping[str, object], varied: list[str]) -> dict[str, Any]:
    """Return one value for each setting, as text where it is not a single one; None where a cell does not state it."""
    return {
        name: value if isinstance(value := settings.get(name), str | int | float | bool | None) else str(value)
        for name in varied
    }
