"""The files of one run, and the processes that may share it as parts."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradstats.config.experiment import Experiment
from gradstats.config.trust import code_named_in
from gradstats.measurement.measurement import Measurement
from gradstats.report.saved_results import (
    is_run_directory,
    read_recorded_experiment,
    write_recorded_experiment,
)
from gradstats.rewards.grading import MisreadReferenceWarning
from gradstats.rollouts.table import token_sources
from gradstats.runs.executors.local import Executor, LocalExecutor
from gradstats.runs.growth import may_grow, read_plan, rounds_of
from gradstats.runs.regrading import finish_regrading, read_regradings
from gradstats.runs.tracking import Tracking
from gradstats.system.environment import environment
from gradstats.system.files import partials, read_json, remove_partials, write_json
from gradstats.system.lock import LOCK, PART, is_running, part_alone, part_lock
from gradstats.system.outputs import OutputType

if TYPE_CHECKING:
    from gradstats.analyses import SamplerGap


# Seconds that a part waits for one that is not running, which may be about to start.
_GRACE = 300.0
_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class RunPart:
    """One of several processes that make a run: every n-th batch and shard."""

    number: int  # from 1
    n_parts: int

    @classmethod
    def of(cls, text: str) -> RunPart:
        """Read ``"k/n"``.

        >>> RunPart.of("2/8")
        RunPart(number=2, n_parts=8)
        """
        number, _, n_parts = text.partition("/")
        if not (number.isdecimal() and n_parts.isdecimal() and 1 <= int(number) <= int(n_parts)):
            raise ValueError(f"part is {text!r}: write k/n, for the k-th of n parts, as in 2/8")
        return cls(int(number), int(n_parts))

    def __str__(self) -> str:
        """Return ``"k/n"``."""
        return f"{self.number}/{self.n_parts}"

    def own(self, numbers: Iterable[int]) -> list[int]:
        """Return the shards that this part makes: k - 1, k - 1 + n, …"""
        return [number for number in numbers if number % self.n_parts == self.number - 1]

    def wait_for(self, folder: Path, missing: Callable[[], list[int]], say: Callable[[str], None]) -> bool:
        """Wait until the shards of the other parts are there, as long as these parts are running or may start."""
        said, since = False, time.monotonic()
        while waiting := missing():
            others = {number % self.n_parts + 1 for number in waiting}
            if all(is_running(part_lock(folder, other, self.n_parts)) for other in others):
                since = time.monotonic()
            elif time.monotonic() - since > _GRACE:
                return False
            if not said:
                named = ", ".join(f"{other}/{self.n_parts}" for other in sorted(others))
                say(f"waiting for {len(waiting)} shards of the parts {named}")
                said = True
            time.sleep(_BETWEEN_LOOKS)
        return True

    def write_record(
        self, folder: Path, timings: Mapping[str, float], remarks: Sequence[str], execution: Mapping[str, object] | None
    ) -> None:
        """Leave what a part did for the manifest of the run, added to what it did in earlier calls."""
        path = folder / f"{PART}{self.number}-of-{self.n_parts}.json"
        earlier = read_json(path) if path.exists() else {"timings": {}, "remarks": []}
        names = dict.fromkeys([*earlier["timings"], *timings])
        summed = {name: round(earlier["timings"].get(name, 0.0) + timings.get(name, 0.0), 2) for name in names}
        write_json(
            path,
            {
                "part": str(self),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "timings": summed,
                "remarks": list(dict.fromkeys([*earlier["remarks"], *remarks])),
                "execution": earlier.get("execution") if execution is None else dict(execution),
            },
        )


def part_records(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return what the parts of a run have left, by file."""
    return {path: read_json(path) for path in sorted(folder.glob(f"{PART}*-of-*.json"))}


_REMARKED = (UserWarning, RuntimeWarning, MisreadReferenceWarning)
#: The step that every call repeats, so that its remarks are not kept.
ANALYSIS = "analysis"
#: Seconds of steps that ended since the manifest was written, so that a call that is killed later does not lose them.
_STEPS = ".steps.json"
#: What to do where a setting with such an effect differs from that of the run.
_REMEDIES = {
    "grows": "a run can grow but not shrink, so choose another directory (--out)",
    "regraded": "score its completions again with `gradstats regrade`, or choose another directory (--out)",
}


@dataclass
class RunDirectory:
    """The files of one run."""

    path: Path  # the folder; created when it is opened
    experiment: Experiment
    timings: dict[str, float] = field(default_factory=dict)  # seconds spent in each step, summed over all calls
    remarks: list[str] = field(default_factory=list)  # the warnings of all steps, in order
    # those of the steps before the analysis, by step, which a later call does not meet again
    remarks_of_steps: dict[str, list[str]] = field(default_factory=dict)
    tracking: Tracking = field(default_factory=Tracking)  # where the steps are logged; nowhere by default
    executor: Executor = field(default_factory=LocalExecutor)
    part: RunPart | None = None  # which of several processes this is that make the run together; None for the only one
    # what parts did before, for the manifest, by the file that they left
    parts: dict[Path, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, experiment: Experiment, part: RunPart | None = None) -> RunDirectory:
        """Create a run directory, or open one that has the same settings.

        The number of prompts and the size of their groups may be larger than before: the run is then extended. How many
        sequences are measured together may change.
        """
        previous = path / "experiment.yaml"
        finish_regrading(path)
        grows = False
        # Before the first shard exists, nothing depends on the settings: a wrong path may be corrected in place.
        if previous.exists() and (part is not None or any((path / "rollouts").glob("*.parquet"))):
            before, settled = read_recorded_experiment(previous).settled_settings(), experiment.settled_settings()
            for name in (*settled, *(name for name in before if name not in settled)):
                value = settled.get(name)
                if before.get(name) == value or name in Experiment.settings_that("divides"):
                    continue
                if not may_grow(name, before.get(name), value):
                    remedies = (_REMEDIES[one] for one in _REMEDIES if name in Experiment.settings_that(one))
                    otherwise = "choose another directory (--out), or remove it to start again"
                    raise ValueError(
                        f"the run directory {path} was made with {name}={before.get(name)!r}, not {value!r}: "
                        f"{next(remedies, otherwise)}"
                    )
                grows = True
        run = cls(path, experiment, part=part)
        run.rollouts.mkdir(parents=True, exist_ok=True)
        run.measurement.mkdir(parents=True, exist_ok=True)
        if part is None:
            run.remove_partials()
            run.take_over(remarks=not grows)
        if not grows:  # else only when the larger run is known to contain the smaller one
            run.write_experiment()
        return run

    def remove_partials(self) -> None:
        """Remove what interrupted writers left; the caller must be the only writer."""
        others = (self.path / name for name in ("tables", "figures", "regraded"))
        shards = self.measurement.glob("shard-*")
        for folder in (self.path, self.rollouts, self.measurement, self.values, *others, *shards):
            remove_partials(folder)

    def take_over(self, *, remarks: bool = True, without: str | None = None) -> None:
        """Add what earlier calls and parts did to the timings and remarks of the run."""
        earlier = self.read_manifest()
        self.timings = dict(earlier.get("timings", {}))
        # An extension that was interrupted has planned more completions than the remarks were about.
        remarks = remarks and earlier.get("rounds") == self._rounds()
        for step, said in (earlier.get("remarks_of_steps", {}) if remarks else {}).items():
            self.keep_remarks(step, [remark for remark in said if remark != without])
        self.parts = part_records(self.path)
        for record in self.parts.values():
            self.keep_remarks("parts", record["remarks"])
        for timings in (self._unrecorded_timings(), *(record["timings"] for record in self.parts.values())):
            for name, seconds in timings.items():
                self.timings[name] = round(self.timings.get(name, 0.0) + seconds, 2)

    def keep_remarks(self, step: str, remarks: Iterable[str]) -> None:
        """Keep what was said in a step, once; in the manifest also for later calls, unless it is the analysis."""
        said = list(dict.fromkeys(remarks))
        self.remarks += [remark for remark in said if remark not in self.remarks]
        if step != ANALYSIS:
            kept = self.remarks_of_steps.setdefault(step, [])
            kept += [remark for remark in said if remark not in kept]

    def own(self, numbers: list[int]) -> list[int]:
        """Return those of the shards that this process makes."""
        return numbers if self.part is None else self.part.own(numbers)

    def alone(self) -> AbstractContextManager[None]:
        """Write what the parts of a run share, while the context is open."""
        return nullcontext() if self.part is None else part_alone(self.path)

    def write_experiment(self) -> None:
        """Record the resolved experiment."""
        write_recorded_experiment(self.path / "experiment.yaml", self.experiment.to_yaml())

    @property
    def rollouts(self) -> Path:
        """Folder of the rollout shards."""
        return self.path / "rollouts"

    @property
    def measurement(self) -> Path:
        """Folder of the measured shards."""
        return self.path / "measurement"

    @property
    def values(self) -> Path:
        """Folder of the state values; it exists where some were made."""
        return self.path / "values"

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest so far; empty before the first is written."""
        manifest = self.path / "manifest.json"
        return read_json(manifest) if manifest.exists() else {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step and keep its warnings as remarks; one of misread references is shown at once."""
        start, show = time.monotonic(), warnings.showwarning
        caught: list[tuple[type[Warning], str]] = []

        def keep(message: Warning | str, category: type[Warning], *where: Any) -> None:
            caught.append((category, str(message)))
            if category is MisreadReferenceWarning:
                show(message, category, *where)

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = keep
            try:
                yield
            finally:
                seconds = time.monotonic() - start
                self.timings[name] = round(self.timings.get(name, 0.0) + seconds, 2)
                self.tracking.log({f"{name}/seconds": self.timings[name]})
                self.keep_remarks(name, [text for category, text in caught if category in _REMARKED])
                self._record_timing(name, seconds)

    def _record_timing(self, name: str, seconds: float) -> None:
        """Add to the timings beside the manifest, which comes with the analysis; parts leave records of their own."""
        if self.part is not None:
            return
        timings = self._unrecorded_timings()
        timings[name] = round(timings.get(name, 0.0) + seconds, 2)
        with suppress(OSError):  # a full disk, which is what the step itself then reports
            write_json(self.path / _STEPS, {"timings": timings})

    def _unrecorded_timings(self) -> dict[str, float]:
        """Return the seconds of steps that ended since the manifest was written; none where they cannot be read."""
        try:
            return read_json(self.path / _STEPS)["timings"]
        except (OSError, ValueError, KeyError):
            return {}

    def _rounds(self) -> list[dict[str, int]]:
        """Return the size of each round of sampling that is planned, without anything drawn where there is no plan."""
        return [
            {"n_prompts": len(one.prompt_ids), "group_size": one.group_size, "n_drawn": sum(one.batches)}
            for one in rounds_of(self.rollouts)
        ]

    def _experiment_folder(self) -> str | None:
        """Return the way to the folder of the experiment file, where the experiment names code that may lie in it."""
        folder = self.experiment.folder
        if folder is None or folder == self.path.resolve():  # repeated from the run's own copy
            recorded = self.read_manifest().get("experiment_folder")
            return recorded if isinstance(recorded, str) else None
        if not any(code_named_in(self.experiment.model_dump())):
            return None
        return os.path.relpath(folder, self.path.resolve())

    def write_manifest(
        self,
        measured: Measurement,
        paths: list[Path],
        gap: SamplerGap | None,
        computed_with: Mapping[str, str | None],
    ) -> None:
        """Record versions, commit, hardware, seeds, timings and the files of results."""
        experiment = self.experiment
        earlier = self.read_manifest()
        executed = self.executor.describe() if self.executor.spent.n_parts else earlier.get("execution")
        write_json(
            self.path / "manifest.json",
            {
                "experiment": experiment.name,
                "experiment_folder": self._experiment_folder(),
                "policy": measured.metadata["policy"],
                "prompts": {
                    "source": experiment.prompts.source,
                    "revision": read_plan(self.rollouts).get("revisions", {}).get("prompts"),
                },
                "sampler": measured.rollouts.metadata.get("sampler"),
                "generation_config_not_followed": measured.rollouts.metadata.get("generation_config_not_followed"),
                "engine": measured.metadata["engine"],
                "self_check": measured.metadata["self_check"],
                "metric": measured.metadata.get("metric"),
                "n_prompts": len(set(measured.rollouts.prompt_id)),
                "n_sequences": len(measured),
                "n_truncated": int(measured.rollouts.truncated.sum()),
                "token_sources": token_sources(measured.rollouts),
                "sampler_gap": None if gap is None else gap.summary(),
                "not_finite": measured.metadata.get("not_finite", []),
                "mean_reward": float(measured.rollouts.rewards.mean()),
                "reward": measured.rollouts.metadata.get("reward"),
                "grading": measured.rollouts.metadata.get("grading"),
                "regraded": read_regradings(self.path),
                "rounds": self._rounds(),
                "seeds": {
                    "prompts": experiment.prompts.seed,
                    "sampling": experiment.sampling.seed,
                    "sketch": experiment.measurement.sketch_seed,
                    "variance": experiment.variance.seed,
                },
                **environment(),
                "timings": self.timings,
                "execution": executed,
                "parts": list(self.parts.values()) or earlier.get("parts", []),
                "remarks": list(dict.fromkeys(self.remarks)),
                "remarks_of_steps": {step: said for step, said in self.remarks_of_steps.items() if said},
                "computed_with": dict(computed_with),
                "files": [str(path.relative_to(self.path)) for path in paths],
            },
        )
        for path in (*self.parts, self.path / _STEPS):
            path.unlink(missing_ok=True)


def experiment_folder(path: Path) -> Path | None:
    """Return the folder of a run's experiment file, as far as the run recorded it and the folder still exists.

    Whoever passed the run on may have recorded any folder.
    """
    manifest = path / "manifest.json"
    recorded = read_json(manifest).get("experiment_folder") if manifest.is_file() else None
    folder = (path / recorded).resolve() if isinstance(recorded, str) else None
    return folder if folder is not None and folder.is_dir() else None


def listed_results(path: Path) -> list[Path]:
    """Return the files of results in a run that its manifest lists."""
    manifest = path / "manifest.json"
    listed = read_json(manifest).get("files", []) if manifest.exists() else []
    names = map(str, listed if isinstance(listed, list) else [])
    return [path / name for name in names if Path(name).parent.as_posix() in (".", "tables", "figures")]


def _holds_something(path: Path) -> bool:
    """Return whether a folder contains more than the remains of a run that was killed at its very beginning."""
    left = {*partials(path), *path.glob(f"{PART}*"), *(path / name for name in ("rollouts", "measurement", LOCK))}
    folders = [path / name for name in ("rollouts", "measurement") if (path / name).is_dir()]
    return bool(set(path.iterdir()) - left) or any(set(folder.iterdir()) - set(partials(folder)) for folder in folders)


RUN_DIRECTORY = OutputType(
    "a run directory", lambda path: path.is_dir() and (is_run_directory(path) or not _holds_something(path))
)
