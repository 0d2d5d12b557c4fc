"""Does lower noise train better? The embedded policy in TRL with little data a step, by estimator and as predicted.

A step draws 64 completions: 32 problems with 2 completions each, where estimators differ most, or 16 with 4. AdamW's
rate is the same for all. The policy learns until its mean reward over the last 8 steps reaches 0.85, and all runs of a
seed see the same problems. Adam divides by the root of the mean square gradient, so a run whose gradients are mostly
noise should take steps in proportion to √(1 + B*/B), with B problems a step and the critical batch B* that is measured
at step 0, in all parameters and in the layers alone: where the two differ, training decides between them.

With AsymRE (Arnal et al., 2506.20520) completions are drawn with the weights of 8 steps before, without a ratio that
corrects for it, and the baseline is the group's mean plus δ. The paper has δ < 0 stable, and training collapse above.
These runs learn at twice the rate; runs with δ = 0 and present completions at that rate separate the effect of age from
that of the rate.

``python experiments/lower_noise_in_training.py`` resumes: each run leaves one file when it ends, and each measurement.
Run it again, or with ``--dry-run``, to see what is missing. What it finds holds of this policy.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import tyro
from scipy import stats
from transformers import PrinterCallback, TrainerCallback

import gradstats as gs
from gradstats.prompts.embedded import extract_answer, generate_problems
from gradstats.system.environment import environment
from gradstats.system.files import write_csv, write_json

if TYPE_CHECKING:
    from trl import GRPOTrainer


@dataclass(frozen=True)
class Arm:
    """What a run learns with: an estimator, the problems and completions of a step, and how old the completions are.

    Runs that compare estimators have no ``lag``: they learn from present completions, and end at the target.
    """

    label: str
    prompts: int
    group_size: int
    lag: int | None = None

    @property
    def name(self) -> str:
        """The arm as a file is named."""
        return f"{self.label}_{self.group_size}" + ("" if self.lag is None else f"_{self.lag}")


REFERENCE = Arm("rloo", 32, 2)
ON_POLICY = (REFERENCE, Arm("james_stein", 32, 2), Arm("reinforce", 32, 2), Arm("rloo", 16, 4))
BY_AGE = tuple(
    Arm(f"asymmetric(delta={delta})", 16, 4, lag) for delta, lag in ((-0.2, 8), (0.0, 8), (0.2, 8), (0.0, 0))
)
SEEDS = 6
#: Mean reward at which a run on-policy ends, over so many steps.
TARGET, WINDOW = 0.85, 8
#: Most steps of a run that ends at the target, and the steps of one with completions of a given age.
MOST_STEPS, STEPS_BY_AGE = 120, 60
LEARNING_RATE, LEARNING_RATE_BY_AGE = 3e-4, 6e-4
#: Problems that are measured at step 0, with 8 completions each.
MEASURED = 1000
#: Seconds of a step on an idle core, of which ``--dry-run`` computes where no run has ended yet.
SECONDS_OF_STEP = 4.0


def right(completions: Sequence[list[dict[str, str]]], answer: Sequence[str], **_: object) -> list[float]:
    """Reward 1 for the right answer."""
    texts = [messages[0]["content"] for messages in completions]
    return [float(extract_answer(text) == reference) for text, reference in zip(texts, answer, strict=True)]


class Watched(TrainerCallback):
    """Keeps the rewards and lengths of each step, reports them, and ends a run that has reached the target."""

    def __init__(self, title: str, ends: bool) -> None:
        """Take how a run is reported, and whether it ends at the target."""
        self.title, self.ends, self.rows, self.began = title, ends, [], time.perf_counter()

    def on_log(self, args, state, control, logs=None, **_):
        """Keep a step."""
        if logs and "reward" in logs:
            seconds = time.perf_counter() - self.began
            length = logs["completions/mean_length"]
            self.rows.append(
                {"step": state.global_step, "reward": logs["reward"], "length": length, "seconds": seconds}
            )
            recent = np.mean([row["reward"] for row in self.rows[-WINDOW:]])
            print(f"{self.title}: step {state.global_step}, reward {recent:.3f}, {seconds:.0f} s", flush=True)
            control.should_training_stop = bool(self.ends and len(self.rows) >= WINDOW and recent >= TARGET)
        return control


def draw_with_older_weights(trainer: GRPOTrainer, model: torch.nn.Module, lag: int) -> None:
    """Let completions be drawn with the weights of so many steps before; the first steps have those of the start."""
    draw = trainer._generate_and_score_completions
    kept: deque[dict[str, torch.Tensor]] = deque(maxlen=lag + 1)

    def drawn(inputs: list[dict[str, Any]]) -> dict[str, Any]:
        current = {name: weight.clone() for name, weight in model.state_dict().items()}
        kept.append(current)
        model.load_state_dict(kept[0])
        try:
            return draw(inputs)
        finally:
            model.load_state_dict(current)

    vars(trainer)["_generate_and_score_completions"] = drawn


def train(arm: Arm, seed: int, steps: int, scratch: Path) -> pd.DataFrame:
    """Return reward, length and seconds after each step of a run."""
    import datasets  # these take seconds to import, which tables do not need
    from trl import GRPOConfig, GRPOTrainer

    from gradstats.integrations.trl import use_estimator

    policy = gs.load_policy("embedded", progress=False)
    problems = generate_problems(arm.prompts * steps, rng=seed, split="train", steps=(2, 3))
    rows = [{"prompt": [{"role": "user", "content": one.prompt}], "answer": one.answer} for one in problems]
    settings = GRPOConfig(
        output_dir=str(scratch),
        per_device_train_batch_size=arm.prompts * arm.group_size,
        num_generations=arm.group_size,
        max_completion_length=200,
        max_steps=steps,
        save_strategy="no",
        learning_rate=LEARNING_RATE if arm.lag is None else LEARNING_RATE_BY_AGE,
        lr_scheduler_type="constant",
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        seed=seed,
    )
    watched = Watched(f"{arm.name}, seed {seed}", ends=arm.lag is None)
    trainer = GRPOTrainer(
        model=policy.model,
        args=settings,
        processing_class=policy.tokenizer,
        reward_funcs=right,  # pyright: ignore[reportArgumentType]
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=[watched],
    )
    trainer.remove_callback(PrinterCallback)
    if arm.lag:
        draw_with_older_weights(trainer, policy.model, arm.lag)
    used = use_estimator(trainer, arm.label)  # pyright: ignore[reportArgumentType]
    trainer.train()
    if used.n_kept:
        raise RuntimeError(f"{arm.label} could not be computed in {used.n_kept} steps of {arm.name}, seed {seed}")
    return pd.DataFrame(watched.rows)


def critical_batches(params: str | None, n_prompts: int) -> pd.DataFrame:
    """Return the critical batch of each arm on-policy at step 0, in prompts, with its interval."""
    policy = gs.load_policy("embedded", progress=False)
    problems = gs.load_prompts("embedded", n=n_prompts, rng=1, steps=(2, 3))
    rollouts = gs.sample(policy, problems, group_size=8, max_new_tokens=200, reward="embedded", rng=1)
    measured = gs.measure(policy, rollouts, params=params, sketch_dim=4096)
    found = []
    for size in sorted({arm.group_size for arm in ON_POLICY}):
        arms = [arm for arm in ON_POLICY if arm.group_size == size]
        frame = gs.compare(measured, [arm.label for arm in arms], group_size=size, reference="rloo").to_frame()
        columns = frame.set_index("estimator").filter(regex="^(noise_to_signal|matched_ratio)")
        found += [{"arm": arm.name, **columns.loc[arm.label]} for arm in arms]
    return pd.DataFrame(found)


def predicted(critical: pd.DataFrame) -> dict[str, float]:
    """Return the steps that each arm should take, over those of the reference."""
    by_arm: dict[str, float] = dict(zip(critical["arm"], critical["noise_to_signal"], strict=True))
    relative = {arm.name: math.sqrt(1.0 + by_arm[arm.name] / arm.prompts) for arm in ON_POLICY}
    return {name: one / relative[REFERENCE.name] for name, one in relative.items()}


def steps_taken(run: pd.DataFrame) -> float:
    """Return the steps after which a run had reached the target; NaN where it did not."""
    recent = np.convolve(run["reward"], np.ones(WINDOW) / WINDOW, mode="valid")
    (reached,) = np.nonzero(recent >= TARGET)
    return float(reached[0] + WINDOW) if len(reached) else math.nan


def results(runs: Path) -> dict[str, pd.DataFrame]:
    """Return tables of the runs that have ended: on-policy steps against predictions, and rewards by age."""
    ended = {(arm, seed): runs / f"{arm.name}_{seed}.csv" for arm in (*ON_POLICY, *BY_AGE) for seed in range(SEEDS)}
    ended = {key: pd.read_csv(path) for key, path in ended.items() if path.exists()}
    steps = {(arm.name, seed): steps_taken(run) for (arm, seed), run in ended.items() if arm.lag is None}
    tables = {params: pd.read_csv(path) for params, path in measured_paths(runs).items() if path.exists()}
    expected = {name: predicted(table) for name, table in tables.items()}
    found = []
    for arm in ON_POLICY:
        pairs = [
            np.log(steps[arm.name, seed] / steps[REFERENCE.name, seed])
            for seed in range(SEEDS)
            if {(arm.name, seed), (REFERENCE.name, seed)} <= set(steps)
        ]
        known = [one for one in pairs if np.isfinite(one)]
        half = stats.sem(known) * stats.t.ppf(0.975, len(known) - 1) if len(known) > 1 else np.nan
        mean = np.mean(known) if known else np.nan
        found.append(
            {
                "arm": arm.name,
                "pairs": len(pairs),
                "not_reached": len(pairs) - len(known),
                "steps": pd.Series([steps.get((arm.name, seed)) for seed in range(SEEDS)], dtype=float).mean(),
                "ratio": np.exp(mean),
                "ratio_low": np.exp(mean - half),
                "ratio_high": np.exp(mean + half),
            }
            | {f"predicted_{name}": one[arm.name] for name, one in expected.items()}
        )
    rewards = [
        {
            "arm": arm.name,
            "seed": seed,
            "first": run["reward"].iloc[:WINDOW].mean(),
            "best": run["reward"].rolling(WINDOW).mean().max(),
            "last": run["reward"].iloc[-WINDOW:].mean(),
        }
        for (arm, seed), run in ended.items()
        if arm.lag is not None
    ]
    return {"steps": pd.DataFrame(found), "by_age": pd.DataFrame(rewards)}


def rows(steps: pd.DataFrame) -> list[str]:
    """Return the rows of docs/training.md: steps over those of the reference, and as predicted."""
    return [
        f"| `{one['arm'].rpartition('_')[0]}`, {one['arm'].rpartition('_')[2]} "
        f"| {one['ratio']:.2f} [{one['ratio_low']:.2f}, {one['ratio_high']:.2f}] "
        f"| {one['predicted_layers']:.2f} | {one['predicted_all']:.2f} |"
        for one in steps.to_dict("records")
        if one["arm"] != REFERENCE.name
    ]


def rows_by_age(rewards: pd.DataFrame) -> list[str]:
    """Return the rows of docs/training.md by age of completions: mean rewards, and the range over seeds."""
    found = []
    for arm in BY_AGE:
        of_arm = rewards[rewards["arm"] == arm.name]
        cells = [f"{of_arm[at].mean():.2f} ({of_arm[at].min():.2f}–{of_arm[at].max():.2f})" for at in ("best", "last")]
        shift = arm.label.partition("=")[2].rstrip(")").replace("-", "−")
        found.append(f"| {shift} | {arm.lag} | {' | '.join(cells)} |")
    return found


def measured_paths(runs: Path) -> dict[str, Path]:
    """Return where the critical batches at step 0 are kept, by the parameters that are measured."""
    return {name: runs / f"critical_batch_{name}.csv" for name in ("all", "layers")}


def main(
    runs: Path = Path("runs/lower_noise"),
    out: Path = Path("figures/lower_noise_training"),
    dry_run: bool = False,
) -> None:
    """Train and measure what is missing, and write tables.

    Args:
        runs: folder with a file for each run that has ended; the same command resumes there.
        out: folder of the tables.
        dry_run: state what is missing and the time that it takes, and do nothing.
    """
    plan = [(arm, seed) for seed in range(SEEDS) for arm in (*ON_POLICY, *BY_AGE)]
    missing = [(arm, seed) for arm, seed in plan if not (runs / f"{arm.name}_{seed}.csv").exists()]
    taken = [pd.read_csv(path).iloc[-1] for path in runs.glob("*_[0-9].csv")]
    of_step = np.mean([last["seconds"] / last["step"] for last in taken]) if taken else SECONDS_OF_STEP
    most = sum(MOST_STEPS if arm.lag is None else STEPS_BY_AGE for arm, _ in missing) * of_step / 3600
    print(f"{len(missing)} of {len(plan)} runs to go, at most {most:.1f} hours at {of_step:.1f} s a step")
    if dry_run:
        return
    torch.set_num_threads(1)
    runs.mkdir(parents=True, exist_ok=True)
    for name, path in measured_paths(runs).items():
        if not path.exists():
            print(f"measuring at step 0: {name}", flush=True)
            write_csv(path, critical_batches(None if name == "all" else name, MEASURED))
    for count, (arm, seed) in enumerate(missing, 1):
        print(f"run {count} of {len(missing)}", flush=True)
        found = train(arm, seed, MOST_STEPS if arm.lag is None else STEPS_BY_AGE, runs / "scratch")
        write_csv(runs / f"{arm.name}_{seed}.csv", found)
        for name, table in results(runs).items():
            out.mkdir(parents=True, exist_ok=True)
            write_csv(out / f"{name}.csv", table)
    write_json(out / "manifest.json", {"script": Path(__file__).name} | environment())


if __name__ == "__main__":
    tyro.cli(main)
