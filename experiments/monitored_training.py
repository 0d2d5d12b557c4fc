"""Draw what the monitor logs along a training run: critical batch, alignment, saving and tokens without signal.

TRL's `GRPOTrainer`, with its default advantages, trains the embedded policy from its checkpoint of step 2000, which
leaves room for the reward to rise, and the monitor measures every batch. ``python experiments/monitored_training.py``
takes minutes; it needs the extra ``trl``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import transformers
import tyro
from trl import GRPOConfig, GRPOTrainer

import gradstats as gs
from gradstats.integrations.training_record import PREFIX
from gradstats.integrations.trl import VarianceMonitor
from gradstats.plots import save_figure, style
from gradstats.plots.marks import estimates_of, with_ends
from gradstats.plots.style import stroke
from gradstats.plots.variance import plain_ticks
from gradstats.prompts.embedded import extract_answer, generate_problems
from gradstats.system.environment import environment
from gradstats.system.files import write_json

#: The trainer's own estimator, and what could replace it.
LABELS = ("grpo", "rloo", "reinforce", "length_weighted(alpha=0.8, loo=True)", "norm_weighted(loo=True)")
#: What is drawn with an interval: key → axis label.
ESTIMATED = {
    "critical_batch": "critical batch in prompts",
    "alignment": "alignment of the batch",
    "best_saving": "prompts saved by the best",
}
#: What is known of each batch: key → name in the legend.
KNOWN = {"reward": "mean reward", "silent_tokens": "tokens without signal"}


@dataclass(frozen=True)
class Settings:
    """Of the training run.

    Attributes:
        steps: of the optimizer.
        prompts: of a step.
        group_size: completions of each.
        max_new_tokens: cap of a completion.
        learning_rate: of AdamW, constant.
        revision: the checkpoint that training begins with.
    """

    steps: int = 30
    prompts: int = 16
    group_size: int = 8
    max_new_tokens: int = 128
    learning_rate: float = 3e-4
    revision: str = "step-2000"


def right(completions: list[list[dict[str, str]]], answer: list[str], **_: object) -> list[float]:
    """Return 1 for the right answer."""
    texts = [messages[0]["content"] for messages in completions]
    return [float(extract_answer(text) == reference) for text, reference in zip(texts, answer, strict=True)]


def train(settings: Settings, folder: Path) -> pd.DataFrame:
    """Train with a monitor; returns what was logged, a row for each step."""
    policy = gs.load_policy("embedded", revision=settings.revision, progress=False)
    problems = generate_problems(settings.steps * settings.prompts, rng=0, split="train")
    rows = [{"prompt": [{"role": "user", "content": one.prompt}], "answer": one.answer} for one in problems]
    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=settings.prompts * settings.group_size,
        num_generations=settings.group_size,
        max_completion_length=settings.max_new_tokens,
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=False,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        args=config,
        processing_class=policy.tokenizer,
        reward_funcs=right,
        train_dataset=datasets.Dataset.from_list(rows),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    VarianceMonitor(LABELS, every=1, sketch_dim=4096).attach(trainer)
    trainer.train()
    return logged(trainer.state.log_history)


def logged(history: list[dict[str, float]]) -> pd.DataFrame:
    """Return the quantities of the figure from a trainer's history, NaN where a key is missing."""
    names = [end for name in ESTIMATED for end in with_ends(name)]
    rows = [
        {"step": row["step"], "reward": row["reward"]}
        | {name: row.get(f"{PREFIX}/{name}") for name in (*names, "over_steps", "batch_prompts", "silent_tokens")}
        for row in history
        if f"{PREFIX}/silent_tokens" in row
    ]
    return pd.DataFrame(rows).astype(float)


def draw(frame: pd.DataFrame) -> None:
    """Draw each quantity against the step, with its band; a band without a line is a bound."""
    width = plt.rcParams["figure.figsize"][0]
    _, axes = plt.subplots(2, 2, figsize=(width, 3.6), sharex=True)
    step = frame["step"].to_numpy()
    for ax, (name, label) in zip(axes.flat, ESTIMATED.items(), strict=False):
        value, low, high = estimates_of(frame, name).T
        if name == "critical_batch":  # an unknown end lies above the axis
            above = 3.0 * np.nanmax([value, low, high])
            high = np.where(np.isfinite(low) & ~np.isfinite(high), above, high)
            ax.set(yscale="log", ylim=(np.nanmin(low) / 1.5, above))
            plain_ticks(ax, logarithmic=True, vertical=True)
        ax.fill_between(step, low, high, alpha=0.25, linewidth=0)
        ax.plot(step, value, linewidth=stroke(1.2))
        ax.set_ylabel(label)
    axes[0, 1].set_ylim(0.0, None)
    for (name, label), dashes in zip(KNOWN.items(), ("-", "--"), strict=True):
        axes[1, 1].plot(step, frame[name], dashes, linewidth=stroke(1.0), label=label)
    axes[1, 1].set(ylim=(0.0, 1.0), ylabel="share")
    axes[1, 1].legend()
    for ax in axes[1]:
        ax.set_xlabel("training step")


def main(settings: Settings = Settings(), out: Path = Path("figures/monitored_training")) -> None:
    """Train and write table and figure.

    Args:
        settings: of the run.
        out: folder of table and figure.
    """
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        frame = train(settings, Path(folder))
    with mpl.rc_context(style("iclr")):  # pyright: ignore[reportArgumentType]
        draw(frame)
        save_figure(plt.gcf(), out / "monitored", source=frame, overwrite=True)
    plt.close("all")
    about = {"script": Path(__file__).name, "settings": asdict(settings), "estimators": list(LABELS)}
    write_json(out / "manifest.json", about | environment())


if __name__ == "__main__":
    tyro.cli(main)
