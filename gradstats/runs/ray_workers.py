"""Workers of a run that ray starts, on this machine or on a cluster: tasks, which it starts again where they die."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradstats.config.sections import ExecutionSection
from gradstats.runs.directory import CALLS, RunDirectory
from gradstats.runs.workers import LocalWorker, Task, WorkerDiedError
from gradstats.system.progress import ProgressReport

# How often ray starts a worker again.
_MOST_DEATHS = 3
# Seconds until a lack of workers is mentioned, until a folder counts as not there, and for a cluster to answer.
_PATIENCE, _LONGEST_DELAY, _LONGEST_CONNECTING = 20.0, 5.0, 10.0
# How the messages of ray on workers that died begin.
_ON_DEATHS = ("A worker died or was killed", "Task make_shards")


@contextmanager
def connected(section: ExecutionSection, device: str) -> Iterator[ExecutionSection]:
    """Start ray, or connect to a cluster, unless that was done before; lend the settings with what there is."""
    ray = _ray()
    if ray.is_initialized():
        yield section.with_gpus(device, ray.cluster_resources().get("GPU", 0))
        return
    options: dict[str, object] = {}
    address = section.address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        _require_cluster(address)
    else:  # room for as many workers as were asked for, even on a small machine
        n_cpus = max(section.workers * section.processors_per_worker, os.cpu_count() or 1)
        options = {"include_dashboard": False, "num_cpus": n_cpus}
    ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **options)
    try:
        n_gpus = ray.cluster_resources().get("GPU", 0)
        settled = section.with_gpus(device, n_gpus)
        if address is None:
            settled.require_gpus(n_gpus)
        yield settled
    finally:
        ray.shutdown()


def _require_cluster(address: str) -> None:
    """Refuse an address at which nothing answers, which ray would try for minutes."""
    if address in ("auto", "local") or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError(f"execution.address is {address!r}: write auto, or host:port of the cluster's head node")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LONGEST_CONNECTING).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"there is no cluster of ray at {address} (execution.address): {error}; start one with `ray start --head`, "
            "or leave the address out"
        ) from error


def workers_of_ray(run: RunDirectory, section: ExecutionSection, report: ProgressReport) -> list[RayWorker]:
    """Start the workers of a run, and say what each is given where there are GPUs."""
    ray = _ray()
    if ray.cluster_resources().get("GPU", 0):
        report.say(f"{section.workers} workers of ray, {section.given_to_each()}")
    remote = ray.remote(make_shards).options(
        num_cpus=section.processors_per_worker,
        num_gpus=section.gpus_per_worker,
        max_retries=_MOST_DEATHS,
        retry_exceptions=[WorkerDiedError],
    )
    task, until = Task.of(run, section), time.monotonic() + _PATIENCE

    def look() -> None:
        """Say once that no worker has left a record beside that of this process, where ray has no room for one."""
        nonlocal until
        if time.monotonic() < until:
            return
        until = math.inf
        if len(list(run.path.glob(CALLS))) < 2:
            free = ray.available_resources()
            report.say(
                f"no worker has begun yet: {section.given_to_each()}, and free are {free.get('CPU', 0):g} CPU and "
                f"{free.get('GPU', 0):g} GPU; waiting"
            )

    return [RayWorker(remote.remote(task, run.call.resolve()), look) for _ in range(section.workers)]


def make_shards(task: Task, call: Path) -> None:
    """Let a process of this node make shards, in a task of ray; ``call`` is a file that the run directory holds."""
    until = time.monotonic() + _LONGEST_DELAY
    while not call.exists():
        if time.monotonic() > until:
            raise FileNotFoundError(
                f"node {socket.gethostname()} does not see the run directory {call.parent}: choose one on a file "
                "system that all nodes share (--out)"
            )
        time.sleep(0.2)
    worker = LocalWorker(task, call.parent, None if task.gpus else "")
    try:
        while True:
            try:
                if not worker.is_running():
                    return
                time.sleep(0.2)
            except KeyboardInterrupt:  # by which ray cancels a task
                worker.stop()
    finally:
        worker.kill()


@dataclass
class RayWorker:
    """A worker that ray starts, and starts again."""

    _task: Any  # the reference of the task
    _look: Callable[[], None]  # whether any has begun

    def is_running(self) -> bool:
        """Return whether it has not ended; raise the error that ended it."""
        ray = _ray()
        self._look()
        if not ray.wait([self._task], timeout=0)[0]:
            return True
        try:
            ray.get(self._task)
        except ray.exceptions.TaskCancelledError:
            return False
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise WorkerDiedError(f"a worker died ({' '.join(str(error).split())})") from error
        return False

    def stop(self) -> None:
        """Let it end when its current shard is finished."""
        _ray().cancel(self._task)

    def kill(self) -> None:
        """End it at once."""
        ray = _ray()
        if ray.is_initialized():
            ray.cancel(self._task, force=True)


def _ray() -> Any:
    """Import ray, which reports no statistics of usage unless that is asked for."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray._private.worker

    # Whatever goes wrong in the cluster is printed to standard output, where it would mix with results.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = _print_of_ray
    return ray


def _print_of_ray(message: Mapping[str, Any], **_: object) -> None:
    """Print what ray reports to standard error, except on deaths, which are mentioned in a sentence of our own."""
    for line in message.get("lines", []):
        if not str(line).startswith(_ON_DEATHS):
            print(f"ray: {line}", file=sys.stderr)
