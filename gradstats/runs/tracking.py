"""Following a run in a tracker, trackio or Weights & Biases: settings, progress, timings, results.

Both libraries have the same interface: ``init``, ``log``, ``finish``, ``Table``, ``Image``.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gradstats.config.experiment import Experiment
from gradstats.report.result_values import completion_values
from gradstats.rollouts.table import Rollouts
from gradstats.system.environment import installed
from gradstats.system.files import read_json, write_json

#: Tracker → how to install it.
REMEDIES = {"trackio": "pip install 'gradstats[tracking]'", "wandb": "pip install wandb"}
#: The project in which runs are logged, unless TRACKIO_PROJECT or WANDB_PROJECT names another.
PROJECT = "gradstats"
#: The file of a run directory that names its run in the tracker, which later calls add to.
_TRACKED = "tracking.json"


def require_tracker(tracker: str) -> None:
    """Refuse a tracker that is not installed."""
    if tracker in REMEDIES and installed(tracker) is None:
        raise ImportError(
            f"tracking is {tracker}, which is not installed: {REMEDIES[tracker]}, or run with --set tracking=none"
        )


@dataclass
class Tracking:
    """The tracker of a run; without one, nothing is logged.

    When the tracker fails, a warning says so once and the run continues without it.
    """

    name: str = "none"
    module: Any = None  # trackio or wandb, in which a run is open; None where nothing is logged
    _since: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def of(cls, experiment: Experiment, path: Path) -> Iterator[Tracking]:
        """Lend the tracker that an experiment names, with the experiment's settings logged; finish it on leaving."""
        require_tracker(experiment.tracking)
        tracking = cls(experiment.tracking)
        if experiment.tracking in REMEDIES:
            tracking._open(experiment, path)
        try:
            yield tracking
        finally:
            tracking._attempt(lambda tracker: tracker.finish())

    def _open(self, experiment: Experiment, path: Path) -> None:
        project = os.environ.get(f"{self.name.upper()}_PROJECT", PROJECT)
        known = read_json(path / _TRACKED) if (path / _TRACKED).exists() else {}
        if (known.get("tracker"), known.get("project")) != (self.name, project):
            known = {"tracker": self.name, "project": project, "id": secrets.token_hex(4)}
        named = {"name": experiment.name, "id": known["id"]}
        if self.name == "trackio":  # which finds runs by their names
            named = {"name": f"{experiment.name} {known['id']}"}
        try:
            self.module = importlib.import_module(self.name)
            with redirect_stdout(sys.stderr):
                self.module.init(project=project, config=experiment.model_dump(), resume="allow", **named)
        except Exception as error:
            raise RuntimeError(
                f"{self.name} could not be started ({_first_line(error)}): correct its settings, or run with "
                "--set tracking=none"
            ) from error
        write_json(path / _TRACKED, known)

    def log(self, values: Mapping[str, object]) -> None:
        """Log numbers by key."""
        self._attempt(lambda tracker: tracker.log(dict(values)))

    def begin(self) -> None:
        """Take the time from here to the end of the first shard of a step."""
        self._since = time.monotonic()

    def shard(self, step: str, rollouts: Rollouts) -> None:
        """Log a finished shard: its completions' number, mean length and reward, and tokens per second."""
        now = time.monotonic()
        seconds, self._since = max(now - self._since, 1e-9), now
        found = completion_values(rollouts) | {"tokens_per_second": float(rollouts.lengths.sum()) / seconds}
        self.log({f"{step}/{key}": value for key, value in found.items()})

    def results(self, values: Mapping[str, float], variance: pd.DataFrame | None, pictures: Iterable[Path]) -> None:
        """Log the results of a finished run: its numbers, the table of the comparison, and its figures in PNG."""
        self.log({f"results/{key}": value for key, value in values.items()})
        if variance is not None:
            self._attempt(lambda tracker: tracker.log({"results/variance": tracker.Table(dataframe=variance)}))
        for path in pictures:
            self._attempt(lambda tracker, path=path: tracker.log({f"figures/{path.stem}": tracker.Image(str(path))}))

    def _attempt(self, action: Callable[[Any], object]) -> None:
        """Do something with the tracker, if there is one; when it fails, warn, and log nothing from then on."""
        if self.module is None:
            return
        try:
            with redirect_stdout(sys.stderr):
                action(self.module)
        except Exception as error:
            self.module = None
            warnings.warn(
                f"{self.name} failed ({_first_line(error)}): the run continues, and nothing more is logged",
                RuntimeWarning,
                stacklevel=3,
            )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
