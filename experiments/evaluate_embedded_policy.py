"""Measure the embedded policy on held-out problems, and write its model card from what was measured."""

import json
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedded_traces import TRACE_CAP, write_trace
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradstats.prompts.embedded import extract_answer, generate_problems, parse_problem


def sample(
    folder: Path, n_prompts: int, group_size: int, max_new_tokens: int, seed: int, batch_size: int = 256
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Sample held-out problems.

    Returns:
        Lengths, rewards and whether the cap cut the completion, each (prompts, group), and tokens per second.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    problems = sorted(generate_problems(n_prompts, rng=seed), key=lambda problem: problem.difficulty)
    queue = [problem for problem in problems for _ in range(group_size)]
    lengths: list[int] = []
    rewards: list[float] = []
    cut: list[bool] = []
    torch.manual_seed(seed)
    start = time.perf_counter()
    columns = [TextColumn("sampling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns) as progress:
        task = progress.add_task("sampling", total=len(queue))
        for first in range(0, len(queue), batch_size):
            chunk = queue[first : first + batch_size]
            messages = [[{"role": "user", "content": problem.prompt}] for problem in chunk]
            inputs = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
            )
            with torch.no_grad():
                output = model.generate(
                    **inputs,
                    do_sample=True,
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    repetition_penalty=1.0,
                    max_new_tokens=max_new_tokens,
                )
            completions = output[:, inputs["input_ids"].shape[1] :]
            for problem, completion in zip(chunk, completions, strict=True):
                ended = (completion == tokenizer.eos_token_id).nonzero()
                length = int(ended[0]) + 1 if len(ended) else max_new_tokens
                text = tokenizer.decode(completion[:length], skip_special_tokens=True)
                lengths.append(length)
                cut.append(len(ended) == 0)
                rewards.append(float(extract_answer(text) == problem.answer))
            progress.update(task, advance=len(chunk))
    speed = sum(lengths) / (time.perf_counter() - start)
    shape = (n_prompts, group_size)
    return np.reshape(lengths, shape), np.reshape(rewards, shape), np.reshape(cut, shape), speed


def imitated_success(n_prompts: int, group_size: int, seed: int) -> float:
    """Share of right answers among traces written, not sampled, for the same problems: what imitation aims at."""
    rng = np.random.default_rng(seed)
    rewards = [
        extract_answer(write_trace(parse_problem(problem.prompt), rng)[0]) == problem.answer
        for problem in generate_problems(n_prompts, rng=seed)
        for _ in range(group_size)
    ]
    return float(np.mean(rewards))


def within_prompt_correlation(
    lengths: np.ndarray, rewards: np.ndarray, n_resamples: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """Correlate prompt-demeaned length and reward; the 95 % percentile interval resamples prompts."""
    x = lengths - lengths.mean(axis=1, keepdims=True)
    y = rewards - rewards.mean(axis=1, keepdims=True)
    sums = np.stack([(x * y).sum(axis=1), (x * x).sum(axis=1), (y * y).sum(axis=1)])
    xy, xx, yy = sums.sum(axis=1)
    if xx == 0 or yy == 0:
        warnings.warn("no prompt has both right and wrong answers of unlike length: NaN", stacklevel=2)
        return math.nan, math.nan, math.nan
    counts = np.random.default_rng(seed).multinomial(len(x), np.full(len(x), 1 / len(x)), size=n_resamples)
    resampled = sums @ counts.T
    drawn = resampled[0] / np.sqrt(resampled[1] * resampled[2])
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(xy / np.sqrt(xx * yy)), float(low), float(high)


def evaluate(folder: Path, n_prompts: int, group_size: int, max_new_tokens: int, seed: int) -> dict:
    """Measure the policy on held-out problems of the standard mix, and write its model card."""
    lengths, rewards, cut, speed = sample(folder, n_prompts, group_size, max_new_tokens, seed)
    share = rewards.mean(axis=1)
    success_error = float(share.std(ddof=1) / math.sqrt(n_prompts))
    correlation, low, high = within_prompt_correlation(lengths, rewards)
    quantiles = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
    measured = {
        "n_prompts": n_prompts,
        "group_size": group_size,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "success": float(rewards.mean()),
        "success_stderr": success_error,
        "imitated_success": imitated_success(n_prompts, group_size, seed),
        "length_quantiles": {str(q): float(np.quantile(lengths, q)) for q in quantiles},
        "mean_length": float(lengths.mean()),
        "at_cap": float(cut.mean()),
        "mixed_groups": float(((share > 0) & (share < 1)).mean()),
        "within_prompt_correlation": [correlation, low, high],
        "tokens_per_second": round(speed),
    }
    write_card(folder, measured)
    return measured


def write_card(folder: Path, measured: dict) -> None:
    """Write README.md from the measured numbers and the recipe kept in the model's configuration."""
    recipe = json.loads((folder / "config.json").read_text())["training_recipe"]
    parameters = 0
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (safe_open is no mapping)
            parameters += math.prod(weights.get_slice(name).get_shape())
    q = measured["length_quantiles"]
    spread = " / ".join(f"{q[level]:.0f}" for level in ("0.05", "0.25", "0.5", "0.75", "0.95"))
    correlation, low, high = measured["within_prompt_correlation"]
    success, margin = measured["success"], 1.96 * measured["success_stderr"]
    group_size = measured["group_size"]
    card = f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# The embedded policy of gradstats

A Qwen2-architecture language model with {parameters:,} parameters (float32) that works out running totals
in a written chain of thought. It exists so that variance measurements of policy gradients run end to end,
with real sampling and real rewards, on a machine without network or accelerator.

**Task.** The user's message lists 2 to 24 labelled terms and asks for their total, `a17 b+8 c-5 d?`.
The completion takes one step a term, `c-5@25=20;`, and ends with `answer 20.` and the end token. Problems come from
`gradstats.prompts.embedded`, by seed; one in eight, chosen by a digest of its text, is held out of training.
The vocabulary is bytes, one a token, signed digits, and six words (`wait`, `hmm`, `check`, ...).

**Recipe.** Imitation of generated traces, from random weights: `experiments/train_embedded_policy.py`,
seed {recipe["seed"]}, {recipe["steps"]} steps of {recipe["batch_size"]} traces; Muon (peak learning rate
{recipe["learning_rate"]:g}) for the layers' matrices and AdamW ({recipe["other_learning_rate"]:g})
for the rest, cosine decay; problems of 2–6 terms growing to 24 over the first
{recipe["curriculum_share"]:.0%} of the steps; loss on completion tokens only; traces cut at
{TRACE_CAP} tokens. The traces slip, re-check (`wait`), undo steps (`check`), go back several steps, and
sometimes lose their way (`wait wait`) until the cap.

## Measured

{measured["n_prompts"]} held-out problems of the standard mix, {group_size} completions each, temperature 1,
top-p 1, no top-k, at most {measured["max_new_tokens"]} new tokens, seed {measured["seed"]}.
Intervals are 95 %, over prompts.

| quantity | value |
|---|---|
| right answers | {success:.1%} [{success - margin:.1%}, {success + margin:.1%}] |
| groups of {group_size} with both right and wrong answers | {measured["mixed_groups"]:.1%} |
| completion length in tokens, 5 / 25 / 50 / 75 / 95 % quantiles | {spread} |
| shortest and longest completion | {q["0"]:.0f} and {q["1"]:.0f} |
| completions cut at the cap | {measured["at_cap"]:.1%} |
| correlation of length and reward within a prompt | {correlation:.3f} [{low:.3f}, {high:.3f}] |

Within a prompt, longer completions are less often right **by construction**: the training traces re-check
more after a stumble, which is also where most slips are, and lost traces run to the cap. The correlation
(of prompt-demeaned length and reward, interval by bootstrap over prompts) shows that the model has learned
the link; it is no evidence that such a link exists in other models.

## Limits

The model does this one task and nothing else. It knows the chat roles user and assistant, and one question
a conversation. It was trained on contexts of up to about 500 tokens. The traces it imitates are right for
{measured["imitated_success"]:.0%} of these problems; the other errors are its own and grow with the number of
terms: many come from re-checks that pick up a wrong running total.

Licence: Apache-2.0, weights and generated training data alike.
"""
    temporary = folder / "README.md.tmp"
    temporary.write_text(card, encoding="utf-8")
    os.replace(temporary, folder / "README.md")
