"""Train the embedded policy with RLOO in TRL, and keep its checkpoints for experiments/sweeps/embedded_reinforced.yaml.

A step takes 16 problems of two or three steps, of those that the policy was trained on, with 8 completions each, and
learns a plain sum over tokens on-policy. Repeated, the command goes on at the last checkpoint. About ten minutes of one
core.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import datasets
import torch
import tyro
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

import gradstats as gs
from gradstats.integrations.trl import use_estimator
from gradstats.prompts.embedded import extract_answer, generate_problems


def right(completions: Sequence[list[dict[str, str]]], answer: Sequence[str], **_: object) -> list[float]:
    """Reward 1 for the right answer."""
    texts = [messages[0]["content"] for messages in completions]
    return [float(extract_answer(text) == reference) for text, reference in zip(texts, answer, strict=True)]


def main(
    out: Path = Path("models/embedded_reinforced"),
    steps: int = 40,
    save_steps: int = 10,
    prompts: int = 16,
    group_size: int = 8,
    learning_rate: float = 2e-4,
) -> None:
    """Train and save.

    Args:
        out: folder of the checkpoints.
        steps: optimizer steps.
        save_steps: steps between checkpoints.
        prompts: problems of a step.
        group_size: completions of each.
        learning_rate: of AdamW, constant.
    """
    torch.set_num_threads(1)
    policy = gs.load_policy("embedded", progress=False)
    problems = generate_problems(prompts * steps, rng=0, split="train", steps=(2, 3))
    rows = [{"prompt": [{"role": "user", "content": one.prompt}], "answer": one.answer} for one in problems]
    settings = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=prompts * group_size,
        num_generations=group_size,
        max_completion_length=200,
        max_steps=steps,
        save_steps=save_steps,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        args=settings,
        processing_class=policy.tokenizer,
        reward_funcs=right,  # pyright: ignore[reportArgumentType]
        train_dataset=datasets.Dataset.from_list(rows),
    )
    use_estimator(trainer, "rloo")  # pyright: ignore[reportArgumentType]
    start = out / "checkpoint-0"
    if not start.exists():
        policy.model.save_pretrained(start)
        policy.tokenizer.save_pretrained(start)
    last = get_last_checkpoint(str(out))
    trainer.train(resume_from_checkpoint=None if last == str(start) else last)


if __name__ == "__main__":
    tyro.cli(main)
