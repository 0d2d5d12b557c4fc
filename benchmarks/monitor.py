"""Processor time of a training step of TRL's GRPOTrainer that the variance monitor measures, over that of other steps.

Writes figures/engines/monitor.csv. The embedded policy trains on 8 groups of 8 completions, one thread, without
gradient checkpointing; every other step is measured, so that neighbouring steps of one process are compared. The first
two steps are left out. ``over_step`` is the median of a measured step over the median of its neighbours;
``over_run`` is what that makes of a whole run at the default interval.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro

TABLE = Path(__file__).parents[1] / "figures" / "engines" / "monitor.csv"
LENGTHS = (128, 256)
GROUPS = GROUP_SIZE = 8
_LEFT_OUT = 2


def steps_of(cap: int, n_steps: int) -> list[float]:
    """Train and return the processor seconds of each step; those with even numbers are measured."""
    import datasets
    import transformers
    import trl

    import gradstats as gs
    from gradstats.integrations.trl import VarianceMonitor
    from gradstats.prompts.embedded import extract_answer, generate_problems

    policy = gs.load_policy("embedded", revision="step-2000", progress=False)
    problems = generate_problems(GROUPS * n_steps, rng=0, split="train")
    rows = [{"prompt": [{"role": "user", "content": one.prompt}], "answer": one.answer} for one in problems]

    def right(completions: list[list[dict[str, str]]], answer: list[str], **_: object) -> list[float]:
        texts = [messages[0]["content"] for messages in completions]
        return [float(extract_answer(text) == reference) for text, reference in zip(texts, answer, strict=True)]

    seconds: list[float] = []

    class Clock(transformers.TrainerCallback):
        start = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.process_time() - self.start)

    with tempfile.TemporaryDirectory() as folder:
        settings = trl.GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=GROUPS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=cap,
            max_steps=n_steps,
            learning_rate=1e-6,
            gradient_checkpointing=False,
            beta=0.0,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(
            model=policy.model,
            args=settings,
            processing_class=policy.tokenizer,
            reward_funcs=right,  # pyright: ignore[reportArgumentType]
            train_dataset=datasets.Dataset.from_list(rows),
            callbacks=[Clock()],
        )
        VarianceMonitor(every=2).attach(trainer)  # pyright: ignore[reportArgumentType]
        trainer.train()
    return seconds


def main(n_steps: int = 12, table: Path = TABLE) -> None:
    """Measure every cap and write the table.

    Args:
        n_steps: training steps, of which every other one is measured.
        table: the file that is written.
    """
    import inspect

    import torch

    from gradstats.integrations.trl import VarianceMonitor
    from gradstats.system.files import write_csv

    torch.set_num_threads(1)
    every = inspect.signature(VarianceMonitor).parameters["every"].default
    rows = []
    for cap in LENGTHS:
        seconds = np.array(steps_of(cap, n_steps)[_LEFT_OUT:])
        measured, others = (float(np.median(seconds[start::2])) for start in (0, 1))
        over = measured / others
        row = {"cap": cap, "step_s": others, "measured_step_s": measured, "over_step": over}
        rows.append(row | {"over_run": 1.0 + (over - 1.0) / every, "every": every, "n_steps": len(seconds)})
        print(rows[-1], flush=True)
    table.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table, pd.DataFrame(rows).round(4))


if __name__ == "__main__":
    tyro.cli(main)
