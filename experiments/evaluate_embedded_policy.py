"""Measure the embedded policy on held-out problems, and write its model card from what was measured."""

import json
import math
import os
from pathlib import Path

import numpy as np
from embedded_traces import TRACE_CAP, write_trace
from safetensors import safe_open

import gradstats as gs
from gradstats.analyses.length_reward import length_reward_correlation
from gradstats.analyses.profile import LONG, PolicyProfile, profile_policy
from gradstats.prompts.embedded import extract_answer, generate_problems, parse_problem
from gradstats.stats.protocols import effective_sample_size

COST = "One thread took 47 processor minutes, half a second a step."
BEYOND = 5  # steps: the first number outside the standard mix

# Qwen2.5-Coder-0.5B-Instruct on 24 word problems, 4 completions each.
REAL_MODEL = {
    "mean_entropy": "0.28",
    "share_above_half_nat": "22 %",
    "tokens_with_choice": "39",
    "median_length": "172 (mean)",
    "log_residual_sd": "0.37",
    "effective_share": "0.77",
    "top16_share": "0.78",
    "wrong_over_right": "1.8",
    "optimal_constant_ratio": "0.74",
    "alpha_pooled": "0.65 [0.54, 0.77]",
    "alpha_within": "0.57 [0.45, 0.69]",
    "ratio of reinforce": "1.92 [1.17, 3.16]",
    "ratio of length_weighted(alpha=0.8, loo=True)": "1.07 [1.00, 1.15]",
    "ratio of norm_weighted(loo=True)": "1.08 [0.97, 1.19]",
}
# `profile_policy` of SmolLM2-135M-Instruct.Q4_1.gguf on 24 embedded problems, 4 completions of at most 160 tokens each:
# none of its 96 answers is right, so that what needs rewards of both kinds is not defined.
SMOLLM2 = {
    "mean_entropy": "2.29",
    "share_above_half_nat": "87 %",
    "tokens_with_choice": "115",
    "median_length": "160 (cap)",
    "log_residual_sd": "0.26",
    "effective_share": "0.88",
    "top16_share": "0.22",
    "wrong_over_right": "–",
    "optimal_constant_ratio": "–",
    "alpha_pooled": "0.48 [0.37, 0.58]",
    "alpha_within": "0.45 [0.33, 0.57]",
    "ratio of reinforce": "–",
    "ratio of length_weighted(alpha=0.8, loo=True)": "–",
    "ratio of norm_weighted(loo=True)": "–",
}
BANDS = {  # least and largest: what keeps this policy near a real model
    "mean_entropy": (0.2, 0.45),
    "log_residual_sd": (0.0, 0.6),
    "effective_share": (0.4, 1.0),
    "top16_share": (0.0, 0.85),
    "wrong_over_right": (1.2, 3.0),
}


def imitated_success(n_prompts: int, group_size: int, seed: int) -> float:
    """Share of right answers among traces written, not sampled, for the same problems: what imitation aims at."""
    rng = np.random.default_rng(seed)
    rewards = [
        extract_answer(write_trace(parse_problem(problem.prompt), rng)[0]) == problem.answer
        for problem in generate_problems(n_prompts, rng=seed)
        for _ in range(group_size)
    ]
    return float(np.mean(rewards))


def success_at(policy: gs.Policy, steps: int, n_prompts: int, max_new_tokens: int, seed: int) -> float:
    """Share of right answers at a number of steps."""
    problems = gs.load_prompts("embedded", n_prompts, rng=seed, steps=steps)
    return float(gs.sample(policy, problems, group_size=8, max_new_tokens=max_new_tokens, rng=seed).rewards.mean())


def recipe_of(folder: Path) -> dict:
    """The recipe that is kept in the model's configuration."""
    return json.loads((folder / "config.json").read_text())["training_recipe"]


def evaluate(folder: Path, n_prompts: int, group_size: int, max_new_tokens: int, seed: int) -> dict:
    """Measure the policy on held-out problems of the standard mix, and write its model card."""
    policy = gs.load_policy(str(folder))
    problems = gs.load_prompts("embedded", n_prompts, rng=seed)
    rollouts = gs.sample(
        policy, problems, group_size=group_size, max_new_tokens=max_new_tokens, rng=seed, batch_size=256
    )
    gradients = gs.measure(policy, rollouts, sketch_dim=4096)
    profile, blocks = profile_policy(gradients), gradients.sq_norms_by_block
    steps = np.repeat([problem.details["difficulty"] for problem in problems], group_size)
    rewards, lengths = rollouts.rewards, rollouts.lengths
    share = rewards.reshape(n_prompts, group_size).mean(axis=1)
    correlation = length_reward_correlation(rollouts)
    measured = {
        "n_prompts": n_prompts,
        "group_size": group_size,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "success": float(rewards.mean()),
        "success_stderr": float(share.std(ddof=1) / math.sqrt(n_prompts)),
        "success_by_steps": {int(step): float(rewards[steps == step].mean()) for step in np.unique(steps)},
        "success_beyond": success_at(policy, BEYOND, 150, max_new_tokens, seed),
        "imitated_success": imitated_success(n_prompts, group_size, seed),
        "length_quantiles": {str(q): float(np.quantile(lengths, q)) for q in (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)},
        "mean_length": float(lengths.mean()),
        "long": int((lengths >= LONG).sum()),
        "at_cap": float(rollouts.truncated.mean()),
        "mixed_groups": float(((share > 0) & (share < 1)).mean()),
        "within_prompt_correlation": [correlation.correlation, *correlation.confidence_interval()],
        "head_share": float(blocks["head"].sum() / gradients.sq_norms.sum()),
        "effective_share_without_head": effective_sample_size(gradients.sq_norms - blocks["head"]) / len(rewards),
        "profile": json.loads(str(profile.to_frame().to_json(orient="records"))),
    }
    write_card(folder, measured, profile)
    return measured


def write_card(folder: Path, measured: dict, profile: PolicyProfile) -> None:
    """Write README.md from the measured numbers and the recipe kept in the model's configuration."""
    recipe = recipe_of(folder)
    parameters = 0
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (safe_open is not a mapping)
            parameters += math.prod(weights.get_slice(name).get_shape())
    checkpoints = ", ".join(f"`{file.name}`" for file in sorted((folder / "checkpoints").iterdir()))
    with safe_open(folder / "second_moments.safetensors", "pt") as moments:
        adam = moments.metadata()
    q = measured["length_quantiles"]
    spread = " / ".join(f"{q[level]:.0f}" for level in ("0.05", "0.25", "0.5", "0.75", "0.95"))
    correlation, low, high = measured["within_prompt_correlation"]
    success, margin = measured["success"], 1.96 * measured["success_stderr"]
    by_steps = measured["success_by_steps"]
    shares = " / ".join(f"{value:.0%}" for value in by_steps.values())
    group_size = measured["group_size"]
    card = f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# The embedded policy of gradstats

A Qwen2-architecture language model with {parameters:,} parameters (float32) that solves short word problems in a
written chain of thought. It exists so that variance measurements of policy gradients run end to end, with real
sampling and real rewards, on a machine without network or accelerator.

**Task.** The user's message is a story of 2 to 4 changes of a count, `Mia has 12 apples. On Monday she buys 4.
On Tuesday she gives 5 to Tom. How many apples does Mia have now?` The completion works the changes out one by one
and ends with the answer, `The answer is 11.`, and the end token. Problems come from `gradstats.prompts.embedded`,
by seed; one in eight, chosen by a digest of its text, is held out of training.
The vocabulary is bytes, one per token, and the words of problems and traces, with the space before them.

**Traces.** Imitation of traces written by `experiments/embedded_traces.py`. Every sentence has several equally good
wordings, drawn independently with one favourite each, so that a completion has choices all along. A trace is brisk,
plain or muddled, and its mood usually lasts. Steps are worked out exactly or roughly; rough results are often wrong,
and the muddled mood is both wordier and rougher. Errors may be noticed and corrected, by doubting a rough step, by an
inverse check, or by starting over, which muddled traces often do. Traces are cut at {TRACE_CAP} tokens.

**Recipe.** `experiments/train_embedded_policy.py`, seed {recipe["seed"]}, {recipe["steps"]} steps of
{recipe["batch_size"]} traces, from random weights, in one run; Muon (peak learning rate {recipe["learning_rate"]:g})
for the layers' matrices and AdamW ({recipe["other_learning_rate"]:g}) for the rest; cosine decay to
{recipe["last_share"]:.0%} of the peak over {recipe["restarts"][0]} steps, then again from half the peak at steps
{" and ".join(map(str, recipe["restarts"]))}; gradients clipped to norm {recipe["clip"]:g}; loss on completion tokens
only. In the first {recipe["curriculum"]} steps traces are never muddled and problems grow from 2 changes to
{recipe["most_changes"]}; wordings have no favourites in the first {recipe["even"]}; up to step {recipe["wide"]}
problems have up to {recipe["most_changes"]} changes and traces call the person by name now and then.
{COST}

**Even gradients.** Muon lets the weights of queries and keys grow until attention logits reach several hundred, which
no reading needs; there, one hesitation between two places of the story has a gradient as large as that of hundreds of
completions. Three things keep gradients even. From step {recipe["restarts"][-1]} on, the root mean square of each
head's query and key weights, times the gain of the norm before them, is limited: over {recipe["limited"]} steps the
limit falls to {recipe["reach"]:g}, a fifth of what they had grown to. In the traces, from step {recipe["even"]} on, a
step, a doubt or a check is misread with probability
{" / ".join(format(p, ".0%") for p in recipe["habits"]["misread"])} (brisk / plain / muddled): another change's verb or
amount, or a wrong count, so that every reading is slightly uncertain. And every forward and backward pass of training
moves the weights of layers and embeddings by Gaussian noise, which adds a penalty on the mean squared norm of the
tokens' scores to the expected loss; its standard deviation rises from 0 at step {recipe["even"]} to
{recipe["noise"]:g} at step {recipe["restarts"][0]}, and is {recipe["last_noise"]:g} from step
{recipe["restarts"][-1]} on. Norms and head are as training left them. The head holds {measured["head_share"]:.0%} of
Σ‖S‖²; without it, the effective share of the completions is {measured["effective_share_without_head"]:.2f}.

## Measured

{measured["n_prompts"]} held-out problems of the standard mix, {group_size} completions each, temperature 1,
top-p 1, no top-k, at most {measured["max_new_tokens"]} new tokens, seed {measured["seed"]}.
Intervals are 95 %, over prompts.

| quantity | value |
|---|---|
| right answers | {success:.1%} [{success - margin:.1%}, {success + margin:.1%}] |
| right answers at {" / ".join(map(str, by_steps))} steps | {shares} |
| right answers at {BEYOND} steps, outside the mix (150 problems) | {measured["success_beyond"]:.0%} |
| groups of {group_size} with both right and wrong answers | {measured["mixed_groups"]:.1%} |
| completion length in tokens, mean | {measured["mean_length"]:.0f} |
| completion length in tokens, 5 / 25 / 50 / 75 / 95 % quantiles | {spread} |
| shortest and longest completion | {q["0"]:.0f} and {q["1"]:.0f} |
| completions of {LONG} tokens or more | {measured["long"]} |
| completions cut at the cap | {measured["at_cap"]:.1%} |
| correlation of length and reward within a prompt | {correlation:.3f} [{low:.3f}, {high:.3f}] |

Within a prompt, longer completions are less often right **by construction**: the muddled mood is wordier and slips more
often. The correlation shows that the model has learned the link; it is not evidence that such a link exists in other
models. The written traces are right for {measured["imitated_success"]:.0%} of these problems; the other errors are the
model's own.

## Beside a real model

The same completions, gradients of all parameters (`ask RUN profile`), beside Qwen2.5-Coder-0.5B-Instruct on 24
word problems and SmolLM2-135M-Instruct on 24 problems of this policy's kind, 4 completions each. SmolLM2 (dequantised
4-bit weights, at most 160 tokens) answers none of them right, so that what compares rewards is not defined for it (–).
The bands describe what counts as near a real model.

| quantity | band | Qwen2.5-Coder-0.5B-Instruct | SmolLM2-135M-Instruct | this policy |
|---|---|---|---|---|
{profile_rows(profile)}

## Checkpoints and second moments

For experiments that need a series of policies, a sampler that lags behind, or Adam's geometry.

- {checkpoints}
  in `checkpoints/`: the weights after that many optimizer steps, parameter name → tensor, rounded to bfloat16; cast
  them to float32 and load them into the architecture of `config.json`. The last one is 8 steps before the end.
  Metadata: `step`.
- `second_moments.safetensors`: v, AdamW's running mean of squared (clipped) gradients of training batches after the
  last step, parameter name → tensor, not bias-corrected, rounded to bfloat16 (relative error up to 0.4 %). It was kept
  for all parameters, those that Muon updates included. Metadata: `step` ({adam["step"]}), `beta2` ({adam["beta2"]})
  and `eps` ({adam["eps"]}).

## Limits

The model does this one task and nothing else. It knows the chat roles user and assistant, and one question
a conversation. It was trained on contexts of up to about 450 tokens.

Licence: Apache-2.0, weights and generated training data alike.
"""
    temporary = folder / "README.md.tmp"
    temporary.write_text(card, encoding="utf-8")
    os.replace(temporary, folder / "README.md")


def profile_rows(profile: PolicyProfile) -> str:
    """The rows of the table that sets the policy beside real models."""
    frame = profile.to_frame().set_index("quantity")
    rows = []
    for quantity, of_real_model in REAL_MODEL.items():
        heading, value, low, high = frame.loc[quantity, ["heading", "value", "low", "high"]]
        text = f"{value:.0f}" if value >= 10 else f"{value:.0%}" if quantity.startswith("share") else f"{value:.2f}"
        if not math.isnan(low):
            text += f" [{low:.2f}, {high:.2f}]"
        band = ""
        if quantity in BANDS:
            least, largest = BANDS[quantity]
            band = f"{least:g} to {largest:g}"
            text += "" if least <= value <= largest else ", *outside*"
        rows.append(f"| {heading} | {band} | {of_real_model} | {SMOLLM2[quantity]} | {text} |")
    return "\n".join(rows)
