"""What a run directory holds, read from its files: settings, manifest, tables, and what commands add to it."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import pandas as pd
from jaxtyping import Float

from gradstats.analyses import registry
from gradstats.analyses.alpha import fit_of_points
from gradstats.analyses.declaration import POINTS
from gradstats.answers.answer import COMPUTED_WITH, Answer, answer_paths, claim_answer
from gradstats.config.experiment import Experiment, FiguresSection, read_experiment
from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN
from gradstats.measurement.state_values import digest_of_state_values
from gradstats.rollouts.table import Rollouts
from gradstats.stats import LengthScalingFit
from gradstats.stats.jackknife import mean_statistic
from gradstats.system.files import atomic_path, changed_sentence, digest, read_json
from gradstats.system.lock import only_writer
from gradstats.system.outputs import refuse_links
from gradstats.system.shards import PLAN

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


@contextmanager
def folder_of_results(source: Path, out: Path | None, *, partial: bool = False) -> Iterator[Path | None]:
    """Yield the folder that a command adds its results to, locked where it is a run; None for a bare measurement."""
    folder = source if out is None and (source / "measurement").is_dir() else out
    if folder is None:
        yield None
        return
    is_run = (folder / "measurement").is_dir() or is_run_directory(folder)
    if partial and (is_run or enclosing_run(folder) is not None):
        raise ValueError(
            f"with --partial nothing is written into the run {folder}, which would hold the numbers as those of "
            "all its shards: choose another folder (--out)"
        )
    if not is_run:
        refuse_inside_run(folder)
        with writing_into(folder):
            yield folder
        return
    if source.resolve() not in (folder.resolve(), (folder / "measurement").resolve()):
        raise FileExistsError(f"{folder} is another run than {source}: choose another folder (--out)")
    with only_writer(folder):
        refuse_links(folder)
        yield folder


def refuse_inside_run(out: Path, *, source: Path | None = None) -> None:
    """Refuse to write a result over the files of a run, which belong together, or while a process works on the run."""
    run = enclosing_run(out)
    if run is not None and os.path.lexists(out) and (source is None or run.resolve() != source.resolve()):
        raise FileExistsError(f"{out} belongs to the run {run}: choose another path (--out)")
    with writing_into(out):
        pass


def claim_addition(folder: Path, name: str, columns: Sequence[str]) -> None:
    """Refuse to add an answer to a folder, before it is computed."""
    claim_answer(folder / "tables" / name, columns)
    if (folder / "measurement").is_dir():
        manifest = _read_json(folder / "manifest.json")
        if manifest is None:
            raise ValueError(
                f"the analysis of {folder} is not finished: repeat `gradstats run`, or choose a folder (--out)"
            )
        if COMPUTED_WITH not in manifest:
            raise ValueError(_of_earlier_version(folder))


def state_of_data(rollouts: Rollouts, values: Path) -> dict[str, str | None]:
    """Return what an answer is computed with: digests of the completions with their rewards, and of state values."""
    frame = rollouts.frame
    parts = [frame[name].tolist() for name in ("prompt_id", "sample_id")]
    rewards = [*parts, [repr(float(reward)) for reward in rollouts.rewards], rollouts.lengths.tolist()]
    return {"rewards": digest(rewards), "values": digest_of_state_values(values)}


def listed_results(path: Path) -> list[Path]:
    """Return the files of results in a run that its manifest lists."""
    manifest = path / "manifest.json"
    listed = read_json(manifest).get("files", []) if manifest.exists() else []
    names = map(str, listed if isinstance(listed, list) else [])
    return [path / name for name in names if Path(name).parent.as_posix() in (".", "tables", "figures")]


def experiment_folder(path: Path) -> Path | None:
    """Return the folder of a run's experiment file, as far as the run recorded it and the folder still exists.

    Whoever passed the run on may have recorded any folder.
    """
    manifest = path / "manifest.json"
    recorded = read_json(manifest).get("experiment_folder") if manifest.is_file() else None
    folder = (path / recorded).resolve() if isinstance(recorded, str) else None
    return folder if folder is not None and folder.is_dir() else None


class SavedManifest(TypedDict, total=False):
    """The entries of ``manifest.json`` that are read."""

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
    computed_with: dict[str, str | None]


@dataclass(frozen=True)
class SavedResults:
    """The saved answers of a run."""

    path: Path  # the run directory, or a folder that holds a copy of its results
    name: str
    settings: dict[str, object]  # flat: "sampling.top_k" → value
    manifest: SavedManifest
    answers: dict[str, Answer]  # by the names of their files, those of every run first; tables beside them included
    left_out: tuple[str, ...] = ()  # a sentence for each answer that cannot be shown

    @property
    def alpha(self) -> Mapping[str, Any] | None:
        """What the run states of α, in ``alpha.json``; None where it could not be fitted."""
        return self.answers["alpha"].about if "alpha" in self.answers else None

    @property
    def variance(self) -> pd.DataFrame | None:
        """The comparison of estimators, with its ``.attrs``; None where there could be none."""
        return self.table("variance")

    @property
    def points(self) -> pd.DataFrame | None:
        """A row per completion: prompt_id, length, sq_norm; where known reward, truncated."""
        return self.table(POINTS)

    def table(self, name: str) -> pd.DataFrame | None:
        """Return the table of an answer, or of one beside it, by the name of its file."""
        found = (one for answer in self.answers.values() for at, one in answer.further.items() if at == name)
        answer = self.answers.get(name) or next(found, None)
        return None if answer is None else answer.frame

    @cached_property
    def fit(self) -> LengthScalingFit | None:
        """The length-scaling fit of the saved points."""
        return None if self.points is None or self.alpha is None else fit_of_points(self.points)

    @property
    def level_of_alpha(self) -> float:
        """The level of the intervals of α."""
        return float((self.alpha or {}).get("confidence_level", CONFIDENCE_LEVEL))

    @property
    def metric(self) -> str:
        """The label of the metric that was measured."""
        return next((str(one.about["metric"]) for one in self.answers.values() if "metric" in one.about), EUCLIDEAN)

    @property
    def confidence_level(self) -> float:
        """The level of the comparison's intervals."""
        asked = self.settings.get("variance.confidence_level", CONFIDENCE_LEVEL)
        about = self.answers["variance"].about if "variance" in self.answers else {}
        return float(str(about.get("confidence_level", asked)))

    @property
    def figure_style(self) -> FiguresSection:
        """What the experiment states of its figures."""
        prefix = "figures."
        entries = {key.removeprefix(prefix): value for key, value in self.settings.items() if key.startswith(prefix)}
        return FiguresSection.model_validate(entries)


def read_results(path: str | os.PathLike[str]) -> SavedResults:
    """Read what a run saved; a warning names each answer that is left out, and why.

    Raises:
        FileNotFoundError: for a folder that holds no answer.
        ValueError: for a run that an earlier version analysed.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a run directory: create one with `gradstats run EXPERIMENT --out {path}`"
        )
    recorded = path / "experiment.yaml"
    manifest = cast(SavedManifest, _read_json(path / "manifest.json") or {})
    stems = answer_stems(path)
    experiment = read_recorded_experiment(recorded) if stems and recorded.exists() else None
    settings = {} if experiment is None else flat_settings(experiment)
    answers, left_out = read_answers(stems, manifest, {} if experiment is None else experiment.analyses)
    if not answers:
        remedy = f"`gradstats run {_recorded_in(path)} --out {path}`"
        if any((path / name).exists() for name in ("variance.csv", "alpha.json")) and (
            COMPUTED_WITH not in manifest and (manifest or not left_out)
        ):
            raise ValueError("; ".join([_of_earlier_version(path), *left_out[:1]]))
        if left_out:
            raise ValueError(f"{path} holds no answer that can be shown; {remedy} makes them again; {left_out[0]}")
        state = "an unfinished run" if recorded.exists() else "not a run directory"
        raise FileNotFoundError(f"{path} is {state}: it holds no answers; {remedy} makes them")
    for sentence in left_out:
        warnings.warn(sentence, UserWarning, stacklevel=2)
    return SavedResults(
        path=path,
        name=str(settings.get("name") or manifest.get("experiment") or path.resolve().name),
        settings=settings,
        manifest=manifest,
        answers=answers,
        left_out=tuple(left_out),
    )


def _of_earlier_version(path: Path) -> str:
    return (
        f"{path} was analysed by an earlier version: `gradstats run {_recorded_in(path)} --out {path}` analyses it "
        "again, and leaves rollouts and measurement as they are"
    )


def _recorded_in(path: Path) -> Path | str:
    """Return the experiment file of a run, as a command names it."""
    recorded = path / "experiment.yaml"
    return recorded if recorded.exists() else "EXPERIMENT"


def answer_stems(run: Path) -> dict[Path, str]:
    """Return where the answers of a run lie → the question of each, "" where its file cannot be read.

    Those on α and on estimators lie in its folder, all others in ``tables``. Of two answers the one whose question
    comes first is the first; a table beside another is read with that.
    """
    states = [run / f"{name}.json" for name in registry.OF_EVERY_RUN] + sorted((run / "tables").glob("*.json"))
    found: dict[Path, tuple[int, str]] = {}
    questions: dict[Path, str] = {}
    beside: set[Path] = set()
    order = {name: at for at, name in enumerate([*registry.names(), *registry.OF_LOGS])}
    for state in states:
        try:
            entries = read_json(state) if state.is_file() else {}
        except ValueError:  # named where it is read
            entries = {"question": "", "further": {}} if state.with_suffix(".csv").exists() else {}
        if "question" in entries and "further" in entries:
            stem = state.with_suffix("")
            questions[stem] = entries["question"]
            found[stem] = (order.get(entries["question"], len(order)), state.stem)
            beside |= {(state.parent / at).resolve() for at in entries["further"].values()}
    # The numbers of an answer whose other file was removed.
    places = [run / name for name in registry.OF_EVERY_RUN] + [run / "tables" / name for name in registry.names()]
    alone = [one for one in places if found and one not in found and answer_paths(one)[0].exists()]
    listed = sorted((stem for stem in found if stem.resolve() not in beside), key=found.__getitem__)
    return {stem: questions.get(stem, "") for stem in [*listed, *alone]}


def read_answers(
    stems: Iterable[Path], manifest: SavedManifest, asked: Mapping[str, object]
) -> tuple[dict[str, Answer], list[str]]:
    """Return the answers of a run by the names of their files, and a sentence for each that is left out."""
    answers: dict[str, Answer] = {}
    left_out: list[str] = []
    for stem in stems:
        try:
            answer = Answer.read(stem)
        except (ValueError, OSError) as error:
            left_out.append(f"{stem.name} is left out: {error}")
            continue
        if asked.get(answer.question) is False:
            continue
        other = _computed_with_other(answer, manifest)
        if other:
            left_out.append(f"{stem.name} is left out, since the run had other {other} then: ask it again")
            continue
        answers[stem.name] = answer
        answers |= answer.further
    return answers, left_out


def _computed_with_other(answer: Answer, manifest: SavedManifest) -> str:
    """Return what an answer was computed with that the run does not have now; "" where it has."""
    now, then = manifest.get("computed_with") or {}, answer.about.get(COMPUTED_WITH) or {}
    if {"rewards"} <= set(now) & set(then) and now["rewards"] != then["rewards"]:
        return "completions or rewards"
    # Without values at that time it was computed without any.
    return "state values" if then.get("values") not in (None, now.get("values")) else ""


def _read_json(path: Path) -> dict[str, object] | None:
    return read_json(path) if path.exists() else None


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


def differing_settings(runs: list[SavedResults]) -> dict[str, list[object]]:
    """Find settings that runs on the same axes should share and do not: name → one value per run."""
    differing = {}
    for name in Experiment.settings_that("of the question", "reshapes"):
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
