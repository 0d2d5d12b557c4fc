"""What a run directory holds, read from its files: settings, manifest, tables, and what commands add to it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import pandas as pd

from gradstats.analyses import registry
from gradstats.analyses.alpha import fit_of_points
from gradstats.analyses.declaration import POINTS, Analysis
from gradstats.config.experiment import Experiment, FiguresSection, read_experiment
from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN
from gradstats.plots.quantities import shown_in
from gradstats.stats import LengthScalingFit
from gradstats.stats.jackknife import mean_statistic
from gradstats.system.files import (
    atomic_path,
    changed_sentence,
    csv_text,
    file_digest,
    read_csv,
    read_json,
    write_csv,
    write_json,
)
from gradstats.system.late import Float, np
from gradstats.system.lock import only_writer
from gradstats.system.outputs import (
    Kind,
    csv_with,
    differing_entry,
    differing_rows,
    refuse_foreign,
    refuse_links,
    refuse_other_result,
    same_table,
)
from gradstats.system.shards import PLAN

#: What the ``.attrs`` of each breakdown state, among them the sentence that answers, in a run directory.
ANSWERS = Path("tables", "answers.json")
#: What follows the name of an estimate, and of the ends of its interval.
ENDS = ("", "_low", "_high")
_CHECKSUM = "# sha256 of the lines above, which record what was run: "


def write_recorded_experiment(path: Path, settings: str) -> None:
    """Record a run's settings."""
    with atomic_path(path) as partial:
        partial.write_text(f"{settings}{_CHECKSUM}{_sha256(settings)}\n", encoding="utf-8")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_recorded_experiment(path: Path) -> Experiment:
    """Read a run's settings; files of earlier versions have no checksum."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(changed_sentence(path)) from error
    settings, line, checksum = text.rpartition(_CHECKSUM)
    nameless = not line and re.search(r"[0-9a-f]{64}\s*\Z", text)  # a checksum whose words have changed
    if nameless or (line and checksum.strip() != _sha256(settings)):
        raise ValueError(changed_sentence(path))
    return read_experiment(path)


def is_recorded_experiment(path: Path) -> bool:
    """Return whether a file was written by :func:`write_recorded_experiment`."""
    return _CHECKSUM.encode() in path.read_bytes()


def is_run_directory(path: Path) -> bool:
    """Return whether a folder is a run directory: one with an ``experiment.yaml`` that a run recorded."""
    recorded = path / "experiment.yaml"
    return recorded.is_file() and ((path / "rollouts" / PLAN).exists() or is_recorded_experiment(recorded))


def enclosing_run(path: Path) -> Path | None:
    """Return the run directory that a path is or lies in, also through links; None where it lies in none."""
    places = (path, *path.absolute().parents, *path.resolve().parents)
    return next((folder for folder in places if is_run_directory(folder)), None)


@contextmanager
def writing_into(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of the run directory that a path is or lies in; nothing is locked where it lies in none."""
    run = enclosing_run(Path(path))
    if run is None:
        yield
        return
    with only_writer(run):
        refuse_links(run)
        yield


def refuse_inside_run(out: Path, *, source: Path | None = None) -> None:
    """Refuse to write a result over the files of a run, which belong together, or while a process works on the run."""
    run = enclosing_run(out)
    if run is not None and os.path.lexists(out) and (source is None or run.resolve() != source.resolve()):
        raise FileExistsError(f"{out} belongs to the run {run}: choose another path (--out)")
    with writing_into(out):
        pass


#: Attribute of a frame that was made from state values: the digest of those of the run.
STATE_VALUES = "state_values"


def save_frame(frame: pd.DataFrame, stem: Path, *, overwrite: bool = True) -> list[Path]:
    """Write a frame and its ``.attrs``; returns the two paths.

    Another frame that may be replaced is removed first, its attributes before its table, and the new attributes are
    written last: a process killed in between leaves no table beside the attributes of another.
    """
    make_room(frame, stem, overwrite=overwrite)
    table, about = frame_paths(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table, frame)
    write_json(about, attributes_of(frame))
    return [table, about]


def make_room(frame: pd.DataFrame, stem: Path, *, overwrite: bool) -> None:
    """Remove another frame that lies where one is to be written; nothing where it is the same."""
    refuse_foreign_frame(stem, list(map(str, frame)))
    table, about = frame_paths(stem)
    if not table.exists():
        return
    difference = _difference(frame, stem)
    refuse_other_result(table, difference, overwrite)
    if difference is not None:
        about.unlink(missing_ok=True)
        table.unlink()


def _difference(frame: pd.DataFrame, stem: Path, float_format: str | None = None) -> str | None:
    """Return how a frame that lies in files differs from another; None where it does not, or none lies there."""
    table, about = frame_paths(stem)
    if not table.exists():
        return None
    there, wanted = table.read_text(encoding="utf-8"), csv_text(frame, float_format=float_format)
    found = differing_rows(there, wanted, str(frame.attrs.get("parameter", frame.columns[0])))
    if found is None and about.exists():
        found = differing_entry(read_json(about), attributes_of(frame))
    return found or (None if same_table(there, wanted) else "other numbers")


def frame_paths(stem: Path) -> list[Path]:
    """Return where a frame and its attributes lie."""
    return [stem.with_suffix(".csv"), stem.with_suffix(".json")]


def attributes_of(frame: pd.DataFrame) -> dict[str, object]:
    """Return the ``.attrs`` of a frame as files keep them."""
    return {str(name): value for name, value in frame.attrs.items()}


def refuse_foreign_frame(stem: Path, columns: Sequence[str]) -> None:
    """Refuse to write a frame where something lies that is not an earlier one with these columns."""
    table, about = frame_paths(stem)
    refuse_foreign(table, csv_with(columns, "an earlier table of this command"))
    refuse_foreign(about, Kind("the settings of an earlier table", lambda _: table.is_file()))


def read_frame(table: Path) -> pd.DataFrame:
    """Return what :func:`save_frame` wrote, with its ``.attrs``; a number that is not finite is None among these."""
    try:
        frame = read_csv(table)
        about = table.with_suffix(".json")
        frame.attrs |= read_json(about) if about.exists() else {}
    except (ValueError, OSError) as error:
        raise ValueError(f"{table} cannot be read ({error}): repeat the command that made it") from error
    return frame


def read_added(run: Path) -> dict[str, pd.DataFrame]:
    """Return the frames that commands added to a run directory: name → frame, in alphabetical order."""
    return {path.stem: read_frame(path) for path in added_tables(run)}


def added_tables(run: Path) -> list[Path]:
    """Return the tables that commands added to a run directory, in alphabetical order, each with its JSON beside it."""
    patterns = [one.pattern or one.name for one in registry.every() if one.kept]
    tables = [path for path in sorted((run / "tables").glob("*.csv")) if path.with_suffix(".json").exists()]
    named = [path for pattern in patterns for path in tables if path.match(f"{pattern}.csv")]
    return named + [
        path for path in tables if path not in named and registry.QUESTION in read_json(path.with_suffix(".json"))
    ]


def table_checksums(path: Path, files: Iterable[Path]) -> dict[str, str]:
    """Digest the tables (CSV) among some files of a run: path in the run → SHA-256, as its manifest records them."""
    return {file.relative_to(path).as_posix(): file_digest(file) for file in files if file.suffix == ".csv"}


def record_tables(path: Path, files: Sequence[Path], checksums: Mapping[str, str] | None = None) -> None:
    """List files that were added to a run, or written again, in its manifest, with the checksums of tables.

    What is listed is removed when the run is analysed again, for instance with other rewards. The manifest of a run of
    version 0.1 has no checksums, and gets none.
    """
    if not (path / "manifest.json").exists():
        return
    manifest = read_json(path / "manifest.json")
    listed, recorded = manifest.get("files"), manifest.get("checksums")
    names = [file.relative_to(path).as_posix() for file in files]
    changes: dict[str, object] = {"files": list(dict.fromkeys([*(listed if isinstance(listed, list) else []), *names]))}
    if isinstance(recorded, dict):
        others = {name: checksum for name, checksum in recorded.items() if name not in names}
        changes["checksums"] = others | (table_checksums(path, files) if checksums is None else dict(checksums))
    write_json(path / "manifest.json", manifest | changes)


def listed_additions(path: Path) -> list[Path]:
    """Return the files of the tables that commands added to a run, as its manifest lists them."""
    manifest = path / "manifest.json"
    listed = read_json(manifest).get("files", []) if manifest.exists() else []
    names = set(map(str, listed if isinstance(listed, list) else []))
    files = [file for table in added_tables(path) for file in (table, table.with_suffix(".json"))]
    return [file for file in files if file.exists() and file.relative_to(path).as_posix() in names]


def refuse_changed_tables(path: Path, tables: Collection[Path] | None = None) -> None:
    """Refuse a run directory (not a copy of its results) in which a table is not what the manifest records."""
    manifest = path / "manifest.json"
    recorded = read_json(manifest).get("checksums") if manifest.exists() else None
    if not isinstance(recorded, dict) or not (path / "rollouts").is_dir():
        return
    for name, checksum in recorded.items():
        table = path / name
        compared = Path(name).parts[0] != "figures" and (tables is None or table in tables)
        if compared and table.is_file() and file_digest(table) != checksum:
            raise ValueError(changed_sentence(table))


# Digits of the numbers in files of their own, which may hold a row for each token.
_DIGITS = "%.7g"


def kept_files(analysis: Analysis) -> list[str]:
    """Return the names of the files in which a run keeps an answer apart from its tables."""
    first, *others = (one.name for one in analysis.keeps)
    return [f"{first}.csv", f"{first}.json", *(f"{name}.csv" for name in others)]


#: The files of all answers that runs keep apart from their tables.
KEPT_FILES = tuple(name for one in registry.kept_apart() for name in kept_files(one))


def refuse_foreign_kept(analysis: Analysis, folder: Path) -> None:
    """Refuse to keep an answer in a folder where files lie that are not those of an earlier one."""
    first, *others = analysis.keeps
    refuse_foreign_frame(folder / first.name, [one.name for one in analysis.columns])
    for one in others:
        declared = next((table.columns for table in analysis.tables if table.name == one.name), one.columns)
        columns = [column.name for column in declared]
        refuse_foreign(folder / f"{one.name}.csv", csv_with(columns, "an earlier table of this question"))


def save_kept(
    analysis: Analysis, found: Any, folder: Path, confidence_level: float = CONFIDENCE_LEVEL, *, overwrite: bool = True
) -> list[Path]:
    """Write the tables in which a run keeps an answer to a folder; returns the paths.

    In the folder of a finished run they are listed in its manifest before they are written: what a killed process
    leaves belongs to the run all the same. The caller then holds the run's lock.
    """
    tables = {one.name: one.frame(found, confidence_level) for one in analysis.keeps}
    first, frame = next(iter(tables.items()))
    if not overwrite:
        refuse_other_result(folder / f"{first}.csv", _difference(frame, folder / first, _DIGITS), overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in kept_files(analysis)]
    record_tables(folder, paths, {})
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table, float_format=_DIGITS)
    write_json(folder / f"{first}.json", attributes_of(frame))
    record_tables(folder, paths)
    return paths


def read_kept(folder: Path) -> dict[str, pd.DataFrame]:
    """Read what :func:`save_kept` wrote of any question: name → table, the first of each with its ``.attrs``."""
    found: dict[str, pd.DataFrame] = {}
    for analysis in registry.kept_apart():
        names = [one.name for one in analysis.keeps]
        if (folder / f"{names[0]}.csv").exists():
            try:
                found |= {name: read_csv(folder / f"{name}.csv") for name in names}
                found[names[0]].attrs |= read_json(folder / f"{names[0]}.json")
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(
                    f"the answer to {analysis.name!r} in {folder} cannot be read ({error}): repeat `gradstats run`, "
                    "which makes it again"
                ) from error
    return found


#: Tables in addition to the variance comparison, where the data allowed them.
BREAKDOWNS = tuple(table.name for one in registry.asked_in_runs() for table in one.tables)


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
    """The saved results of a run; None, or empty, where they were not written."""

    path: Path  # the run directory, or a folder that holds a copy of its results
    name: str
    settings: dict[str, object]  # flat: "sampling.top_k" → value
    manifest: SavedManifest
    alpha: SavedAlpha | None
    points: pd.DataFrame | None  # a row per completion: prompt_id, length, sq_norm; where known reward, truncated
    variance: pd.DataFrame | None  # with its .attrs
    breakdowns: dict[str, pd.DataFrame] = field(default_factory=dict)  # by the names of BREAKDOWNS
    kept: dict[str, pd.DataFrame] = field(default_factory=dict)  # in files of their own, the first with its .attrs
    added: dict[str, pd.DataFrame] = field(default_factory=dict)  # by commands, with its .attrs
    answers: dict[str, Any] = field(default_factory=dict)  # name of a breakdown → its .attrs

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of every run that this one has, by name."""
        known = {"variance": self.variance, POINTS: self.points}
        return {name: frame for name, frame in known.items() if frame is not None} | self.breakdowns | self.kept

    @cached_property
    def fit(self) -> LengthScalingFit | None:
        """The length-scaling fit of the saved points."""
        return self._fit_of("sq_norm")

    @cached_property
    def energy_fit(self) -> LengthScalingFit | None:
        """The length-scaling fit of the summed token energies, where they were measured."""
        return self._fit_of("energy")

    def table(self, name: str) -> pd.DataFrame | None:
        """Return a table that every run has, by the name of its file or, where it is a part of α, of its question."""
        if name == POINTS:
            return self._fitted_points
        of_alpha = registry.get(name).of_alpha if name in registry.names() else None
        if of_alpha is None:
            return self.tables.get(name)
        frame = None if self.alpha is None else of_alpha(self.alpha)
        return None if frame is None else _in_metric(frame, self.metric)

    @property
    def _fitted_points(self) -> pd.DataFrame | None:
        """The points, with what their fit needs where α was written."""
        if self.points is None or self.alpha is None:
            return self.points
        points = self.points.copy()
        points.attrs |= {
            "method": self.alpha.get("method", "ols"),
            "metric": self.metric,
            "published": self.published,
            "confidence_level": self.level_of_alpha,
        }
        return points

    @property
    def metric(self) -> str:
        """The label of the metric that was measured."""
        of_variance = {} if self.variance is None else self.variance.attrs
        return str((self.alpha or {}).get("metric") or of_variance.get("metric") or EUCLIDEAN)

    @property
    def confidence_level(self) -> float:
        """The level of the comparison's intervals."""
        return float(str(self.settings.get("variance.confidence_level", CONFIDENCE_LEVEL)))

    @property
    def level_of_alpha(self) -> float:
        """The level of the intervals of α."""
        return float((self.alpha or {}).get("confidence_level", CONFIDENCE_LEVEL))

    @property
    def published(self) -> str | None:
        """The data set of published points that the experiment lays under its fit."""
        name = self.settings.get("length_scaling.published")
        return None if name is None else str(name)

    @property
    def figure_style(self) -> FiguresSection:
        """What the experiment states of its figures."""
        prefix = "figures."
        entries = {key.removeprefix(prefix): value for key, value in self.settings.items() if key.startswith(prefix)}
        return FiguresSection.model_validate(entries)

    def _fit_of(self, column: str) -> LengthScalingFit | None:
        """Return the length-scaling fit of a column of the points; None where it, or α, was not written."""
        points = self._fitted_points
        if points is None or self.alpha is None or column not in points:
            return None
        return fit_of_points(points, column)


def read_results(path: str | os.PathLike[str], *, checked: bool = True) -> SavedResults:
    """Read what a run saved."""
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a run directory: create one with `gradstats run EXPERIMENT --out {path}`"
        )
    if checked:
        refuse_changed_tables(path)
    alpha = _read_json(path / "alpha.json")
    if alpha is not None:
        length_exponent = registry.get("alpha").columns[0].name
        _refuse_incomplete(path / "alpha.json", [f"{length_exponent}{end}" for end in ENDS], alpha)
    variance = _read_variance(path)
    recorded = path / "experiment.yaml"
    kept = read_kept(path)
    if alpha is None and variance is None and not kept:
        state = "an unfinished run" if recorded.exists() else "not a run directory"
        source = recorded if recorded.exists() else "EXPERIMENT"
        raise FileNotFoundError(
            f"{path} is {state}: it holds neither alpha.json nor variance.csv; `gradstats run {source} --out {path}` "
            "makes them"
        )
    settings = flat_settings(read_recorded_experiment(recorded)) if recorded.exists() else {}
    manifest = cast(SavedManifest, _read_json(path / "manifest.json") or {})
    saved = SavedResults(
        path=path,
        name=str(settings.get("name") or manifest.get("experiment") or path.resolve().name),
        settings=settings,
        manifest=manifest,
        alpha=cast(SavedAlpha | None, alpha),
        points=_read_table(path, "length_scaling"),
        variance=variance,
        breakdowns={name: frame for name in BREAKDOWNS if (frame := _read_table(path, name)) is not None},
        kept=kept,
        added=read_added(path),
        answers=_read_json(path / ANSWERS) or {},
    )
    for name, frame in saved.breakdowns.items():
        frame.attrs |= saved.answers.get(name, {})
        _in_metric(frame, saved.metric)
    return saved


def _read_variance(path: Path) -> pd.DataFrame | None:
    if not (path / "variance.csv").exists():
        return None
    frame = _read_csv(path / "variance.csv")
    _refuse_incomplete(path / "variance.csv", registry.get("variance").known_by, frame)
    frame.attrs |= _read_json(path / "variance.json") or {}
    for name in (f"{quantity}{end}" for quantity in shown_in("page") for end in ENDS):
        if name not in frame:  # an earlier version did not estimate it
            frame[name] = np.nan
    return frame


def _refuse_incomplete(path: Path, needed: Iterable[str], there: Collection[object]) -> None:
    """Refuse a file that lacks what every version wrote."""
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


def _read_table(path: Path, name: str) -> pd.DataFrame | None:
    """Read a table: a run keeps it in a folder of tables, a copy of its results next to the figures."""
    candidates = (path / folder / f"{name}.csv" for folder in ("tables", "figures", "."))
    return next((_read_csv(table) for table in candidates if table.exists()), None)


def _in_metric(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Record in a table's ``.attrs``, which its file does not hold, the metric of the run."""
    frame.attrs.setdefault("metric", metric)
    return frame


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


# Settings in which two runs must agree to answer the same question.
_SETTINGS_OF_THE_QUESTION = (
    "policy.name", "policy.revision", "policy.temperature", "prompts.source", "prompts.settings",
    "sampling.group_size", "sampling.max_new_tokens", "sampling.temperature", "sampling.top_p", "sampling.top_k",
    "sampling.min_p", "sampling.repetition_penalty", "sampling.reward", "sampling.system_prompt", "sampling.sampler",
    "measurement.params", "variance.group_size", "variance.reference",
)  # fmt: skip


def differing_settings(runs: list[SavedResults]) -> dict[str, list[object]]:
    """Find settings that runs on the same axes should share and do not: name → one value per run."""
    differing = {}
    for name in _SETTINGS_OF_THE_QUESTION:
        values = [run.settings.get(name) for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = values
    return differing


def run_labels(runs: list[SavedResults], without: Collection[str] = ()) -> list[str]:
    """Name each run for a legend, with the settings in which it differs from the others."""
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


def _setting(key: str, value: object) -> str:
    # A policy is named by the last component of its path.
    shown = Path(value).name if key == "policy.name" and isinstance(value, str) else value
    short = key.partition(".")[2] if key.startswith("sampling.") else key.replace(".name", "").replace(".source", "")
    return f"{short.replace('_', ' ')} {shown}"


#: Means over prompts → the column of the completions.
MEANS = {"mean_length": "length", "mean_reward": "reward"}


def completion_means(results: SavedResults) -> dict[str, float]:
    """Return the size of a run, and the mean length and reward of its completions with intervals; NaN where unknown.

    Means are those of the prompts' means, with Student's t interval over prompts at the level of the run's comparison.
    """
    points, manifest = results.points, results.manifest
    n_completions = manifest.get("n_sequences", np.nan if points is None else len(points))
    truncated = manifest.get("n_truncated")
    known = {
        "n_prompts": manifest.get("n_prompts", np.nan),
        "n_completions": n_completions,
        "truncated_share": np.nan if truncated is None else truncated / n_completions,
    }
    for name, column in MEANS.items():
        values = (np.nan,) * 3
        if points is not None and column in points:
            each = prompt_means(points, column)
            if len(each) > 1:
                values = mean_statistic(each).estimate().with_interval(results.confidence_level)
        known |= dict(zip((f"{name}{end}" for end in ENDS), values, strict=True))
    return known


def prompt_means(points: pd.DataFrame, column: str) -> Float[np.ndarray, " prompts"]:
    """Return the mean of a column over the completions of each prompt, in the order of the prompts' names."""
    return np.array([rows[column].mean() for _, rows in points.groupby("prompt_id")], dtype=float)
