"""Checks of the package on a GPU, or in small on a CPU: one line of JSON for each measurement.

Parts, in order of worth:

``sketch``    the sketch against that of the CPU, and its time
``kernels``   kernels and waits of one chunk, by torch's profiler: 2 layers of R1-Distill-Qwen-1.5B's shape
``exact``     the engines against the loop, twice, and against the CPU: the embedded policy
``speed``     norms and sketches beside a plain pass and a training step with checkpoints: R1-Distill-Qwen-1.5B's shape
``memory``    the peak of ``gs.measure`` beside the estimate
``sampling``  tokens per second of the samplers
``flags``     TF32, the attention kernels, deterministic algorithms
``tests``     the tests of the engines and policies
``demo``      ``gradstats run embedded``

Each part is a process: one that fails, even by a fault of the device, is a line with ``error``, and the next begins.
What there was no time for is a line with ``skipped``. On a GPU the lines are also written to figures/engines/gpu.csv
under the card's name, where parts that are not run again keep theirs.

Nothing is downloaded. The package is imported from the repository with ``PYTHONPATH=.``, once it is installed.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
import tyro
from engines import SKETCH_DIM, shape_of

import gradstats as gs
from gradstats.config.sections import SamplingSection
from gradstats.gradients import ENGINES, CountSketch, select_parameters
from gradstats.gradients.memory import SELF_CHECK, activation_size, peak_memory
from gradstats.gradients.objective import Chunk, Objective, make_chunk, plan_chunks
from gradstats.gradients.recompute import RecomputeRule
from gradstats.gradients.sketches import SKETCH_VERSIONS, default_sketch_version
from gradstats.measurement.disk_size import GIB
from gradstats.policy.policy import Policy, load_policy
from gradstats.rollouts.table import Rollouts
from gradstats.sampling import SamplerSettings
from gradstats.sampling.plan import open_sampler
from gradstats.system.files import atomic_path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "figures" / "engines" / "gpu.csv"
#: Measurements that begin with fewer seconds left are skipped.
LEAST_SECONDS = 15.0
Values = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Where a part runs, and until when."""

    name: str
    device: str
    small: bool
    end: float  # of the time it has, by time.time()

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.end - time.time()

    @property
    def on_gpu(self) -> bool:
        """Whether CUDA counts memory and has to be waited for."""
        return self.device == "cuda"

    def line(self, measurement: Callable[[], Values], **about: object) -> None:
        """Print what a measurement returns beside what it is about; its error where it raises one."""
        if self.left < LEAST_SECONDS:
            _print(self.name, **about, skipped="no time was left")
            return
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            values = measurement()
        except Exception as error:
            steps = [f"{Path(step.filename).name}:{step.lineno}" for step in traceback.extract_tb(error.__traceback__)]
            values = {"error": f"{type(error).__name__}: {str(error)[:300]}", "where": " ".join(steps[-4:])}
        _print(self.name, **about, **values, **({"peak_gib": self.peak_gib()} if self.on_gpu else {}))

    def peak_gib(self) -> float:
        """Return the most memory since the measurement began; on a CPU, since the process did."""
        if self.on_gpu:
            return torch.cuda.max_memory_allocated() / GIB
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024 / GIB

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object], repeats: int = 3) -> float:
        """Return the median seconds of a function that has run once before."""
        found = []
        for repeat in range(repeats + 1):
            self.wait()
            start = time.perf_counter()
            function()
            self.wait()
            if repeat:
                found.append(time.perf_counter() - start)
            if found and self.left < LEAST_SECONDS:
                break
        return float(np.median(found))

    def random_policy(self, dtype: torch.dtype, n_layers: int | None = None) -> Policy:
        """Build R1-Distill-Qwen-1.5B's shape with random weights; a small one in its place where all is small."""
        config = shape_of("width 128" if self.small else "R1-Distill-1.5B")
        config.num_hidden_layers = n_layers or config.num_hidden_layers
        config.max_position_embeddings = 2**17
        torch.manual_seed(0)
        with torch.device(self.device):
            model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        return Policy(model.eval(), None, "random")


def _print(part: str, **values: Any) -> Values:
    rounded = {key: float(f"{one:.4g}") if isinstance(one, float) else one for key, one in values.items()}
    print(json.dumps({"part": part, **rounded}, ensure_ascii=False), flush=True)
    return {"part": part, **rounded}


def random_rollouts(n_sequences: int, time_: int, policy: Policy) -> Rollouts:
    """Draw random tokens: a prompt of 16, and completions up to a length in all."""
    tokens = np.random.default_rng(0).integers(10, policy.model.config.vocab_size, (n_sequences, time_))
    prompt_ids = [str(row // 4) for row in range(n_sequences)]
    return Rollouts.from_sequences(
        tokens[:, :16].tolist(), tokens[:, 16:].tolist(), np.arange(n_sequences) % 2.0, prompt_ids
    )


def deviation(found: Any, reference: Any) -> float:
    """Return the largest difference relative to the largest magnitude of the reference."""
    found, reference = np.asarray(found), np.asarray(reference)
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def chunk_of(policy: Policy, n_sequences: int, time_: int) -> Chunk:
    """Return random tokens as one chunk, whose layers run again where it is long."""
    rollouts = random_rollouts(n_sequences, time_, policy)
    chunk = make_chunk(rollouts, np.arange(n_sequences), policy.device, policy.dtype)
    return replace(chunk, recompute=time_ > 4096)


def engine_run(policy: Policy, chunk: Chunk, sketch_dim: int | None) -> Callable[[], Any]:
    """Return a function that measures a chunk with ``ghost``."""
    selection = select_parameters(policy.model)
    version = default_sketch_version(selection.n_parameters)
    sketch = None if sketch_dim is None else CountSketch(sketch_dim, version=version)
    return partial(ENGINES["ghost"], policy, chunk, selection, sketch)


def machine(part: Part) -> None:
    """Name the device and the versions."""

    def described() -> Values:
        return {
            "name": torch.cuda.get_device_name() if part.on_gpu else platform.processor() or platform.machine(),
            "memory_gib": torch.cuda.get_device_properties(0).total_memory / GIB if part.on_gpu else None,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }

    part.line(described, device=part.device, small=part.small)


def sketches(part: Part) -> None:
    """Compare the sketch with that of the CPU, and time it."""
    n = 2**16 if part.small else 2**26
    gradients = torch.randn(2, n, generator=torch.Generator().manual_seed(0))

    def compared(sketch: CountSketch) -> Values:
        def add(gradients: torch.Tensor) -> torch.Tensor:
            sketches = torch.zeros(len(gradients), SKETCH_DIM, device=gradients.device)
            sketch.add(sketches, "weight", gradients)
            return sketches

        there = gradients.to(part.device)
        first, second = add(there).cpu(), add(there).cpu()
        return {
            "sketches": deviation(first, add(gradients)),
            "equal_twice": torch.equal(first, second),
            "seconds_per_1e9": part.seconds(lambda: add(there)) * 1e9 / n,
        }

    for version in SKETCH_VERSIONS:
        part.line(partial(compared, CountSketch(SKETCH_DIM, version=version)), case=f"version {version}")


def kernels(part: Part) -> None:
    """Count kernels and waits of a chunk without and with a sketch; on a CPU, operators."""
    policy = part.random_policy(torch.float32 if part.small else torch.bfloat16, n_layers=2)
    for n_sequences, time_ in ((1, 64),) if part.small else ((1, 1024), (4, 1024)):
        chunk = chunk_of(policy, n_sequences, time_)
        for name, sketch_dim in (("ghost", None), ("ghost+sketch", SKETCH_DIM)):
            _profile(part, engine_run(policy, chunk, sketch_dim), case=f"{n_sequences} × {time_}", what=name)


def _profile(part: Part, run: Callable[[], Any], **about: str) -> None:
    """Print the counts of one run, and the kernels that take longest."""
    activity = torch.profiler.ProfilerActivity
    begun, time_of = ("LaunchKernel", "self_device_time_total") if part.on_gpu else ("aten::", "self_cpu_time_total")
    events: list[Any] = []

    def counted() -> Values:
        run()
        part.wait()
        with torch.profiler.profile(activities=[activity.CPU, *([activity.CUDA] if part.on_gpu else [])]) as seen:
            run()
            part.wait()
        events.extend(seen.key_averages())
        return {
            "kernels": sum(event.count for event in events if begun in event.key),
            "waits": sum(event.count for event in events if "Synchronize" in event.key),
        }

    part.line(counted, **about)
    for event in sorted(events, key=lambda event: getattr(event, time_of), reverse=True)[:6]:
        seconds = getattr(event, time_of) / 1e6
        _print(part.name, **about, kernel=event.key[:80], calls=event.count, seconds=seconds)


#: What is measured beside norms and sketches, as arguments of ``gs.measure``.
MEASURED: dict[str, Values] = {
    "plain": {},
    "recompute": {"recompute": "on"},
    "version 2": {"sketch_version": 2},
    "token weights": {},
    "token probes": {"token_probes": 8},
    "exact tokens": {"token_exact": 2},
    "adam": {"metric": "adam", "second_moments": "embedded"},
}


def exact(part: Part) -> None:
    """Compare the engines with the loop, and the loop with that of the CPU, on completions of the embedded policy."""
    problems = gs.load_prompts("embedded", 2 if part.small else 8, rng=0)
    size: Values = {"group_size": 2, "max_new_tokens": 16} if part.small else {"group_size": 4, "max_new_tokens": 128}
    rollouts = None
    for dtype in ("float32", "bfloat16"):
        policy = load_policy("embedded", dtype=dtype, device=part.device, progress=False)
        rollouts = rollouts or gs.sample(policy, problems, rng=0, progress=False, **size)
        for name, options in MEASURED.items():
            if part.small and dtype != "float32" and options:
                continue
            if name == "token weights":
                options = {"token_weights": [np.linspace(0, 1, length) for length in rollouts.lengths]}
            measure = partial(gs.measure, rollouts=rollouts, sketch_dim=1024, progress=False, **options)
            runs = {"ghost": partial(measure, policy, engine="ghost")}
            if not options:
                on_cpu = load_policy("embedded", dtype=dtype, device="cpu", progress=False)
                runs["vmap"] = partial(measure, policy, engine="vmap")
                runs["loop of the CPU"] = partial(measure, on_cpu, engine="loop", allow_policy_mismatch=True)
            compare(part, f"{dtype}, {name}", partial(measure, policy, engine="loop"), runs)


def compare(
    part: Part, case: str, loop: Callable[[], gs.Measurement], runs: dict[str, Callable[[], gs.Measurement]]
) -> None:
    """Print how far other ways to measure are from the loop, and whether two measurements are the same."""
    reference: dict[str, np.ndarray] = {}

    def looped() -> Values:
        measured = loop()
        reference.update(_arrays(measured))
        return {"from_float32": measured.metadata["self_check"]["deviation_from_float32"]}

    def compared(run: Callable[[], gs.Measurement]) -> Values:
        start = time.perf_counter()
        first = _arrays(run())
        seconds, second = time.perf_counter() - start, _arrays(run())
        return {
            **{name: deviation(array, reference[name]) for name, array in first.items()},
            "equal_twice": all(np.array_equal(array, second[name]) for name, array in first.items()),
            "seconds": seconds,
        }

    part.line(looped, case=case, what="loop")
    for name, run in runs.items():
        part.line(partial(compared, run), case=case, what=name)


def _arrays(measured: gs.Measurement) -> dict[str, np.ndarray]:
    """Return the numbers of a measurement that are compared."""
    arrays = {"norms": measured.sq_norms, "sketches": measured.sketches}
    arrays |= {f"norms of {name}": one.sq_norms for name, one in measured.weighted.items()}
    for name, rows in (("projections", measured.token_projections), ("exact tokens", measured.heavy_sq_norms)):
        arrays[name] = None if rows is None else np.concatenate([row.ravel() for row in rows])
    return {name: array for name, array in arrays.items() if array is not None and array.size}


def speed(part: Part) -> None:
    """Time ``ghost`` beside a plain pass, and beside a training step that keeps the inputs of layers alone."""
    sizes = ((2, 64), (1, 128)) if part.small else ((1, 4096), (8, 512), (4, 2048), (1, 8192), (1, 16384), (1, 32768))
    for dtype in (torch.float32,) if part.small else (torch.bfloat16, torch.float32):
        policy = part.random_policy(dtype)
        for n_sequences, time_ in sizes if dtype == torch.bfloat16 else sizes[:3]:
            chunk = chunk_of(policy, n_sequences, time_)
            runs = {
                "plain": partial(backward, policy, chunk),
                "checkpointed": partial(training_step, policy, chunk),
                "ghost": engine_run(policy, chunk, None),
                "ghost+sketch": engine_run(policy, chunk, SKETCH_DIM),
            }
            time_beside(part, f"{str(dtype).removeprefix('torch.')}, {n_sequences} × {time_}", runs)


def time_beside(part: Part, case: str, runs: dict[str, Callable[[], Any]]) -> None:
    """Print the seconds of each run, and over those of the first two."""
    found: dict[str, float] = {}

    def timed(name: str, run: Callable[[], Any]) -> Values:
        found[name] = part.seconds(run)
        beside = [one for one in list(runs)[:2] if one in found]
        return {"seconds": found[name]} | {f"over_{one}": found[name] / found[one] for one in beside}

    for name, run in runs.items():
        part.line(partial(timed, name, run), case=case, what=name)


def backward(policy: Policy, chunk: Chunk) -> None:
    """Run the objective and its backward pass, without the logits of a whole sequence."""
    with Objective(policy.model, 1.0) as objective, torch.enable_grad():
        logprobs, _ = objective(policy.model, chunk.input_ids, chunk.kept)
        torch.autograd.backward(logprobs, chunk.weights[0])
    policy.model.zero_grad(set_to_none=True)


def training_step(policy: Policy, chunk: Chunk) -> None:
    """Do the same as a trainer does that checkpoints activations."""
    model: Any = policy.model
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    try:
        backward(policy, chunk)
    finally:
        model.eval()
        model.gradient_checkpointing_disable()


def memory(part: Part) -> None:
    """Compare the peak of a measurement with the larger estimate, of its chunks and of the self-check."""
    policy = part.random_policy(torch.float32 if part.small else torch.bfloat16)
    selection, activations = select_parameters(policy.model), activation_size(policy)
    rule = RecomputeRule.of(policy, "auto", None, "ghost")

    def compared(rollouts: Rollouts, time_: int) -> Values:
        chunks = plan_chunks(rollouts, policy, selection, rule.token_budget, gradients_held=0)
        n_sequences = max(map(len, chunks))
        again = rule(n_sequences, time_)
        estimate = max(
            peak_memory(policy, name, selection, n, time_, SKETCH_DIM, activations, again).total
            for name, n in (("ghost", n_sequences), (SELF_CHECK, 1))
        )
        start = time.perf_counter()
        measured = gs.measure(policy, rollouts, progress=False)
        seconds = time.perf_counter() - start
        return {
            "engine": measured.metadata["engine"],
            "sequences_of_chunk": n_sequences,
            "recompute": again,
            "seconds": seconds,
            "estimate_gib": estimate,
            "over_estimate": part.peak_gib() / estimate,
        }

    for n_sequences, time_ in ((4, 64),) if part.small else ((8, 512), (4, 4096), (2, 16384)):
        rollouts = random_rollouts(n_sequences, time_, policy)
        part.line(partial(compared, rollouts, time_), case=f"{n_sequences} × {time_}")


def sampling(part: Part) -> None:
    """Count the tokens per second of the samplers, and draw twice from the same seeds."""
    embedded = load_policy("embedded", device=part.device, progress=False)
    problems = gs.load_prompts("embedded", 4 if part.small else 32, rng=0)
    prompts = [embedded.encode_prompt(problem.prompt) for problem in problems for _ in range(4)]

    def drawn(policy: Policy, sampler: str, prompts: list[list[int]], cap: int) -> Values:
        opened, seeds = open_sampler(policy, SamplingSection.model_validate({"sampler": sampler})), [0] * len(prompts)
        start = time.perf_counter()
        first, second = (opened.draw(prompts, SamplerSettings(cap), seeds, lambda count: None) for _ in range(2))
        part.wait()
        seconds, n_tokens = time.perf_counter() - start, sum(len(one.tokens) for one in [*first, *second])
        equal = [one.tokens for one in first] == [one.tokens for one in second]
        return {"tokens": n_tokens, "tokens_per_second": n_tokens / seconds, "equal_twice": equal}

    cap = 8 if part.small else 128
    for sampler in ("transformers",) if part.small else ("transformers", "continuous"):
        run = partial(drawn, embedded, sampler, prompts, cap)
        part.line(run, case=f"embedded, {len(prompts)} × {cap}", what=sampler)
    if part.small:
        return
    large = replace(part.random_policy(torch.bfloat16), tokenizer=embedded.tokenizer)
    for n in (16, 64):
        for sampler in ("transformers", "continuous"):
            run = partial(drawn, large, sampler, [list(range(20, 84))] * n, cap)
            part.line(run, case=f"1.5 billion parameters, {n} × {cap}", what=sampler)


def flags(part: Part) -> None:
    """Measure under TF32, under each attention kernel, and with deterministic algorithms."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    policies = {
        dtype: load_policy("embedded", dtype=dtype, device=part.device, progress=False)
        for dtype in ("float32", "bfloat16")
    }
    problems = gs.load_prompts("embedded", 2, rng=0)
    rollouts = gs.sample(policies["float32"], problems, group_size=2, max_new_tokens=24, rng=0, progress=False)

    def sq_norms(dtype: str = "float32") -> np.ndarray:
        options = {"sketch_dim": 256, "allow_policy_mismatch": True, "progress": False}
        return gs.measure(policies[dtype], rollouts, engine="ghost", **options).sq_norms

    reference = sq_norms()

    def under(switch: Callable[[Any], Any], value: Any, before: Any) -> Values:
        switch(value)
        try:
            return {"norms": deviation(sq_norms(), reference)}
        finally:
            switch(before)

    def with_kernel(kernel: SDPBackend, dtype: str) -> Values:
        try:
            with sdpa_kernel(kernel):
                return {"norms": deviation(sq_norms(dtype), reference)}
        except RuntimeError as error:
            if not re.search("No (viable backend|available kernel)", str(error)):
                raise
            return {"skipped": "the device has no such kernel"}

    for precision in ("high", "medium"):
        run = partial(under, torch.set_float32_matmul_precision, precision, torch.get_float32_matmul_precision())
        part.line(run, case="float32", what=f"products of {precision} precision")
    part.line(
        partial(under, torch.use_deterministic_algorithms, True, False), case="float32", what="deterministic algorithms"
    )
    names = ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION")
    for name in names[:1] if part.small else names:
        for dtype in policies:
            part.line(partial(with_kernel, getattr(SDPBackend, name), dtype), case=dtype, what=name)


def tests(part: Part) -> None:
    """Run the tests of engines and policies, and print each that fails."""
    folders = ["tests/gradients/test_parameters.py"] if part.small else ["tests/gradients", "tests/policy"]
    # Settings of the project for plugins that may be missing here are left out.
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-W", "default", "-rfE"]
    failed: list[tuple[str, str]] = []

    def counted() -> Values:
        command = [sys.executable, "-m", "pytest", *options, "-m", "not slow", *folders]
        printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=part.left).stdout
        failed.extend(re.findall(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", printed, re.M))
        counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", printed.splitlines()[-1])
        return {kind: int(count) for count, kind in counts}

    if importlib.util.find_spec("pytest") is None:
        _print(part.name, case=" ".join(folders), skipped="pytest is not installed")
        return
    part.line(counted, case=" ".join(folders))
    for test, message in failed:
        _print(part.name, case=test, error=message)


def demo(part: Part) -> None:
    """Run the demo, whose time is that of its steps."""
    small = ["prompts.n=4", "sampling.group_size=4", "sampling.max_new_tokens=32"] if part.small else []

    def timed() -> Values:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "gradstats", "run", "embedded", "--out", f"{folder}/run", "--no-progress"]
            command += ["--set", f"policy.device={part.device}", *small]
            start = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=part.left)
            if done.returncode:
                raise RuntimeError(done.stderr[-300:])
            seconds = time.perf_counter() - start
            manifest = json.loads(Path(folder, "run", "manifest.json").read_text("utf-8"))
        steps = {f"seconds_of_{name}": one for name, one in manifest["timings"].items()}
        return {"seconds": seconds, **steps}

    part.line(timed, case="embedded")


PARTS: dict[str, Callable[[Part], None]] = {
    "sketch": sketches,
    "kernels": kernels,
    "exact": exact,
    "speed": speed,
    "memory": memory,
    "sampling": sampling,
    "flags": flags,
    "tests": tests,
    "demo": demo,
}


def in_a_process(name: str, arguments: list[str], end: float) -> Iterator[Values]:
    """Run one part in a process of its own, pass its lines on and yield them."""
    if end - time.time() < LEAST_SECONDS:
        yield _print(name, skipped="no time was left")
        return
    command = [sys.executable, __file__, "--inside", name, "--end", str(end), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with _killed_at(end, process):
            for line in process.stdout:
                if line.startswith("{"):
                    print(line, end="", flush=True)
                    yield json.loads(line)
    if process.returncode:
        late = " when its time was over" if time.time() >= end else ""
        yield _print(name, error=f"the process ended with exit code {process.returncode}{late}")


@contextmanager
def _killed_at(end: float, process: subprocess.Popen[str]) -> Iterator[None]:
    timer = threading.Timer(max(end - time.time(), 0.0), process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def write(lines: list[Values], table: Path) -> None:
    """Write the lines of a GPU, in the place of those of the same parts on the same card."""
    rows = pd.DataFrame(lines)
    rows.insert(0, "card", lines[0]["name"])
    if table.exists():
        earlier = pd.read_csv(table)
        replaced = (earlier["card"] == lines[0]["name"]) & earlier["part"].isin(rows["part"])
        rows = pd.concat([earlier[~replaced], rows], ignore_index=True)
    with atomic_path(table) as partial_file:
        rows.to_csv(partial_file, index=False, lineterminator="\n")


def main(
    parts: tuple[str, ...] = tuple(PARTS),
    small: bool = False,
    seconds: float = 540.0,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    table: Path = TABLE,
    inside: str | None = None,
    end: float = 0.0,
) -> None:
    """Run parts, print a line for each measurement, and write the table if this is a GPU.

    Args:
        parts: which of them, in this order.
        small: take small models and few tokens, for a CPU.
        seconds: time of all parts together.
        device: cuda or cpu.
        table: the file that is written.
        inside: one part, in this process (the check calls itself with this option).
        end: until when, in seconds since 1970 (likewise).
    """
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        raise SystemExit(f"parts holds {unknown[0]!r}: choose from {', '.join(PARTS)}")
    if inside is not None:
        warnings.simplefilter("ignore")
        os.environ["HF_HUB_OFFLINE"] = "1"
        {"machine": machine, **PARTS}[inside](Part(inside, device, small, end))
        return
    end = time.time() + seconds
    arguments = ["--device", device, *(["--small"] if small else [])]
    lines = [line for name in ("machine", *parts) for line in in_a_process(name, arguments, end)]
    if device == "cuda" and "name" in lines[0]:
        write(lines, table)


if __name__ == "__main__":
    tyro.cli(main)
