"""Tokens per second of the samplers on one policy: length-sorted batches, continuous batching, plain ``generate``.

The samplers draw from the same prompts at the same settings and alternate within one process, so that the ratio of a
repeat compares neighbouring times; the first turn is a warm-up. ``continuous`` has a fixed cost at the start of each
call, so small and larger numbers of completions are timed. ``generate`` is that of transformers alone: rows that have
ended stay in the batch, and each token copies the cache. The benchmark writes a table, a figure and a manifest, which
also has the number of problems generated in a second; cases that are not run again keep their rows. Run it with
``python -P``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import tyro

from gradstats.config.sections import SamplingSection
from gradstats.policy.policy import Policy, load_policy
from gradstats.prompts.embedded import Split, generate_problems
from gradstats.prompts.load import load_prompts
from gradstats.sampling import SamplerSettings
from gradstats.sampling.plan import open_sampler
from gradstats.system.files import write_json

METHODS = ("transformers", "continuous", "generate")


@dataclass(frozen=True)
class Case:
    """A number of completions of embedded problems, drawn together.

    Attributes:
        completions: number of completions.
        cap: maximum number of tokens of each.
        methods: the samplers that are timed.
    """

    completions: int
    cap: int
    methods: tuple[str, ...] = METHODS


CASES = {f"{n} completions of ≤ {cap}": Case(n, cap) for n, cap in ((16, 64), (64, 128), (256, 256))}
# That of `make demo`. Continuous batching would take several minutes for it.
CASES["768 completions of ≤ 400"] = Case(768, 400, ("transformers", "generate"))
DEFAULT_CASES = tuple(CASES)[:2]


def time_case(case: Case, repeats: int, policy_name: str, device: str) -> pd.DataFrame:
    """Time each method and repeat; returns seconds and tokens."""
    policy = load_policy(policy_name, device=device)
    problems = load_prompts("embedded", max(case.completions // 4, 1), rng=0)
    prompts = sorted((policy.encode_prompt(problem.prompt) for problem in problems), key=len)
    prompts = [prompt for prompt in prompts for _ in range(4)][: case.completions]
    samplers = {
        method: open_sampler(policy, SamplingSection.of_arguments({"sampler": method}))
        for method in case.methods
        if method != "generate"
    }
    rows = []
    for repeat in range(-1, repeats):  # the first turn is a warm-up
        for method in case.methods:
            wall, processor = time.perf_counter(), time.process_time()
            if method == "generate":
                tokens = generate(policy, prompts, case.cap, 1000 + repeat)
            else:
                seeds = [1000 + repeat] * len(prompts)
                drawn = samplers[method].draw(prompts, SamplerSettings(case.cap), seeds, lambda count: None)
                tokens = sum(len(completion.tokens) for completion in drawn)
            if device == "cuda":
                torch.cuda.synchronize()
            spent = {"wall_s": time.perf_counter() - wall, "processor_s": time.process_time() - processor}
            if repeat >= 0:
                rows.append({"method": method, "repeat": repeat, "tokens": tokens, **spent})
    return pd.DataFrame(rows)


def generate(policy: Policy, prompts: list[list[int]], cap: int, seed: int) -> int:
    """Draw one batch with the ``generate`` of transformers; returns the number of tokens up to the first stop."""
    model: Any = policy.model
    pad, stops = policy.tokenizer.pad_token_id, policy.tokenizer.eos_token_id
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=policy.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=policy.device)
    torch.manual_seed(seed)
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": cap}
    drawn = model.generate(input_ids=ids, attention_mask=mask, pad_token_id=pad, eos_token_id=stops, **options)
    after_stop = (drawn[:, longest:] == stops).cumsum(1).roll(1, 1)
    after_stop[:, 0] = 0
    return int((after_stop == 0).sum())


def problems_per_second(n: int = 2000) -> dict[Split, float]:
    """Return the number of problems of each split that are generated in a second of processor time."""
    found: dict[Split, float] = {}
    for split in ("test", "train"):
        begin = time.process_time()
        generate_problems(n, rng=0, split=split)
        found[split] = n / (time.process_time() - begin)
    return found


def summarise(name: str, case: Case, times: pd.DataFrame) -> pd.DataFrame:
    """Reduce the times to one row per method: medians, and medians of each repeat's ratio to the reference."""
    times = times.assign(tokens_per_s=times["tokens"] / times["wall_s"])
    rows = []
    for method in case.methods:
        own = times[times["method"] == method].set_index("repeat")
        reference = times[times["method"] == METHODS[0]].set_index("repeat")
        row: dict[str, Any] = {"case": name, "completions": case.completions, "cap": case.cap, "method": method}
        row["reference"] = METHODS[0]
        for column in ("wall_s", "processor_s", "tokens_per_s"):
            row[column] = own[column].median()
            row[column.replace("_s", "_ratio") if column != "tokens_per_s" else "speed_ratio"] = (
                own[column] / reference[column]
            ).median()
        rows.append(row)
    return pd.DataFrame(rows)


def draw(table: Any, stem: Path) -> list[Path]:
    """Draw the speed relative to length-sorted batches, one row per case; returns the paths."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import seaborn as sns

    from gradstats.plots import save_figure, style

    cases = list(dict.fromkeys(table["case"]))
    rc_params: dict[str, Any] = style("icml", "half", height=0.7 + 0.25 * len(cases))
    with mpl.rc_context(rc_params):  # pyright: ignore[reportArgumentType]
        fig, ax = plt.subplots()
        others = table[table["method"] != table["reference"]]
        sns.stripplot(
            others, x="speed_ratio", y="case", hue="method", jitter=False, size=4, palette="colorblind", ax=ax
        )
        ax.axvline(1.0, color="0.5", linewidth=0.8)
        ax.set(xlabel="tokens/s relative to length-sorted batches", ylabel="")
        ax.set_xlim(left=0.0)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        paths = save_figure(fig, stem, source=table, overwrite=True)
        plt.close(fig)
    return paths


def benchmark(
    cases: tuple[str, ...] = DEFAULT_CASES,
    repeats: int = 3,
    out: Path = Path("figures/sampling"),
    policy: str = "embedded",
    device: str = "cpu",
) -> None:
    """Run cases and write the table, the figure and the manifest.

    Args:
        cases: names of cases, see ``CASES``.
        repeats: timed repeats, after one warm-up.
        out: folder of the results.
        policy: the policy to sample from.
        device: cpu or cuda.
    """
    from gradstats.system.environment import environment

    previous = out / "sampling.csv"
    table: Any = pd.read_csv(previous) if previous.exists() else pd.DataFrame()
    problems = {split: round(rate) for split, rate in problems_per_second().items()}
    print("problems generated in a second:", problems)
    for name in cases:
        rows = summarise(name, CASES[name], time_case(CASES[name], repeats, policy, device))
        print(
            rows.drop(columns=["case", "completions", "cap"]).round(3).to_string(index=False), f"← {name}", flush=True
        )
        kept = table[table["case"] != name] if len(table) else table
        table = pd.concat([kept, rows], ignore_index=True)
        order = {known: place for place, known in enumerate(CASES)}
        table = table.sort_values("case", key=lambda column: column.map(order), kind="stable", ignore_index=True)
        for path in draw(table, out / "sampling"):
            print(path)
        settings = {"repeats": repeats, "policy": policy, "device": device, "threads": torch.get_num_threads()}
        settings |= {"problems_per_s": problems}
        write_json(out / "manifest.json", {"benchmark": "benchmarks/sampling.py", **settings, **environment()})


if __name__ == "__main__":
    tyro.cli(benchmark)
