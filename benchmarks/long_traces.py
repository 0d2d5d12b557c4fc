"""Processor time and peak memory of one long trace, beside training steps and beside the estimate of the memory.

``--which steps``: a training step with gradient checkpointing and its head in slices, and the ways of measuring the
same trace, alternate in one process (figures/long_traces/steps.csv). ``--which peaks``: each setting runs in a fresh
process with one thread, on a model with random weights in float32, and its peak is compared with the estimate that
``--dry-run`` prints (figures/long_traces/peaks.csv and its figure). what_fits.csv beside them is computed: the memory
of one long trace of larger models, and on which GPUs it fits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import tyro
from transformers import AutoModelForCausalLM, Qwen2Config

import gradstats as gs
from gradstats.gradients import ENGINES, CountSketch, select_parameters
from gradstats.gradients.memory import LIBRARIES_GIB, SELF_CHECK, activation_size, peak_memory
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.recompute import RecomputeRule
from gradstats.plots import save_figure, style
from gradstats.plots.marks import legend_below, points_look
from gradstats.plots.style import muted, palette
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts
from gradstats.system.environment import environment
from gradstats.system.files import atomic_path, write_json

FIGURES = Path(__file__).parents[1] / "figures" / "long_traces"
SKETCH_DIM = 16384
# Logits of a slice of the training step.
_SLICE = 2**24
#: Above so many tokens, whole logits and their gradient do not fit beside what else the machine does.
LONGEST_PLAIN = 4096
#: Tokens and counted turns of the settings that alternate.
TURNS = {2048: 5, 4096: 3, 8192: 3}


@dataclass(frozen=True)
class Setting:
    """What runs once in a process.

    Attributes:
        method: "plain" (a training step with gradient checkpointing), "sliced" (the same with its head in slices),
            "ghost" (the engine), or "measure" (``gs.measure`` with its self-check).
    """

    method: str
    tokens: int
    vocabulary: int = 151936
    width: int = 384
    sketch: bool = False
    recompute: bool = False
    tied: bool = False
    lora: bool = False


STEPS = tuple(
    Setting(method, tokens, sketch=sketch, recompute=recompute)
    for tokens in (2048, 4096, 8192)
    for method, sketch, recompute in (
        ("plain", False, True),
        ("sliced", False, True),
        ("ghost", False, True),
        ("ghost", True, True),
    )
    if method != "plain" or tokens <= LONGEST_PLAIN
)
MEASUREMENTS = (
    *(Setting("measure", tokens, 32768, 256) for tokens in (512, 2048, 8192)),
    *(Setting("measure", tokens, 32768, 256, recompute=True) for tokens in (2048, 8192)),
    *(Setting("measure", tokens, 32768, 256, sketch=True) for tokens in (512, 4096)),
    Setting("measure", 2048, 32768, 256, tied=True),
    Setting("measure", 4096, 32768, 256, tied=True, sketch=True, recompute=True),
    Setting("measure", 2048, 32768, 256, lora=True),
    Setting("measure", 512, sketch=True),
    Setting("measure", 1024),
    Setting("measure", 1024, recompute=True, tied=True),
    Setting("measure", 2048, lora=True),
)


def build(setting: Setting) -> Policy:
    """Build a model of four layers with random weights."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=setting.vocabulary,
        hidden_size=setting.width,
        intermediate_size=setting.width * 8 // 3,
        num_hidden_layers=4,
        num_attention_heads=setting.width // 64,
        num_key_value_heads=setting.width // 64,
        max_position_embeddings=32768,
        tie_word_embeddings=setting.tied,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    if setting.lora:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=8, task_type="CAUSAL_LM", lora_dropout=0.0))
    return Policy(model.eval(), None, "random")


def run(setting: Setting) -> dict[str, float]:
    """Run a setting; return GiB over the loaded model, those of the estimate, and processor seconds."""
    torch.set_num_threads(1)
    policy = build(setting)
    selection = select_parameters(policy.model)
    sketch_dim = SKETCH_DIM if setting.sketch else None
    wanted = _wanted(setting)
    sizes = activation_size(policy)
    parts = [
        peak_memory(policy, engine, selection, 1, setting.tokens, sketch_dim, sizes, setting.recompute)
        for engine in (("ghost", SELF_CHECK) if setting.method == "measure" else ("ghost",))
    ]
    estimate = max(part.total - part.libraries - part.weights for part in parts)
    assert RecomputeRule.of(policy, wanted, None, "ghost")(1, setting.tokens) == setting.recompute
    before = _gib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    seconds = _seconds(setting, policy)
    extra = _gib("VmHWM") - before
    found = {"loaded_gib": before, "extra_gib": extra, "processor_s": seconds}
    if setting.method in ("ghost", "measure"):
        found["estimated_extra_gib"] = estimate
        found["estimated_over_measured"] = (LIBRARIES_GIB + parts[0].weights + estimate) / (before + extra)
    return found


def _seconds(setting: Setting, policy: Policy) -> float:
    """Do once what the setting names; return processor seconds."""
    tokens = np.random.default_rng(0).integers(0, setting.vocabulary, size=setting.tokens).tolist()
    rollouts = Rollouts.from_sequences([tokens[:1]], [tokens[1:]], np.zeros(1), ["random"])
    selection = select_parameters(policy.model)
    start = time.process_time()
    if setting.method == "measure":
        sketch_dim = SKETCH_DIM if setting.sketch else None
        gs.measure(policy, rollouts, sketch_dim=sketch_dim, recompute=_wanted(setting), progress=False)
    elif setting.method == "ghost":
        chunk = make_chunk(rollouts, [0], policy.device, policy.dtype)
        sketch = CountSketch(SKETCH_DIM) if setting.sketch else None
        ENGINES["ghost"](policy, replace(chunk, recompute=setting.recompute), selection, sketch)
    else:
        _train(policy.model, torch.tensor([tokens]), sliced=setting.method == "sliced")
    return time.process_time() - start


def in_turns(tokens: int, repeats: int) -> pd.DataFrame:
    """Let the training step and the ways of measuring alternate in this process; the first turn is not counted.

    Returns:
        For each method the median of its processor seconds, and of their ratio to the training step of the same turn.
        ``measure`` is a whole call of :func:`gradstats.measure`, and "self-check" what it takes beyond the engine.
    """
    torch.set_num_threads(1)
    step = Setting("sliced", tokens, recompute=True)
    settings = {
        "sliced": step,
        "ghost": replace(step, method="ghost"),
        "ghost+sketch": replace(step, method="ghost", sketch=True),
        "measure": replace(step, method="measure"),
    }
    policy = build(step)
    turns = []
    for _ in range(repeats + 1):
        turn = {}
        for name, setting in settings.items():
            turn[name] = _seconds(setting, policy)
            policy.model.zero_grad(set_to_none=True)
            policy.model.gradient_checkpointing_disable()
            policy.model.eval()
        turns.append(turn | {"self-check": turn["measure"] - turn["ghost"]})
    seconds = pd.DataFrame(turns[1:])
    ratios = seconds.div(seconds["sliced"], axis=0)
    return pd.DataFrame(
        {
            "tokens": tokens,
            "method": seconds.columns,
            "processor_s": seconds.median().to_numpy(),
            "over_step": ratios.median().to_numpy(),
            "over_step_min": ratios.min().to_numpy(),
            "over_step_max": ratios.max().to_numpy(),
        }
    )


def _train(model: Any, ids: torch.Tensor, *, sliced: bool) -> None:
    """Differentiate the log-probability as trainers do: with whole logits, or with gradients of a slice at a time."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    if not sliced:
        logits = model(ids, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum").backward()
        return
    hidden = model.model(ids, use_cache=False).last_hidden_state
    states, weight = hidden.detach()[0, :-1], model.lm_head.weight.detach()
    of_states, of_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    step = _SLICE // len(weight)
    for first in range(0, len(states), step):
        span = slice(first, min(first + step, len(states)))
        pi = (states[span] @ weight.T).softmax(dim=-1)
        pi.scatter_add_(1, ids[0, 1:][span, None], -torch.ones_like(pi[:, :1]))
        of_states[0, span] = pi @ weight
        of_weight.addmm_(pi.T, states[span])
    model.lm_head.weight.grad = of_weight
    hidden.backward(of_states)


def _wanted(setting: Setting) -> str:
    return "on" if setting.recompute else "off"


def _gib(entry: str) -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(entry))
    return int(line.split()[1]) / 1024**2


def what_fits() -> pd.DataFrame:
    """Compute the peak of measuring one trace, in bfloat16 and float32, with everything that saves memory."""
    shapes = {
        "0.5B": (896, 24, 4864, 14, 151936, True),
        "1.5B": (1536, 28, 8960, 12, 151936, False),
        "7B": (3584, 28, 18944, 28, 152064, False),
    }
    rows = []
    for name, (width, layers, inner, heads, vocabulary, tied) in shapes.items():
        for bytes_of, dtype in ((2, "bfloat16"), (4, "float32")):
            matrices = layers * (2 * width * width + 2 * width * width * 2 // heads + 3 * width * inner)
            weights = bytes_of * (matrices + (1 if tied else 2) * vocabulary * width)
            for tokens in (2048, 8192, 16384, 32768):
                # The inputs of all layers, what autograd keeps of one, a slice of logits, the gradient of the head;
                # for the self-check, a gradient of all parameters twice and the logits of a slice under autograd.
                kept = bytes_of * tokens * (layers * width + 1.2 * (10 * width + 4 * inner))
                ghost = weights + kept + 4 * (1.2 * 2**27 + vocabulary * width + 2 * tokens * width)
                check = weights + kept + 1.5 * weights + 4 * 4 * 2**24
                gib = max(ghost, check) / 1024**3
                fits = {f"{size} GB": gib < size * 1e9 / 1024**3 for size in (24, 80, 141)}
                rows.append({"model": name, "dtype": dtype, "tokens": tokens, "gib": round(gib, 1)} | fits)
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, out: Path) -> list[Path]:
    """Draw the estimate over the measured peak, a row per setting, and write the table beside it; return the paths."""
    estimated = table.dropna(subset=["estimated_over_measured"]).sort_values(["vocabulary", "tokens", "method"])
    labels = [_label(row) for row in estimated.to_dict("records")]
    look: Any = style("icml", "full", height=0.9 + 0.17 * len(labels))
    with mpl.rc_context(look):
        fig, ax = plt.subplots()
        ax.axvspan(0.8, 1.2, color=muted(0.12), zorder=0)
        ax.axvline(1.0, color=muted(), zorder=1)
        names = {"measure": "gs.measure, self-check included", "ghost": "engine ghost alone"}
        for color, (method, name) in zip(palette(), names.items(), strict=False):
            chosen = (estimated["method"] == method).to_numpy()
            places = np.flatnonzero(chosen)
            ratios = estimated["estimated_over_measured"].to_numpy()[chosen]
            ax.scatter(ratios, places, color=color, label=name, **points_look(len(labels)))
        ax.set_yticks(range(len(labels)), labels)
        ax.invert_yaxis()
        ax.set(xlabel="estimated / measured peak memory of the process", xlim=(0.75, 1.25))
        legend_below(ax)
        paths = save_figure(fig, out / "peaks", source=table, overwrite=True)
        plt.close(fig)
    return paths


def _label(row: dict[Any, Any]) -> str:
    names = {"sketch": "sketch", "recompute": "layers run again", "tied": "tied", "lora": "LoRA"}
    said = [f"{row['tokens']:,} tokens", f"vocabulary {row['vocabulary']:,}"]
    return ", ".join([*said, *(name for column, name in names.items() if row[column])])


def benchmark(
    which: tuple[Literal["steps", "peaks"], ...] = ("steps", "peaks"),
    tokens: tuple[int, ...] = tuple(TURNS),
    one: str | None = None,
    out: Path = FIGURES,
) -> None:
    """Run settings, write the tables and draw the figure; what is not run again keeps its rows.

    Args:
        which: "steps" (processor time over a training step), "peaks" (memory beside its estimate); nothing, to draw.
        tokens: lengths of "steps".
        one: a setting as JSON, of which the peak alone is printed (the benchmark calls itself with this option).
        out: folder of the results.
    """
    if one is not None:
        print(json.dumps(run(Setting(**json.loads(one)))))
        return
    out.mkdir(exist_ok=True)
    for number in tokens if "steps" in which else ():
        turns = in_turns(number, TURNS[number])
        print(turns.round(3).to_string(index=False), flush=True)
        _keep(out / "steps.csv", turns.round(3), ["tokens", "method"])
    names = list(asdict(STEPS[0]))
    for setting in (*STEPS, *MEASUREMENTS) if "peaks" in which else ():
        words = [sys.executable, "-P", "-W", "ignore", __file__, "--one", json.dumps(asdict(setting))]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        row = pd.DataFrame([asdict(setting) | json.loads(done.stdout.splitlines()[-1])]).round(3)
        print(row.to_string(index=False), flush=True)
        _keep(out / "peaks.csv", row, names)
    _keep(out / "what_fits.csv", what_fits(), ["model", "dtype", "tokens"])
    for path in draw(pd.read_csv(out / "peaks.csv"), out) if (out / "peaks.csv").exists() else ():
        print(path)
    settings = {"threads": 1, "sketch_dim": SKETCH_DIM, "turns": {str(key): value for key, value in TURNS.items()}}
    write_json(out / "manifest.json", {"benchmark": "benchmarks/long_traces.py", **settings, **environment()})


def _keep(path: Path, rows: pd.DataFrame, names: list[str]) -> None:
    """Put rows in the place of those of the same names in a table."""
    table = pd.concat([pd.read_csv(path), rows]) if path.exists() else rows
    kept = table.drop_duplicates(names, keep="last").sort_values(names, kind="stable")
    with atomic_path(path) as partial:
        kept.to_csv(partial, index=False, lineterminator="\n")


if __name__ == "__main__":
    tyro.cli(benchmark)
