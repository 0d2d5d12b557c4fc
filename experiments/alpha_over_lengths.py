"""Fit α over five octaves of length: traces of up to 8,192 tokens of Qwen2.5-Coder-0.5B, and where they begin.

A model of this size ends an answer after a few hundred tokens, so that a long trace is a conversation in which it
solves one word problem after the other; the problems are masked, and every token of the model is drawn from the policy
given all that came before. Each trace is measured at 256, 1,024 and 4,096 of the model's tokens, and some at 8,192. α
is that within traces: the beginnings of a trace differ in length alone, and traces in their problems as well; the
pooled fit is beside it, and intervals are over traces. Beginnings of 256 tokens serve the self-check, whose plain pass
of a longer one would take as long as measuring it.

``python experiments/alpha_over_lengths.py`` measures the traces that are kept beside the results, and samples them
where there are none. It resumes where it was stopped: sampling from its last 256 steps, measuring from the last
finished shard.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import tyro
from scipy import special
from transformers import DynamicCache

import gradstats as gs
from gradstats import plots
from gradstats.config.sections import MeasurementSection
from gradstats.gradients.measure import measure_in_shards
from gradstats.gradients.session import MeasuringSession
from gradstats.rollouts.table import Rollouts
from gradstats.sampling.transformers_sampler import GrowingLayer
from gradstats.system.environment import environment
from gradstats.system.files import read_json, write_csv, write_json
from gradstats.system.progress import progress_bar

MODEL = "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
SYSTEM = "Solve each problem step by step. Put the final number in \\boxed{}."
LENGTHS = (256, 1024, 4096, 8192)
_SAVED_EVERY = 256  # steps


class Conversations:
    """Conversations sampled side by side, a token of each at every step: one that the model draws, or one of a user.

    Attributes:
        problems: of each, the problems that are still to be asked.
        waiting: of each, the tokens of a user that are still to be read.
        tokens: of each, the tokens so far.
        logprobs: of each, the log-probabilities of the tokens that the model drew; NaN for the others.
    """

    def __init__(self, policy: gs.Policy, problems: list[list[str]], seed: int) -> None:
        self.policy, self.problems = policy, problems
        opening = f"<|im_start|>system\n{SYSTEM}<|im_end|>"
        self.waiting = [deque(self._turn(row, opening)) for row in range(len(problems))]
        self.tokens: list[list[int]] = [[] for _ in problems]
        self.logprobs: list[list[float]] = [[] for _ in problems]
        self.generator = torch.Generator().manual_seed(seed)

    def _turn(self, row: int, before: str = "") -> list[int]:
        """Return the tokens of the next problem, from the end of the turn before to the start of the model's."""
        problem = self.problems[row].pop(0)
        return self.policy.tokenizer.encode(f"{before}\n<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n")

    def drawn(self) -> np.ndarray:
        """Return how many tokens of each the model drew."""
        return np.array([np.count_nonzero(np.isfinite(row)) for row in self.logprobs])

    @torch.no_grad()
    def sample(self, n_tokens: int, path: Path) -> None:
        """Go on until the model has drawn some number of tokens in each, saving to a file on the way."""
        end = self.policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
        cache: Any = DynamicCache(config=self.policy.model.config)
        cache.layers = [GrowingLayer() for _ in cache.layers]
        fed = torch.tensor(self.tokens, dtype=torch.long)
        logits = None
        while self.drawn().min() < n_tokens:
            if fed.shape[1]:
                answer = self.policy.model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
                logits = torch.log_softmax(answer.logits[:, -1].float(), dim=-1)
            chosen = self._next(logits, end)
            fed = torch.tensor(chosen)[:, None]
            if len(self.tokens[0]) % _SAVED_EVERY == 0:
                self.save(path)
                print(f"{path.stem}: {self.drawn().min():,} of {n_tokens:,} tokens", flush=True)
        self.save(path)

    def _next(self, logprobs: torch.Tensor | None, end: int) -> list[int]:
        chosen = []
        drawn = None if logprobs is None else torch.multinomial(logprobs.exp(), 1, generator=self.generator)[:, 0]
        for row, waiting in enumerate(self.waiting):
            logprob = np.nan
            if waiting:
                token = waiting.popleft()
            else:
                assert drawn is not None
                assert logprobs is not None
                token = int(drawn[row])
                logprob = float(logprobs[row, token])
                if token == end:
                    waiting.extend(self._turn(row))
            self.tokens[row].append(token)
            self.logprobs[row].append(logprob)
            chosen.append(token)
        return chosen

    def save(self, path: Path) -> None:
        """Write everything that :meth:`load` needs to go on."""
        state = {
            "tokens": self.tokens,
            "logprobs": [[None if np.isnan(one) else one for one in row] for row in self.logprobs],
            "waiting": [list(row) for row in self.waiting],
            "problems": self.problems,
            "generator": self.generator.get_state().tolist(),
        }
        write_json(path, state)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""
        self.tokens, self.problems = state["tokens"], state["problems"]
        self.logprobs = [[np.nan if one is None else one for one in row] for row in state["logprobs"]]
        self.waiting = [deque(row) for row in state["waiting"]]
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))


def beginnings(conversations: Conversations, names: list[str], metadata: dict[str, object]) -> Rollouts:
    """Return the beginnings of conversations that hold each number of the model's tokens; nothing is judged.

    A conversation that is shorter than the longest beginning has none of that length.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "prompt_tokens", "completion_tokens", "sampler_logprobs", "completion_mask")
    }
    for name, tokens, logprobs in zip(names, conversations.tokens, conversations.logprobs, strict=True):
        drawn = np.isfinite(logprobs)
        first = int(np.argmax(drawn))
        for length in (one for one in LENGTHS if one <= drawn.sum()):
            stop = int(np.searchsorted(np.cumsum(drawn), length)) + 1
            columns["prompt_ids"].append(name)
            columns["prompt_tokens"].append(tokens[:first])
            columns["completion_tokens"].append(tokens[first:stop])
            columns["sampler_logprobs"].append(np.nan_to_num(logprobs[first:stop]).tolist())
            columns["completion_mask"].append(drawn[first:stop].tolist())
    return Rollouts.from_sequences(rewards=np.zeros(len(columns["prompt_ids"])), metadata=metadata, **columns)


def _part(state: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Return what was saved of some conversations."""
    return {name: value if name == "generator" else value[rows] for name, value in state.items()}


def sampled(policy: gs.Policy, problems: list[str], n_traces: int, together: int, n_long: int, out: Path) -> Rollouts:
    """Return the beginnings of all traces, sampling what is not there yet.

    Of those that are sampled together, the first ``n_long`` go on to the last length.
    """
    out.mkdir(parents=True, exist_ok=True)
    metadata = {"policy": policy.describe(), "sampler": {"temperature": 1.0, "top_p": 1.0, "top_k": 0}}
    parts: list[Rollouts] = []
    for start in range(0, n_traces, together):
        numbers = range(start, min(start + together, n_traces))
        orders = [np.random.default_rng(number).permutation(len(problems)) for number in numbers]
        texts = [[problems[at] for at in order] for order in orders]
        names = [f"trace {number}" for number in numbers]
        path, long_path = out / f"traces_{start}.json", out / f"long_{start}.json"
        together_at_first = Conversations(policy, texts, seed=start)
        if path.exists():
            together_at_first.load(read_json(path))
        together_at_first.sample(LENGTHS[-2], path)
        for rows in (slice(n_long), slice(n_long, None)):
            if not names[rows]:
                continue
            some = Conversations(policy, texts[rows], seed=start)
            goes_on = rows.stop is not None
            state = read_json(long_path) if goes_on and long_path.exists() else _part(read_json(path), rows)
            some.load(state)
            if goes_on:
                some.sample(LENGTHS[-1], long_path)
            parts.append(beginnings(some, names[rows], metadata))
    return Rollouts.concatenate(parts)


def between_lengths(points: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Return the slope from each length to the next, the mean over traces with its 95 % t interval."""
    by_trace = np.log(points.pivot_table(index="prompt_id", columns="length", values="sq_norm"))
    found = {}
    for first, last in pairwise(LENGTHS):
        slopes = ((by_trace[last] - by_trace[first]) / (2.0 * np.log(last / first))).dropna()
        half = special.stdtrit(len(slopes) - 1, 0.975) * slopes.std(ddof=1) / np.sqrt(len(slopes))
        found[f"from {first:,} to {last:,}"] = (slopes.mean(), slopes.mean() - half, slopes.mean() + half)
    return found


def main(
    problems: Path = Path("data/mawps_singleop.jsonl"),
    model: str = MODEL,
    n_traces: int = 4,
    together: int = 4,
    n_long: int = 2,
    runs: Path = Path("runs/alpha_over_lengths"),
    out: Path = Path("figures/alpha_over_lengths"),
) -> None:
    """Sample and measure what is missing, and write the points, α and its figure.

    Args:
        problems: JSON lines with ``input``.
        model: the policy.
        n_traces: traces in all.
        together: traces sampled side by side.
        n_long: of these, traces that go on to 8,192 tokens.
        runs: where unfinished work is kept.
        out: where the table and the figure go.
    """
    policy = gs.load_policy(model)
    texts = [str(text) for text in pd.read_json(problems, lines=True)["input"]]
    kept = out / "traces.parquet"
    if kept.exists():
        rollouts = gs.read_rollouts(kept)
    else:
        rollouts = sampled(policy, texts, n_traces, together, n_long, runs)
        out.mkdir(parents=True, exist_ok=True)
        rollouts.to_parquet(kept)
    short = rollouts.select(np.flatnonzero(rollouts.lengths == LENGTHS[0]))
    session = MeasuringSession.open(policy, short, MeasurementSection(sketch_dim=None))
    with progress_bar("measuring", len(rollouts)) as report:
        measured = measure_in_shards(session, rollouts, report, {}, runs / "shards")
    points = pd.DataFrame(
        {"prompt_id": measured.rollouts.prompt_id, "length": measured.lengths, "sq_norm": measured.sq_norms}
    )
    fit = gs.alpha_report(measured).fit
    with mpl.rc_context(plots.style("icml")):  # pyright: ignore[reportArgumentType]
        gs.plot_length_scaling(fit)
        plots.save_figure(plt.gcf(), out / "along_traces", ("pdf", "png"), source=points)
    fits = {"pooled": fit, "within traces": fit.within_prompts()}
    found = {name: (one.alpha, *one.confidence_interval()) for name, one in fits.items() if one is not None}
    found |= between_lengths(points)
    columns = ("alpha", "alpha_low", "alpha_high")
    rows = [{"fit": name} | dict(zip(columns, values, strict=True)) for name, values in found.items()]
    write_csv(out / "fits.csv", pd.DataFrame(rows))
    write_json(
        out / "manifest.json",
        {
            "model": policy.describe(),
            "problems": problems.name,
            "n_traces": n_traces,
            "sampler_gap": gs.sampler_gap(measured).sentence(),
            "environment": environment(),
        },
    )
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    tyro.cli(main)
