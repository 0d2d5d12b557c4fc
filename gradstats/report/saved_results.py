"""The saved numbers of a run, read back for figures, tables and reports; needs no model and no measurement."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np
import pandas as pd

from gradstats.config.experiment import Experiment, FiguresSection
from gradstats.config.metrics import EUCLIDEAN
from gradstats.report.recorded_experiment import read_recorded_experiment
from gradstats.report.recorded_tables import refuse_changed_tables
from gradstats.report.saved_frames import read_added
from gradstats.report.saved_tokens import SavedTokens, read_tokens
from gradstats.stats import LengthScalingFit, fit_length_scaling
from gradstats.stats.variance.quantities import shown_in
from gradstats.system.files import read_csv, read_json

# Settings in which two runs must agree to answer the same question.
SETTINGS_OF_THE_QUESTION = (
    "policy.name",
    "policy.revision",
    "policy.temperature",
    "prompts.source",
    "prompts.settings",
    "sampling.group_size",
    "sampling.max_new_tokens",
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
    "sampling.min_p",
    "sampling.repetition_penalty",
    "sampling.reward",
    "sampling.system_prompt",
    "sampling.sampler",
    "measurement.params",
    "variance.group_size",
    "variance.reference",
)

#: Tables in addition to the variance comparison, where the data allowed them.
BREAKDOWNS = (
    "group_sizes",
    "equivalent_group_size",
    "allocation",
    "length_bins",
    "success_bins",
    "ratios",
    "ratio_clipping",
)


class SavedAlpha(TypedDict):
    """What ``alpha.json`` states; a number that is not finite was written as null."""

    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    method: str
    interval: str
    r_squared: float | None
    n: int
    n_prompts: int
    confidence_level: NotRequired[float]
    within_prompt: NotRequired[dict[str, float | None] | None]
    by_block: NotRequired[list[dict[str, object]] | None]
    sentences: NotRequired[list[str]]
    metric: NotRequired[str]


# Without these there is no exponent.
_ALPHA = ("alpha", "alpha_low", "alpha_high")


class SavedManifest(TypedDict, total=False):
    """The entries of ``manifest.json`` that are read; an earlier version may have written fewer."""

    experiment: str
    policy: dict[str, object]
    sampler: dict[str, object] | None
    n_prompts: int
    n_sequences: int
    n_truncated: int
    mean_reward: float | None
    engine: str
    sampler_gap: dict[str, object] | None
    remarks: list[str]


@dataclass(frozen=True)
class SavedResults:
    """The saved results of a run.

    Attributes:
        path: the run directory, or a folder that holds a copy of its results.
        name: of the experiment.
        settings: every setting, flat: ``"sampling.top_k"`` → value; empty where experiment.yaml is missing.
        manifest: versions, commit, seeds, timings; empty where it has not been written.
        alpha: the contents of ``alpha.json``, or None.
        points: one row per completion: prompt_id, length, sq_norm, and where known reward and truncated; or None.
        variance: the variance table with its ``.attrs``, or None.
        breakdowns: name → further table, of those that were written: ``group_sizes``, ``equivalent_group_size``,
            ``allocation``, ``length_bins``, ``success_bins``, ``ratios``, ``ratio_clipping``.
        tokens: the token-level results, or None.
        added: name → table that a command added, with its ``.attrs``: curves along a parameter.
    """

    path: Path
    name: str
    settings: dict[str, object]
    manifest: SavedManifest
    alpha: SavedAlpha | None
    points: pd.DataFrame | None
    variance: pd.DataFrame | None
    breakdowns: dict[str, pd.DataFrame] = field(default_factory=dict)
    tokens: SavedTokens | None = None
    added: dict[str, pd.DataFrame] = field(default_factory=dict)

    @cached_property
    def fit(self) -> LengthScalingFit | None:
        """The length-scaling fit of the saved points."""
        return self._fit_of("sq_norm")

    @cached_property
    def energy_fit(self) -> LengthScalingFit | None:
        """The length-scaling fit of the summed token energies, where they were measured."""
        return self._fit_of("energy")

    @property
    def by_block(self) -> pd.DataFrame | None:
        """α of each block, where blocks were measured."""
        rows = None if self.alpha is None else self.alpha.get("by_block")
        return _in_metric(pd.DataFrame(rows), self.metric) if rows else None

    @property
    def metric(self) -> str:
        """The label of the metric that was measured."""
        of_variance = {} if self.variance is None else self.variance.attrs
        return str((self.alpha or {}).get("metric") or of_variance.get("metric") or EUCLIDEAN)

    @property
    def published(self) -> str | None:
        """The data set of published points that the experiment lays under its fit."""
        name = self.settings.get("length_scaling.published")
        return None if name is None else str(name)

    @property
    def figure_style(self) -> FiguresSection:
        """Venue, width, theme and formats that the experiment states for its figures."""
        prefix = "figures."
        entries = {key.removeprefix(prefix): value for key, value in self.settings.items() if key.startswith(prefix)}
        return FiguresSection.model_validate(entries)

    def _fit_of(self, column: str) -> LengthScalingFit | None:
        """Return the length-scaling fit of a column of the points; None where it, or α, was not written."""
        if self.points is None or self.alpha is None or column not in self.points:
            return None
        fit = fit_length_scaling(
            lengths=self.points["length"],
            sq_norms=self.points[column],
            groups=self.points["prompt_id"],
            method=self.alpha.get("method", "ols"),
            truncated=self.points.get("truncated"),
        )
        return replace(fit, metric=self.metric)


def read_results(path: str | os.PathLike[str], *, checked: bool = True) -> SavedResults:
    """Read what a run saved.

    Args:
        path: a run directory, or a folder with its ``alpha.json``, ``variance.csv`` and ``length_scaling.csv``.
        checked: compare the tables of a run directory with the checksums in its manifest; an analysis that has not
            written its manifest yet does not.

    Raises:
        FileNotFoundError: when there is no such folder, or it holds none of a run's numbers; states the command that
            writes them.
        ValueError: when a file is broken, or has changed since it was written.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a run directory: create one with `gradstats run EXPERIMENT --out {path}`"
        )
    if checked:
        refuse_changed_tables(path)
    alpha = _read_alpha(path)
    variance = _read_variance(path)
    if alpha is None and variance is None and not (path / "proxy_quality.csv").exists():
        state = "an unfinished run" if (path / "experiment.yaml").exists() else "not a run directory"
        source = path / "experiment.yaml" if (path / "experiment.yaml").exists() else "EXPERIMENT"
        raise FileNotFoundError(
            f"{path} is {state}: it holds neither alpha.json nor variance.csv; `gradstats run {source} --out {path}` "
            "makes them"
        )
    settings = _settings(path / "experiment.yaml")
    manifest = cast(SavedManifest, _read_json(path / "manifest.json") or {})
    points = _table(path, "length_scaling")
    breakdowns = {name: table for name in BREAKDOWNS if (table := _table(path, name)) is not None}
    saved = SavedResults(
        path=path,
        name=str(settings.get("name") or manifest.get("experiment") or path.resolve().name),
        settings=settings,
        manifest=manifest,
        alpha=alpha,
        points=None if points is None else _read_csv(points),
        variance=variance,
        breakdowns={name: _read_csv(table) for name, table in breakdowns.items()},
        tokens=read_tokens(path),
        added=read_added(path),
    )
    for frame in saved.breakdowns.values():
        _in_metric(frame, saved.metric)
    return saved


def differing_settings(runs: list[SavedResults]) -> dict[str, list[object]]:
    """Find settings that runs on the same axes should share and do not: name → one value per run."""
    differing = {}
    for name in SETTINGS_OF_THE_QUESTION:
        values = [run.settings.get(name) for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = values
    return differing


def run_labels(runs: list[SavedResults], without: Collection[str] = ()) -> list[str]:
    """Name each run for a legend, with the settings in which it differs from the others.

    Args:
        runs: the runs.
        without: settings that are stated elsewhere.
    """
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len({run.path for run in runs}):
        names = [str(run.path) for run in runs]
    differing = {name: values for name, values in differing_settings(runs).items() if name not in without}
    return [
        name + (f" ({', '.join(_setting(key, values[at]) for key, values in differing.items())})" if differing else "")
        for at, name in enumerate(names)
    ]


def _in_metric(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Record in a table's ``.attrs``, which its file does not hold, the metric of the run."""
    frame.attrs.setdefault("metric", metric)
    return frame


def _table(path: Path, name: str) -> Path | None:
    """Return the file of a table: a run keeps it in a folder of tables, a copy of its results next to the figures."""
    candidates = (path / folder / f"{name}.csv" for folder in ("tables", "figures", "."))
    return next((table for table in candidates if table.exists()), None)


def _setting(key: str, value: object) -> str:
    # A policy is named by the last component of its path.
    shown = Path(value).name if key == "policy.name" and isinstance(value, str) else value
    short = key.partition(".")[2] if key.startswith("sampling.") else key.replace(".name", "").replace(".source", "")
    return f"{short.replace('_', ' ')} {shown}"


def _settings(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    return flat_settings(read_recorded_experiment(path))


def flat_settings(experiment: Experiment) -> dict[str, object]:
    """Return every setting of an experiment, flat: ``"sampling.top_k"`` → value."""
    flat: dict[str, object] = {}
    for section, entries in experiment.model_dump().items():
        if isinstance(entries, dict):
            flat |= {f"{section}.{key}": value for key, value in entries.items()}
        else:
            flat[section] = entries
    # Without a temperature of its own, the sampler takes the policy's.
    if flat.get("sampling.temperature") is None:
        flat["sampling.temperature"] = flat["policy.temperature"]
    return flat


def setting_named(settings: Mapping[str, object], name: str) -> object:
    """Return a setting by its name, which may lie inside an entry, as ``"prompts.settings.steps"`` does; or None."""
    if name in settings:
        return settings[name]
    section, _, inside = name.rpartition(".")
    entry = setting_named(settings, section) if section else None
    return entry.get(inside) if isinstance(entry, Mapping) else None


def _read_alpha(path: Path) -> SavedAlpha | None:
    alpha = _read_json(path / "alpha.json")
    if alpha is not None:
        _refuse_incomplete(path / "alpha.json", _ALPHA, alpha)
    return cast(SavedAlpha | None, alpha)


def _read_variance(path: Path) -> pd.DataFrame | None:
    if not (path / "variance.csv").exists():
        return None
    frame = _read_csv(path / "variance.csv")
    _refuse_incomplete(path / "variance.csv", ("estimator", "trace_cov"), frame)
    frame.attrs |= _read_json(path / "variance.json") or {}
    for name in (f"{quantity}{end}" for quantity in shown_in("page") for end in ("", "_low", "_high")):
        if name not in frame:  # an earlier version did not estimate it
            frame[name] = np.nan
    return frame


def _refuse_incomplete(path: Path, needed: Iterable[str], there: Collection[object]) -> None:
    """Refuse a file that lacks what every version wrote.

    Raises:
        ValueError: naming the file and what it lacks.
    """
    missing = [name for name in needed if name not in there]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: restore it from a copy, or repeat the run")


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        return read_csv(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as CSV ({error}): repeat the run") from error


def _read_json(path: Path) -> dict[str, object] | None:
    return read_json(path) if path.exists() else None
