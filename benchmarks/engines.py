"""Time and memory of the gradient engines relative to the ordinary backward pass that trains the same batch.

Cases: the embedded policy; the architectures of SmolLM2-135M and R1-Distill-Qwen-1.5B with random weights; a mixture of
experts like Qwen3-30B-A3B with half its width and 3 of its 48 layers; a small grid of widths and lengths. Methods:
``plain`` (forward and backward of the batch, the reference), ``ghost``, ``ghost+sketch``, ``vmap``, ``loop``, and, if
Opacus is installed, its ghost norms for comparison; ``ghost+metric`` and ``ghost+sketch+metric`` measure in a metric.
For ragged batches, ``loop`` runs without padding and ``ghost`` in
the chunks that a measurement would form.

Times are medians of repeats in one process in which the methods alternate, so that the ratio of a repeat compares
neighbouring times. Peak memory is that of a fresh process that runs one method once. The benchmark writes a table, a
figure and a manifest; cases that are not run again keep their rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3MoeConfig

from gradstats.gradients import ENGINES, CountSketch, select_parameters
from gradstats.gradients.objective import make_chunk, plan_chunks
from gradstats.policy.memory import is_out_of_memory
from gradstats.policy.policy import Policy, load_policy
from gradstats.rollouts.table import Rollouts
from gradstats.system.files import write_json

SKETCH_DIM = 16384
METHODS = ("plain", "ghost", "ghost+sketch", "vmap", "loop", "opacus")
#: The same with gradients in a metric, whose products are formed and multiplied by P.
IN_METRIC = ("ghost+metric", "ghost+sketch+metric")
DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True)
class Case:
    """A model and a batch of random tokens.

    Attributes:
        model: the name of an architecture, see :func:`build`.
        batch: number of sequences.
        time: number of tokens of each; if ``ragged``, lengths are uniform between a quarter of it and all of it.
        ragged: whether lengths differ.
        methods: the methods to run.
    """

    model: str
    batch: int
    time: int
    ragged: bool = False
    methods: tuple[str, ...] = METHODS


CASES = {
    **{f"width {width}, T={time}": Case(f"width {width}", 4, time) for width in (128, 256, 512) for time in (64, 256)},
    **{
        f"width 512, T={time}, metric": Case("width 512", 4, time, methods=(*METHODS[:3], *IN_METRIC))
        for time in (64, 256)
    },
    "embedded, T=128": Case("embedded", 64, 128),
    "SmolLM2-135M, T=128": Case("SmolLM2-135M", 8, 128),
    "SmolLM2-135M, T=512": Case("SmolLM2-135M", 4, 512, methods=("plain", "ghost", "ghost+sketch", "loop", "opacus")),
    "Qwen3-MoE, T=128": Case("Qwen3-MoE", 4, 128, methods=("plain", "ghost", "ghost+sketch", "loop")),
    "SmolLM2-135M, ragged T≤512": Case("SmolLM2-135M", 8, 512, True, ("ghost", "loop")),
    "R1-Distill-1.5B, T=256": Case("R1-Distill-1.5B", 2, 256, methods=("plain", "ghost", "ghost+sketch")),
    "R1-Distill-1.5B, T=1500": Case("R1-Distill-1.5B", 2, 1500, methods=("plain", "ghost", "ghost+sketch")),
}
# The last case needs a GPU, or several hours.
DEFAULT_CASES = tuple(list(CASES)[:-1])


def shape_of(name: str) -> Any:
    """Return the configuration of a public model's architecture, or of a small one by its width."""
    shapes: dict[str, Any] = {
        "SmolLM2-135M": LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            vocab_size=49152,
            tie_word_embeddings=True,
        ),
        "R1-Distill-1.5B": Qwen2Config(
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            vocab_size=151936,
            tie_word_embeddings=False,
        ),
    }
    shapes["Qwen3-MoE"] = Qwen3MoeConfig(
        hidden_size=1024,
        num_hidden_layers=3,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,  # pyright: ignore[reportCallIssue]
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=384,
        norm_topk_prob=True,
        vocab_size=32768,
        tie_word_embeddings=False,
    )
    if name.startswith("width "):
        width = int(name.removeprefix("width "))
        shapes[name] = LlamaConfig(
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=4,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
            vocab_size=8192,
            tie_word_embeddings=True,
        )
    return shapes[name]


def build(name: str, device: str) -> Policy:
    """Load the embedded policy, or build a public model's architecture with random weights."""
    if name == "embedded":
        return load_policy("embedded", device=device)
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(shape_of(name))
    return Policy(model.eval(), None, name)


def batch_of(case: Case, policy: Policy) -> Rollouts:
    """Draw random tokens, the same for every method."""
    rng = np.random.default_rng(0)
    vocabulary = policy.model.config.vocab_size
    lengths = np.full(case.batch, case.time)
    if case.ragged:
        lengths = rng.integers(case.time // 4, case.time + 1, size=case.batch)
    tokens = [rng.integers(0, vocabulary, size=length).tolist() for length in lengths]
    return Rollouts.from_sequences(
        [row[:1] for row in tokens], [row[1:] for row in tokens], np.zeros(case.batch), ["random"] * case.batch
    )


def prepare(case: Case, method: str, policy: Policy) -> Callable[[], None]:
    """Return a function that runs a method once on the batch of a case."""
    rollouts = batch_of(case, policy)
    every = np.arange(len(rollouts))
    selection = select_parameters(policy.model)
    name, *extra = method.split("+")
    if "metric" in extra:
        ones = {each: torch.ones_like(tensor.detach()) for each, tensor in selection.parameters.items()}
        selection = replace(selection, preconditioner=ones)
    if name in ENGINES:
        plan = plan_chunks(rollouts, policy, selection, gradients_held=0) if case.ragged else [every]
        chunks = [make_chunk(rollouts, rows, policy.device, policy.dtype) for rows in plan]
        sketch = CountSketch(SKETCH_DIM) if "sketch" in extra else None

        def measure() -> None:
            for chunk in chunks:
                ENGINES[name](policy, chunk, selection, sketch)

        return measure
    ids = make_chunk(rollouts, every, policy.device, policy.dtype).input_ids
    return _opacus(policy, ids) if method == "opacus" else _plain(policy, ids)


def _plain(policy: Policy, ids: torch.Tensor) -> Callable[[], None]:
    def train() -> None:
        logits = policy.model(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        loss.backward()
        policy.model.zero_grad(set_to_none=True)

    return train


def _opacus(policy: Policy, ids: torch.Tensor) -> Callable[[], None]:
    """Opacus' ghost clipping up to the norms, without RMSNorm and tied weights: norms are frozen, weights untied."""
    from opacus.grad_sample import (  # pyright: ignore[reportMissingImports]
        GradSampleModuleFastGradientClipping,
    )

    config = policy.model.config
    config.tie_word_embeddings = False
    model: Any = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name)
    # Opacus requires positions with the full batch axis.
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    wrapped = GradSampleModuleFastGradientClipping(
        model.train(), max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum"
    )

    def norms() -> None:
        logits = wrapped(input_ids=ids, position_ids=positions, use_cache=False).logits
        torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
        ).backward()
        assert torch.isfinite(wrapped.get_norm_sample()).all()
        wrapped.zero_grad(set_to_none=True)

    return norms


def methods_of(case: Case) -> list[str]:
    """Return the methods of a case whose packages are installed."""
    try:
        import opacus  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return [method for method in case.methods if method != "opacus"]
    return list(case.methods)


def time_case(case: Case, repeats: int, device: str) -> pd.DataFrame:
    """Time each method and repeat; returns wall-clock and processor seconds."""
    policy = build(case.model, device)
    runs = {method: prepare(case, method, policy) for method in methods_of(case)}
    rows = []
    for repeat in range(-1, repeats):  # the first turn is a warm-up
        for method, run in list(runs.items()):
            wall, processor = time.perf_counter(), time.process_time()
            try:
                run()
                _wait(device)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                del runs[method]
                continue
            spent = {"wall_s": time.perf_counter() - wall, "processor_s": time.process_time() - processor}
            if repeat >= 0:
                rows.append({"method": method, "repeat": repeat, **spent})
    return pd.DataFrame(rows)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gib(case_name: str, method: str, device: str) -> float:
    """Peak memory of a fresh process that runs the method once, including the model."""
    words = [sys.executable, "-P", __file__, "--memory-of", case_name, method, "--device", device]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return float("nan")
    return json.loads(done.stdout.splitlines()[-1])


def _print_peak(case_name: str, method: str, device: str) -> None:
    case = CASES[case_name]
    prepare(case, method, build(case.model, device))()
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        # Not getrusage: a child process inherits its parent's maximum.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        peak = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    print(json.dumps(peak / 1024**3))


def summarise(name: str, case: Case, times: pd.DataFrame, device: str) -> pd.DataFrame:
    """Reduce the times to one row per method: medians, ratios to the reference in the same repeat, peak memory."""
    reference = methods_of(case)[0] if "plain" not in case.methods else "plain"
    reference = "loop" if case.ragged else reference
    tables = {
        column: times.pivot(index="repeat", columns="method", values=column) for column in ("wall_s", "processor_s")
    }
    rows = []
    peak_of_reference = peak_gib(name, reference, device)
    for method in methods_of(case):
        peak = peak_of_reference if method == reference else peak_gib(name, method, device)
        row: dict[str, Any] = {"case": name, "batch": case.batch, "time": case.time, "method": method}
        row["reference"] = reference
        for column, table in tables.items():
            fits = method in table and reference in table
            row[column] = table[method].median() if method in table else float("nan")
            ratio = (table[method] / table[reference]).median() if fits else float("nan")
            row[column.replace("_s", "_ratio")] = ratio
        row |= {"peak_gib": peak, "memory_ratio": peak / peak_of_reference}
        row["note"] = "" if method in tables["wall_s"] else DOES_NOT_FIT
        rows.append(row)
    return pd.DataFrame(rows)


def draw(table: Any, stem: Path) -> list[Path]:
    """Draw the ratios of processor time and peak memory, a row per case and a mark per method; returns the paths."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import seaborn as sns

    from gradstats.plots import save_figure, style

    cases = list(dict.fromkeys(table["case"]))
    rc_params: dict[str, Any] = style("icml", "full", height=0.6 + 0.22 * len(cases))
    with mpl.rc_context(rc_params):  # pyright: ignore[reportArgumentType]
        fig, axes = plt.subplots(1, 2, sharey=True)
        panels = {"processor_ratio": "time / reference", "memory_ratio": "peak memory / reference"}
        for ax, (column, label) in zip(axes, panels.items(), strict=True):
            sns.stripplot(
                table[table["method"] != table["reference"]],
                x=column,
                y="case",
                hue="method",
                order=cases,
                hue_order=[*METHODS[1:], *(method for method in IN_METRIC if method in set(table["method"]))],
                palette="colorblind",
                jitter=False,
                size=4,
                ax=ax,
                legend=ax is axes[1],
            )
            ax.axvline(1.0, color="0.5", linewidth=0.8)
            ax.set_xscale("log")
            ax.set_xticks([0.5, 0.7, 1.0, 1.5, 2.0, 3.0], minor=False)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter("")
            ax.set(xlabel=label, ylabel="")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        paths = save_figure(fig, stem, source=table, overwrite=True)
        plt.close(fig)
    return paths


def benchmark(
    cases: tuple[str, ...] = DEFAULT_CASES,
    repeats: int = 3,
    out: Path = Path("figures/engines"),
    device: str = "cpu",
    memory_of: tuple[str, str] | None = None,
) -> None:
    """Run cases and write the table, the figure and the manifest.

    Args:
        cases: names of cases, see ``CASES``.
        repeats: timed repeats, after one warm-up.
        out: folder of the results.
        device: cpu or cuda.
        memory_of: case and method whose peak memory alone is printed (the benchmark calls itself with this option).
    """
    if memory_of is not None:
        _print_peak(*memory_of, device)
        return
    from gradstats.system.environment import environment

    previous = out / "engines.csv"
    table: Any = (
        pd.read_csv(previous, keep_default_na=False, na_values=["nan", ""]) if previous.exists() else pd.DataFrame()
    )
    for name in cases:
        case = CASES[name]
        rows = summarise(name, case, time_case(case, repeats, device), device)
        print(rows.drop(columns=["case", "batch", "time"]).round(3).to_string(index=False), f"← {name}", flush=True)
        kept = table[table["case"] != name] if len(table) else table
        table = pd.concat([kept, rows], ignore_index=True)
        order = {known: place for place, known in enumerate(CASES)}
        table = table.sort_values("case", key=lambda column: column.map(order), kind="stable", ignore_index=True)
        for path in draw(table, out / "engines"):
            print(path)
        settings = {"repeats": repeats, "device": device, "threads": torch.get_num_threads(), "sketch_dim": SKETCH_DIM}
        write_json(out / "manifest.json", {"benchmark": "benchmarks/engines.py", **settings, **environment()})


if __name__ == "__main__":
    tyro.cli(benchmark)
