"""A copy of a policy after steps of AdamW on completions that it drew, for experiments/qwen_stale.yaml.

The completions are split into as many mini-batches of whole prompts as an epoch has steps, as trainers split a batch
that was drawn at once; each step follows the gradient of RLOO's advantages with the ratios of tokens. More than a few
steps need PPO's clip (--clip 0.2): without it, a token that was drawn with probability p has a ratio of up to 1/p.
Adam's moments begin at 0, so that the first steps move nearly every weight by the rate, as at the start of training.
The second moments are written beside the policy, for Adam's metric (measurement.second_moments).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import tyro

import gradstats as gs
from gradstats.policy.policy import suitable_threads
from gradstats.system.progress import progress_bar


def main(
    policy: str,
    rollouts: Path,
    out: Path,
    steps: int = 4,
    epochs: int = 1,
    learning_rate: float = 1e-6,
    clip: float | None = None,
) -> None:
    """Update the policy and write it; a mini-batch of groups whose rewards are all alike has no gradient and no step.

    Args:
        policy: "embedded", a folder, a .gguf file or a hub id; in float32, at temperature 1.
        rollouts: completions that it drew, in groups of one size.
        out: the folder, which must not exist.
        steps: optimizer steps of an epoch, one for each mini-batch.
        epochs: how many times the completions are gone through.
        learning_rate: of AdamW, constant, without weight decay.
        clip: how far from 1 a token's ratio may go before PPO's minimum (Schulman et al. 2017) stops its gradient.
    """
    if out.exists():
        raise SystemExit(f"{out} exists: remove it, or choose another folder (--out)")
    drawn = gs.read_rollouts(rollouts, partial=True)  # a folder that gs.sample keeps is never marked as complete
    groups = [np.flatnonzero(drawn.prompt_id == name) for name in dict.fromkeys(drawn.prompt_id)]
    size = len(groups[0])
    if any(len(rows) != size for rows in groups) or size < 2:
        raise SystemExit(f"{rollouts} holds groups of several sizes, or of one completion: RLOO takes at least two")
    if not 1 <= steps <= len(groups):
        raise SystemExit(
            f"--steps is {steps}, and {rollouts} holds {len(groups)} prompts: each step takes at least one"
        )
    if epochs < 1:
        raise SystemExit(f"--epochs is {epochs}: the completions are gone through at least once")
    if clip is not None and not 0.0 < clip < 1.0:
        raise SystemExit(f"--clip is {clip:g}: it lies between 0 and 1, as in 0.2")
    old = drawn.recorded_logprobs("sampler_logprobs")
    if old is None:
        raise SystemExit(f"{rollouts} holds no log-probabilities of its sampler: sample with gradstats")
    loaded = gs.load_policy(policy, dtype="float32")
    model, prompts, completions = loaded.model, drawn.tokens("prompt_tokens"), drawn.tokens("completion_tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, foreach=False)
    batches = epochs * np.array_split(np.arange(len(groups)), steps)
    with progress_bar("updates", epochs * len(drawn)) as report, suitable_threads(loaded):
        for batch in batches:
            for rows in (groups[number] for number in batch):
                rewards = drawn.rewards[rows]
                advantages = (rewards - rewards.mean()) * size / (size - 1)
                for row, advantage in zip(rows, advantages, strict=True):
                    if advantage:
                        count = len(completions[row])
                        tokens = torch.as_tensor(np.concatenate([prompts[row], completions[row]]))[None]
                        logits = model(tokens[:, :-1], logits_to_keep=count).logits[0]
                        logprobs = -torch.nn.functional.cross_entropy(logits, tokens[0, -count:], reduction="none")
                        ratios = torch.exp(logprobs - torch.as_tensor(old[row]))
                        if not optimizer.state and abs(torch.log(ratios.detach()).mean()) > 1e-3:
                            raise SystemExit(f"{policy} did not draw {rollouts}: its log-probabilities differ")
                        gains = ratios * advantage
                        if clip is not None:
                            gains = torch.minimum(gains, ratios.clamp(1.0 - clip, 1.0 + clip) * advantage)
                        (-gains.sum() / (len(batch) * size)).backward()
                    report.chunk(1, len(completions[row]))
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(out)
    loaded.tokenizer.save_pretrained(out)
    gs.AdamMetric.of_optimizer(optimizer, model).save(out / "second_moments.safetensors")
    print(out)


if __name__ == "__main__":
    tyro.cli(main)
