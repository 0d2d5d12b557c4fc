"""The executor of many machines: plain actors of ray, one part at a time each.

Ray starts a worker again when its process or its machine dies; the part that it was doing goes back to the front of
the line and to the next free worker, wherever that is. A part that ends its worker again and again is an error.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic

from gradstats.config.sections import ExecutionSection
from gradstats.runs.executors.local import Context, CpuTime, Part, Value, Work
from gradstats.runs.executors.ray_worker import Mailbox, Outcome, ShardWorker, WorkerEnvironment, error_of
from gradstats.system.progress import ProgressReport, finishing_current_shard

#: How many workers a part may end before it is an error.
MOST_DEATHS = 4
# Seconds between two looks at the workers, and until a lack of workers is mentioned.
_BETWEEN_LOOKS, _PATIENCE = 0.5, 20.0
# Seconds that a cluster may take to answer.
_LONGEST_CONNECTING = 10.0
# How the messages of ray on workers that died begin.
_ON_DEATHS = ("A worker died or was killed", f"Task {ShardWorker.__name__}.")


#: A handle or a reference of ray, which states no types.
Handle = Any


@dataclass
class Connection:
    """Ray, as started by this process or by its user."""

    own: bool = False  # whether this process started ray, or connected to it, and ends that

    def open(self, section: ExecutionSection, device: str = "auto") -> ExecutionSection:
        """Start ray, or connect to a cluster, unless that was done before; return what each worker is given there."""
        ray = _ray()
        if ray.is_initialized():
            return section.with_gpus(device, ray.cluster_resources().get("GPU", 0))
        options: dict[str, object] = {}
        if section.address is not None:
            _require_cluster(section.address)
        else:  # room for as many workers as were asked for, even on a small machine
            n_cpus = max(section.workers * section.processors_per_worker, os.cpu_count() or 1)
            options = {"include_dashboard": False, "num_cpus": n_cpus}
        ray.init(address=section.address or "local", log_to_driver=False, logging_level="ERROR", **options)
        self.own = True
        n_gpus = ray.cluster_resources().get("GPU", 0)
        section = section.with_gpus(device, n_gpus)
        try:
            if section.address is None:
                section.require_gpus(n_gpus)
        except ValueError:
            self.close()
            raise
        return section

    def close(self) -> None:
        """Stop ray, or leave the cluster, if it was started or entered here."""
        if self.own:
            _ray().shutdown()
            self.own = False


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


@dataclass
class RayExecutor:
    """Starts ray, or connects to a cluster, when the first workers are needed."""

    section: ExecutionSection
    device: str = "auto"  # of the policy
    spent: CpuTime = field(default_factory=CpuTime)
    deaths: int = 0  # workers that died with a part
    hosts: Counter[str] = field(default_factory=Counter)  # parts by machine
    connection: Connection = field(default_factory=Connection)  # to ray, which executors of several runs may share

    @property
    def threads(self) -> int:
        """Threads of a worker."""
        return self.section.threads or 1

    @contextmanager
    def crew(self, work: Work[Context]) -> Iterator[RayCrew[Context]]:
        """Lend workers, which are started when there are parts for them."""
        self.section = self.connection.open(self.section, self.device)
        surroundings = WorkerEnvironment.here(self.threads, without_gpu=not self.section.gpus_per_worker)
        crew = RayCrew[Context](self, pickle.dumps(work), surroundings)
        try:
            yield crew
        finally:
            crew.dismiss()

    def describe(self) -> dict[str, object]:
        """Return how the work was done."""
        settings = self.section.model_dump(exclude={"address"}) | {"threads": self.threads}
        return {**settings, **self.spent.summary(), "deaths": self.deaths, "parts_by_host": dict(self.hosts)}

    def counted_apart(self) -> RayExecutor:
        """Return the same executor with counts of its own, for one run of several."""
        return RayExecutor(self.section, self.device, connection=self.connection)

    def close(self) -> None:
        """Stop ray, if this executor started it."""
        self.connection.close()


@dataclass
class _Job:
    """A part that a worker is doing: its number, its key in the mailbox, and what it has counted so far."""

    number: int
    key: int
    worker: Handle
    wanted: bool = True
    steps: int = 0
    tokens: int = 0


class RayCrew(Generic[Context]):
    """The workers of one step, see :class:`gradstats.runs.executors.local.WorkerPool`."""

    def __init__(self, executor: RayExecutor, work: bytes, surroundings: WorkerEnvironment) -> None:
        self._executor, self._section = executor, executor.section
        self._new = (work, surroundings)
        self._workers: list[Handle] = []
        self._free: list[Handle] = []
        self._starting: dict[Handle, Handle] = {}
        self._busy: dict[Handle, _Job] = {}
        self._mailbox: Handle = None
        self._mail: Handle = None
        self._n_keys = 0

    def work(
        self,
        numbers: Sequence[int],
        part: Callable[[int], Part[Context, Value]],
        report: ProgressReport,
        what: str = "shard",
    ) -> Generator[tuple[int, Value], None, None]:
        """Hand out parts to free workers until all are done; values arrive in the order in which they are finished."""
        waiting, deaths = deque(numbers), Counter[int]()
        failure: BaseException | None = None
        self._hire(min(self._section.workers, len(numbers)), report)
        idle_since = time.monotonic()
        try:
            with finishing_current_shard(report.say, what) as interrupt:
                while True:
                    stopping = interrupt.asked or failure is not None
                    while waiting and self._free and not stopping:
                        number = waiting.popleft()
                        self._hand_out(number, part(number))
                    wanted = any(job.wanted for job in self._busy.values())
                    if not wanted and (stopping or not waiting):
                        break
                    if wanted:
                        idle_since = time.monotonic()
                    elif time.monotonic() - idle_since > _PATIENCE:
                        idle_since = float("inf")
                        report.say(_no_worker(self._section))
                    for ref in self._finished(report):
                        job = self._busy.pop(ref)
                        outcome = self._outcome(ref, job, report)
                        if outcome is None:
                            if not job.wanted:
                                continue
                            deaths[job.number] += 1
                            waiting.appendleft(job.number)
                            failure = failure or _killer(what, job.number, deaths, report)
                        elif job.wanted and outcome.failed:
                            failure = failure or error_of(outcome.pickled)
                        elif job.wanted:
                            yield job.number, pickle.loads(outcome.pickled)
                if failure is not None:
                    raise failure
                interrupt.stop_if_asked()
        finally:
            for job in self._busy.values():  # the caller has seen enough: what is being done is no longer wanted
                job.wanted = False

    def dismiss(self) -> None:
        """End the workers."""
        ray = _ray()
        for actor in (*self._workers, self._mailbox):
            if actor is not None and ray.is_initialized():
                ray.kill(actor)
        self._workers, self._mailbox = [], None

    def _hire(self, n_workers: int, report: ProgressReport) -> None:
        """Start workers until there are ``n_workers``, and say what each is given where there are GPUs."""
        ray = _ray()
        if len(self._workers) < n_workers and ray.cluster_resources().get("GPU", 0):
            report.say(f"{n_workers} workers of ray, {self._section.given_to_each()}")
        if self._mailbox is None:
            self._mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()
        options = {"num_cpus": self._section.processors_per_worker, "num_gpus": self._section.gpus_per_worker}
        while len(self._workers) < n_workers:
            # The part is given to another worker when this one dies, rather than wait for it to come back.
            actor = ray.remote(ShardWorker).options(**options, max_restarts=-1, max_task_retries=0).remote(*self._new)
            self._workers.append(actor)
            self._await(actor)

    def _await(self, worker: Handle) -> None:
        """Take a worker for free when it has started, which ray tries until it succeeds."""
        self._starting[worker.ready.options(max_task_retries=-1).remote()] = worker

    def _hand_out(self, number: int, part: Part[Context, Value]) -> None:
        worker, self._n_keys = self._free.pop(), self._n_keys + 1
        # The handle travels with each part: ray cannot restart an actor whose constructor took one.
        ref = worker.do.remote(pickle.dumps(part, protocol=5), self._n_keys, self._mailbox)
        self._busy[ref] = _Job(number, self._n_keys, worker)

    def _finished(self, report: ProgressReport) -> list[Handle]:
        """Wait a moment; return the parts that are finished, and count the progress of the others."""
        ray = _ray()
        refs = [*self._busy, *self._starting]
        found, _ = ray.wait(refs, num_returns=1, timeout=_BETWEEN_LOOKS) if refs else ([], [])
        for ref in found:
            if ref in self._starting:
                self._welcome(ref)
        self._count_progress(report)
        return [ref for ref in found if ref in self._busy]

    def _welcome(self, ref: Handle) -> None:
        """Take a worker that has started for free; leave out one that cannot start."""
        ray, worker = _ray(), self._starting.pop(ref)
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            self._workers.remove(worker)
            if not self._workers:
                raise RuntimeError(
                    f"no worker can be started ({' '.join(str(error).split())}): every machine needs "
                    "gradstats, and the same versions of Python and ray"
                ) from error
        else:
            self._free.append(worker)

    def _count_progress(self, report: ProgressReport) -> None:
        """Show what the workers have counted since the last look."""
        ray = _ray()
        if self._mail is None:
            self._mail = self._mailbox.take.remote()
        if not ray.wait([self._mail], timeout=0)[0]:
            return
        ref, self._mail = self._mail, None
        try:
            counts = ray.get(ref)
        except ray.exceptions.RayError:  # it died, and is started again
            return
        for job in self._busy.values():
            if job.key in counts and job.wanted:
                _advance(report, job, *counts[job.key])

    def _outcome(self, ref: Handle, job: _Job, report: ProgressReport) -> Outcome | None:
        """Return what became of a part; None where its worker died."""
        ray = _ray()
        try:
            outcome: Outcome = ray.get(ref)
        except ray.exceptions.RayTaskError:
            raise  # a fault of the worker's own code
        except ray.exceptions.RayError:
            self._executor.deaths += 1
            _advance(report, job, 0, 0)
            self._await(job.worker)
            return None
        self._free.append(job.worker)
        self._executor.spent.add(outcome.loading, outcome.processor_seconds)
        self._executor.hosts[outcome.host] += 1
        for of_numbers, sentence in outcome.remarks:
            warnings.warn(sentence, RuntimeWarning if of_numbers else UserWarning, stacklevel=3)
        if job.wanted and not outcome.failed:
            _advance(report, job, outcome.steps, outcome.tokens)
        return outcome


def _advance(report: ProgressReport, job: _Job, steps: int, tokens: int) -> None:
    """Let the bar show that a part has counted so many sequences and tokens in all; fewer where it begins again."""
    if steps != job.steps:
        report.advance(steps - job.steps)
    if tokens > job.tokens:
        report.tokens(tokens - job.tokens)
    job.steps, job.tokens = steps, tokens


def _killer(what: str, number: int, deaths: Counter[int], report: ProgressReport) -> BaseException | None:
    """Say that the worker of a part died; return an error where that has happened too often."""
    if deaths[number] < MOST_DEATHS:
        report.say(f"a worker died while it made {what} {number}: ray starts it again, and the {what} is made again")
        return None
    return RuntimeError(
        f"{what} {number} ended {deaths[number]} workers, one after another: if their memory ran out, lower "
        "measurement.token_budget or sampling.batch_size, or give each worker more memory; what was finished is kept, "
        "and the same command resumes from there"
    )


def _no_worker(section: ExecutionSection) -> str:
    """Return a sentence on workers that do not start."""
    free = _ray().available_resources()
    return (
        f"no worker has started yet: {section.given_to_each()}, and free are "
        f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU; waiting"
    )


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
