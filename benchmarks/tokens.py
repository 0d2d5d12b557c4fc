"""Cost and error of token-level measurements, compared with one backward pass per token.

SmolLM2-135M-Instruct scores answers that it sampled, cut after T tokens. For each answer, the heaviest m tokens are
measured exactly and all tokens are projected on K directions; the cumulative energy W_T combines both. The reference is
T backward passes that share one forward pass and compute norms only. For small T it is run on every token, otherwise on
evenly spaced tokens, whose mean cost is used for all. Every other cost is the sum of components timed in the same
process: the forward pass with the gradients at the output embedding, each direction, and each exact token.

Where every token was differentiated, the truth is exact and the table gives actual errors. Elsewhere it gives the
standard error that the measurement reports, and the standard error of the best estimate of the truth. The directions of
each answer are split into disjoint sets of K, each of which gives one estimate. The benchmark writes a table, a figure
and a manifest; cases that are not run again keep their rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro

from gradstats.gradients import CountSketch, ParameterSelection, select_parameters
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.engines.registry import loop_engine
from gradstats.gradients.objective import Chunk, make_chunk
from gradstats.gradients.tokens.projections import Tangents, head_gradients, project_tokens
from gradstats.gradients.tokens.scores import heaviest_tokens
from gradstats.measurement.token_scores import TokenScores
from gradstats.policy.policy import Policy, load_policy
from gradstats.prompts.problem import Problem
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.sampling.sample import sample
from gradstats.system.files import write_json

MODEL = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SKETCH_DIM = 16384
MEMORY_GIB = 4.0


@dataclass(frozen=True)
class Case:
    """A measurement at one length.

    Attributes:
        time: T, number of tokens of each answer.
        settings: the pairs (m, K) in the table.
        exact: number of tokens of each answer measured exactly, with sketches.
        probes: number of directions.
        backward: number of tokens differentiated individually; with all T of them the truth is exact.
        answers: number of answers.
    """

    time: int
    settings: tuple[tuple[int, int], ...]
    exact: int
    probes: int
    backward: int
    answers: int


CASES = {
    "T=128": Case(128, ((0, 32), (16, 8), (16, 32), (32, 64)), 32, 64, 128, 2),
    "T=512": Case(512, ((0, 32), (16, 32), (32, 64)), 36, 64, 6, 2),
}


def answers(policy: Policy, path: Path, longest: int) -> Rollouts:
    """Return the answers sampled by the policy at temperature 1 that reach the cap of ``longest`` tokens."""
    if not path.exists():
        rng = np.random.default_rng(0)
        problems = []
        for number in range(16):
            boxes, apples, given = rng.integers(2, 60, size=3)
            text = (
                f"A shop sells {boxes} boxes of {apples} apples and gives {given} apples away. How many apples are "
                "left? Explain every step in detail, check the answer in two other ways, and then make up three "
                "similar problems with solutions."
            )
            problems.append(Problem(f"p{number}", text, str(boxes * apples - given)))
        sample(policy, problems, group_size=1, max_new_tokens=longest, rng=0, batch_size=16).to_parquet(path)
    rollouts = read_rollouts(path)
    return rollouts.select(np.flatnonzero(rollouts.lengths == longest))


class Stopwatch:
    """Wall-clock and processor time, summed by name."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.processor: dict[str, float] = {}

    def __call__(self, name: str, run: Any, *arguments: Any) -> Any:
        """Call ``run`` and add its time to ``name``."""
        wall, processor = time.perf_counter(), time.process_time()
        result = run(*arguments)
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
        self.processor[name] = self.processor.get(name, 0.0) + time.process_time() - processor
        print(f"  {name}: {self.processor[name]:.1f} s of processor time so far", flush=True)
        return result


def one_hot(chunk: Chunk, positions: np.ndarray) -> Chunk:
    """Give the chunk one weighting per position, 1 at the position and 0 elsewhere."""
    weights = torch.zeros(len(positions), *chunk.weights.shape[1:])
    weights[torch.arange(len(positions)), 0, chunk.starts[0] + torch.from_numpy(positions)] = 1
    return replace(chunk, weights=weights)


def measure_answer(
    policy: Policy, selection: ParameterSelection, chunk: Chunk, case: Case, watch: Stopwatch
) -> tuple[TokenScores, np.ndarray, np.ndarray]:
    """Measure one answer: its token scores, heaviest tokens by rank, and energies of the tokens differentiated."""
    gradients = watch("head", head_gradients, policy, chunk)
    ranks = [heaviest_tokens(gradients.statistics, chunk, number)[0] for number in range(1, case.exact + 1)]
    by_weight = [int(next(iter(set(now) - set(before)))) for before, now in zip([[], *ranks], ranks, strict=False)]
    projected = watch(
        "probes", project_tokens, policy, chunk, selection, Tangents(0, case.probes), gradients, MEMORY_GIB
    )
    # A single token gives the cost of the forward pass, which all exact tokens share.
    sketch = CountSketch(SKETCH_DIM)
    watch("first exact token", ghost_engine, policy, one_hot(chunk, ranks[-1][:1]), selection, sketch)
    exact = watch("exact tokens", ghost_engine, policy, one_hot(chunk, ranks[-1]), selection, sketch)
    spaced = np.unique(np.linspace(0, case.time - 1, case.backward).round().astype(np.int64))
    watch("first backward pass", loop_engine, policy, one_hot(chunk, spaced[:1]), selection, None)
    backward = watch("backward passes", loop_engine, policy, one_hot(chunk, spaced), selection, None)
    start = chunk.starts[0]
    scores = TokenScores(
        projected[0, start : start + case.time].numpy(),
        ranks[-1],
        exact.sq_norms_by_parameter[:, 0].sum(axis=1),
        None,
        np.ones(case.time, dtype=bool),
    )
    return scores, np.array(by_weight), backward.sq_norms_by_parameter[:, 0].sum(axis=1)


def errors(
    scores: TokenScores, by_weight: np.ndarray, backward: np.ndarray, m: int, n_probes: int
) -> list[dict[str, float]]:
    """Relative errors of W_T from each disjoint set of K directions, and the standard error of the truth."""
    is_exact = len(backward) == len(scores.mask)
    truth = np.cumsum(backward) if is_exact else scores.cumulative_energy()
    uncertain = 0.0 if is_exact else scores.cumulative_energy_stderr()[-1] / truth[-1]
    assert scores.projections is not None
    kept = np.sort(by_weight[:m])
    known = dict(zip(scores.heavy_positions.tolist(), scores.heavy_sq_norms.tolist(), strict=True))
    norms = np.array([known[position] for position in kept.tolist()])
    rows = []
    for first in range(0, scores.n_probes - n_probes + 1, n_probes):
        subset = TokenScores(scores.projections[:, first : first + n_probes], kept, norms, None, scores.mask)
        estimate = subset.cumulative_energy()
        rows.append(
            {
                "error": abs(estimate[-1] / truth[-1] - 1),
                "error_along": float(np.median(np.abs(estimate / truth - 1))),
                "stated_stderr": subset.cumulative_energy_stderr()[-1] / truth[-1],
                "share_of_exact": norms.sum() / truth[-1],
                "truth_stderr": uncertain,
            }
        )
    return rows


def cost(times: dict[str, float], case: Case, m: int, n_probes: int) -> float:
    """Seconds per answer, the sum of its components."""
    each = (times["exact tokens"] - times["first exact token"]) / (case.exact - 1)
    exact = times["first exact token"] + (m - 1) * each if m else 0.0
    return (times["head"] + n_probes / case.probes * times["probes"] + exact) / case.answers


def reference_cost(times: dict[str, float], case: Case) -> float:
    """Seconds per answer of T backward passes that share one forward pass."""
    each = (times["backward passes"] - times["first backward pass"]) / (case.backward - 1)
    return (times["first backward pass"] + (case.time - 1) * each) / case.answers


def run_case(name: str, case: Case, policy: Policy, rollouts: Rollouts) -> pd.DataFrame:
    """Measure one case; returns a row per setting with its cost relative to the reference and the errors of W_T."""
    frame = rollouts.frame.iloc[: case.answers]
    cut = [list(tokens[: case.time]) for tokens in frame["completion_tokens"]]
    chosen = Rollouts.from_sequences(
        frame["prompt_tokens"].tolist(), cut, frame["reward"].to_numpy(), frame["prompt_id"].tolist()
    )
    selection = select_parameters(policy.model)
    watch = Stopwatch()
    first = make_chunk(chosen, [0], policy.device, policy.dtype)
    project_tokens(policy, first, selection, Tangents(0, 1), head_gradients(policy, first), MEMORY_GIB)  # warm-up
    measured = []
    for row in range(case.answers):
        print(f"{name}, answer {row + 1} of {case.answers}", flush=True)
        chunk = make_chunk(chosen, [row], policy.device, policy.dtype)
        measured.append(measure_answer(policy, selection, chunk, case, watch))
    rows: list[dict[str, Any]] = []
    reference = {"wall_s": reference_cost(watch.wall, case), "processor_s": reference_cost(watch.processor, case)}
    head: dict[str, Any] = {"case": name, "answers": case.answers, "time": case.time}
    rows.append(
        head | {"method": f"{case.time} backward passes", **reference, "wall_ratio": 1.0, "processor_ratio": 1.0}
    )
    for m, n_probes in case.settings:
        estimates = pd.DataFrame(
            [row for scores, ranks, norms in measured for row in errors(scores, ranks, norms, m, n_probes)]
        )
        wall, processor = cost(watch.wall, case, m, n_probes), cost(watch.processor, case, m, n_probes)
        rows.append(
            head
            | {"method": f"({m}, {n_probes})", "wall_s": wall, "processor_s": processor}
            | {"wall_ratio": wall / reference["wall_s"], "processor_ratio": processor / reference["processor_s"]}
            | {"estimates": len(estimates), "error_median": estimates["error"].median()}
            | {"error_max": estimates["error"].max()}
            | {"error_along_median": estimates["error_along"].median()}
            | {"stated_stderr": estimates["stated_stderr"].median()}
            | {"share_of_exact": estimates["share_of_exact"].median(), "truth_stderr": estimates["truth_stderr"].max()}
        )
    return without_shared_errors(pd.DataFrame(rows))


def without_shared_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Blank errors relative to an estimated truth: it shares directions with the estimates and understates errors."""
    errors = [column for column in table if str(column).startswith("error_")]
    table.loc[table["truth_stderr"] > 0, errors] = float("nan")
    return table


def draw(table: Any, stem: Path) -> list[Path]:
    """Draw the reported error of W_T against cost, a mark per setting, a colour per length; rings are actual errors."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import seaborn as sns

    from gradstats.plots import save_figure, style
    from gradstats.plots.variance import plain_ticks

    shown = table.dropna(subset=["stated_stderr"])
    rc_params: dict[str, Any] = style("icml", "half")
    with mpl.rc_context(rc_params):  # pyright: ignore[reportArgumentType]
        fig, ax = plt.subplots()
        sns.scatterplot(
            shown, x="processor_ratio", y="stated_stderr", hue="case", style="case", palette="colorblind", ax=ax
        )
        met = shown.dropna(subset=["error_median"])
        ax.scatter(
            met["processor_ratio"],
            met["error_median"],
            facecolors="none",
            edgecolors="0.4",
            linewidths=0.7,
            label="median actual error",
        )
        for row in shown.itertuples():
            ax.annotate(
                row.method, (row.processor_ratio, row.stated_stderr), (3, 3), textcoords="offset points", fontsize=6
            )
        ax.set(
            xscale="log", yscale="log", xlabel="time / one backward pass per token", ylabel=r"standard error of $W_T$"
        )
        for vertical in (False, True):
            plain_ticks(ax, logarithmic=True, vertical=vertical)
        ax.legend(frameon=False)
        paths = save_figure(fig, stem, source=table, overwrite=True)
        plt.close(fig)
    return paths


def benchmark(cases: tuple[str, ...] = tuple(CASES), out: Path = Path("figures/tokens"), model: str = MODEL) -> None:
    """Run cases and write the table, the figure and the manifest.

    Args:
        cases: names of cases, see ``CASES``.
        out: folder of the results; the answers are sampled and stored there if they do not exist yet.
        model: the GGUF file of SmolLM2-135M-Instruct (``make smollm2``).
    """
    from gradstats.system.environment import environment

    torch.set_num_threads(1)
    policy = load_policy(model, dtype="float32", device="cpu")
    rollouts = answers(policy, out / "answers.parquet", max(case.time for case in CASES.values()))
    previous = out / "tokens.csv"
    table: Any = pd.read_csv(previous) if previous.exists() else pd.DataFrame()
    for name in cases:
        rows = run_case(name, CASES[name], policy, rollouts)
        print(rows.drop(columns=["case", "answers", "time"]).round(4).to_string(index=False), f"← {name}", flush=True)
        table = pd.concat([table[table["case"] != name] if len(table) else table, rows], ignore_index=True)
        table = table.sort_values("time", kind="stable", ignore_index=True)
        for path in draw(table, out / "tokens"):
            print(path)
        write_json(
            out / "manifest.json",
            {"benchmark": "benchmarks/tokens.py", "device": "cpu", "threads": 1, "sketch_dim": SKETCH_DIM}
            | environment(),
        )


if __name__ == "__main__":
    tyro.cli(benchmark)
