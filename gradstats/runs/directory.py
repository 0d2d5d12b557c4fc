"""The files of one run."""

from __future__ import annotations

import os
import secrets
import socket
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradstats.config.experiment import Experiment
from gradstats.config.trust import code_named_in
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.scored import SCORED, measured_order
from gradstats.report.saved_results import is_run_directory, read_recorded_experiment, write_recorded_experiment
from gradstats.rewards.grading import MisreadReferenceWarning
from gradstats.rollouts.table import token_sources
from gradstats.runs.claims import Spent, noted_turn
from gradstats.runs.growth import may_grow, read_plan, rounds_of
from gradstats.runs.ranks import is_first, n_ranks
from gradstats.runs.regrading import finish_regrading, read_regradings
from gradstats.runs.tracking import Tracking
from gradstats.system.environment import environment
from gradstats.system.files import PARTIAL, holds_only, read_json, remove_partials, write_json
from gradstats.system.lock import LOCK, TURN, is_alive
from gradstats.system.outputs import OutputType
from gradstats.system.shards import PLAN

if TYPE_CHECKING:
    from gradstats.analyses import SamplerGap

Context = TypeVar("Context")

_REMARKED = (UserWarning, RuntimeWarning, MisreadReferenceWarning)
#: The step that every call repeats, so that its remarks are not kept.
ANALYSIS = "analysis"
#: What processes did since the manifest was written, each in a file of its own.
CALLS = ".call-*.json"
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
    alone: bool = True  # whether this process was the only one when it began
    answered: bool = False  # whether another process analysed it, with these settings, while this one waited
    spent: Spent = field(default_factory=Spent)  # what this process has computed
    # what all processes have computed since the manifest was written, where that is known
    executed: dict[str, Any] | None = None
    # this process's part of the timings, which no manifest holds
    _since: dict[str, float] = field(default_factory=dict)
    _card: str | None = None  # which GPU this process is going to use, by its identifier
    _call: str = field(default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}")

    @classmethod
    def open(cls, path: Path, experiment: Experiment, *, alone: bool = True) -> RunDirectory:
        """Create a run directory, or open one that has the same settings; ``alone``: no other process works on it.

        The number of prompts and the size of their groups may be larger than before: the run is then extended. How many
        sequences are measured together may change.
        """
        previous = path / "experiment.yaml"
        if alone:
            finish_regrading(path)
        grows = False
        # Before the first shard exists, nothing depends on the settings: a wrong path may be corrected in place.
        begun = not alone or any((path / "rollouts").glob("*.parquet"))
        if previous.exists() and begun:
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
        run = cls(path, experiment, alone=alone)
        run.rollouts.mkdir(parents=True, exist_ok=True)
        run.measurement.mkdir(parents=True, exist_ok=True)
        if alone:
            run.remove_partials()
            if not begun:
                (run.rollouts / PLAN).unlink(missing_ok=True)
            if not grows:  # else only when the larger run is known to contain the smaller one
                run.write_experiment()
        return run

    def remove_partials(self) -> None:
        """Remove what interrupted writers left; the caller must be the only writer."""
        others = (self.path / name for name in ("tables", "figures", "regraded"))
        shards = [*self.measurement.glob("shard-*"), self.scored]
        for folder in (self.path, self.rollouts, self.measurement, self.values, *others, *shards):
            remove_partials(folder)

    def take_over(self, *, without: str | None = None) -> None:
        """Add what earlier calls and other processes did to the timings and remarks of the run."""
        earlier, rounds = self.read_manifest(), self._rounds()
        calls = [call for path in self.path.glob(CALLS) if path != self.call and (call := _read_call(path))]
        own, self.timings, self.remarks_of_steps, self.remarks = self.remarks_of_steps, {}, {}, []
        # An extension that was interrupted has planned more completions than the remarks were about.
        for call in (earlier, *calls, {"rounds": rounds, "remarks_of_steps": own}):
            if call.get("rounds") == rounds:
                for step, said in call.get("remarks_of_steps", {}).items():
                    self.keep_remarks(step, [remark for remark in said if remark != without])
        for timings in (earlier.get("timings", {}), *(call["timings"] for call in calls), self._since):
            for name, seconds in timings.items():
                self.timings[name] = round(self.timings.get(name, 0.0) + seconds, 2)
        spent = [*(call["spent"] for call in calls), self._spent()]
        hosts = Counter[str]()
        for one in spent:
            hosts[one["host"]] += one["n_shards"]
        if sum(hosts.values()):
            seconds = {name: round(sum(one.get(name, 0.0) for one in spent), 2) for name in ("loading", "shards")}
            self.executed = {
                **self.experiment.execution.model_dump(exclude={"address"}),
                **({"ranks_per_worker": n_ranks()} if n_ranks() > 1 else {}),
                "processor_seconds": seconds,
                "shards_by_host": dict(+hosts),
            }

    def keep_remarks(self, step: str, remarks: Iterable[str]) -> None:
        """Keep what was said in a step, once; in the manifest also for later calls, unless it is the analysis."""
        said = list(dict.fromkeys(remarks))
        self.remarks += [remark for remark in said if remark not in self.remarks]
        if step != ANALYSIS:
            kept = self.remarks_of_steps.setdefault(step, [])
            kept += [remark for remark in said if remark not in kept]

    def turn(self) -> AbstractContextManager[None]:
        """Write what the processes of a run share, one after another."""
        return noted_turn(self.path)

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
    def scored(self) -> Path:
        """Folder of the proxies of completions that are not measured; it exists where a part was measured."""
        return self.measurement / SCORED

    @property
    def measures_part(self) -> bool:
        """Whether some prompts are measured, or were before all were asked for."""
        return self.experiment.measurement.n_prompts is not None or self.scored.exists()

    def measuring_order(self) -> list[str]:
        """Return the prompts in the order in which they are measured."""
        rounds = [one.prompt_ids for one in rounds_of(self.rollouts)]
        return measured_order(rounds, self.experiment.prompts.seed)

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
                for timings in (self.timings, self._since):
                    timings[name] = round(timings.get(name, 0.0) + seconds, 2)
                self.tracking.log({f"{name}/seconds": self.timings[name]})
                self.keep_remarks(name, [text for category, text in caught if category in _REMARKED])
                if is_first():
                    self.record()

    @property
    def call(self) -> Path:
        """The file in which this process leaves what it did."""
        return self.path / CALLS.replace("*", self._call)

    def _spent(self) -> dict[str, Any]:
        return {"host": socket.gethostname(), **asdict(self.spent)}

    def record(self) -> None:
        """Leave what this process did for the manifest, which comes with the analysis."""
        said = {"rounds": self._rounds(), "remarks_of_steps": self.remarks_of_steps}
        with suppress(OSError):  # a full disk, which is what the step itself then reports
            about = {"pid": os.getpid(), "card": self._card}
            write_json(self.call, {"timings": self._since, **said, "spent": self._spent(), **about})

    @contextmanager
    def loaded(self, load: Callable[[], Context]) -> Iterator[Context]:
        """Lend what the shards of a step need, with this process's threads and share of its GPU."""
        import torch

        from gradstats.policy.memory import memory_shared_by

        before, threads = torch.get_num_threads(), self.experiment.execution.threads
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            with memory_shared_by(self._n_on_card()):
                start = time.process_time()
                context = load()
                self.spent.loading += time.process_time() - start
                try:
                    yield context
                finally:
                    getattr(context, "close", lambda: None)()  # the next step needs the memory of the device
        finally:
            if threads is not None:
                torch.set_num_threads(before)

    def _n_on_card(self) -> int:
        """Record which GPU this process uses, and return how many of the run's do, also before they load anything."""
        import torch

        from gradstats.policy.memory import card_of

        device = self.experiment.policy.device
        if n_ranks() > 1 or device not in ("auto", "cuda") or not torch.cuda.is_available():
            return 1
        self._card = card_of(torch.device("cuda"))
        self.record()
        calls = map(_read_call, self.path.glob(CALLS))
        return max(1, sum(call.get("card") == self._card and is_alive(call["pid"]) for call in calls))

    def _rounds(self) -> list[dict[str, int]]:
        """Return the size of each round of sampling that is planned, without anything drawn where there is no plan."""
        return [
            {"n_prompts": len(one.prompt_ids), "group_size": one.group_size, "n_drawn": sum(one.batches)}
            for one in rounds_of(self.rollouts)
        ]

    def _part(self) -> dict[str, Any]:
        """Return which prompts are measured, where these are not all."""
        if (n := self.experiment.measurement.n_prompts) is None:
            return {}
        order = self.measuring_order()
        about = {"seed": self.experiment.prompts.seed, "of": len(order), "prompt_ids": order[:n]}
        return {"measured_prompts": about}

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
                **self._part(),
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
                "execution": self.executed or earlier.get("execution"),
                "remarks": list(dict.fromkeys(self.remarks)),
                "remarks_of_steps": {step: said for step, said in self.remarks_of_steps.items() if said},
                "computed_with": dict(computed_with),
                "files": [str(path.relative_to(self.path)) for path in paths],
            },
        )
        for path in self.path.glob(CALLS):
            path.unlink(missing_ok=True)
        self._since = {}


def _read_call(path: Path) -> dict[str, Any]:
    """Return what a process did; nothing where its record is damaged, which costs no result."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def _is_ours(path: Path) -> bool:
    """Return whether a folder is a run directory, or contains what a run that was killed at its very beginning left."""
    if not path.is_dir():
        return False
    folders = [path / name for name in ("rollouts", "measurement") if (path / name).is_dir()]
    left = holds_only(path, "rollouts", "measurement", LOCK, TURN, CALLS, PARTIAL)
    # Asked last: whoever begins it meanwhile writes the experiment before all else that was not expected.
    return (left and all(holds_only(folder, PARTIAL) for folder in folders)) or is_run_directory(path)


RUN_DIRECTORY = OutputType("a run directory", _is_ours)
