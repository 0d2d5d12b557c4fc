"""Does the estimator with the lower measured variance train better? Trains the embedded policy with TRL to see.

Each arm is one estimator in place of the trainer's advantages (`use_estimator`) under GRPOTrainer's plain sum over
tokens, once for each seed; an arm ends when it has drawn its share of tokens. All arms of a seed begin with the same
checkpoint and see the same problems in the same order. The arms of the baseline estimator are watched by a
`VarianceMonitor`, whose record shows how the variance of every estimator changes along a training run. Afterwards each
trained policy answers the same held-out problems.

Every training run leaves one file, ARM-seed-K.json, in the output folder; the same command goes on with those that are
missing. `training_curves.py` draws them.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import transformers
import tyro
from trl import GRPOConfig, GRPOTrainer

import gradstats as gs
from gradstats.integrations.trl import VarianceMonitor, use_estimator
from gradstats.policy.policy import Policy
from gradstats.prompts.embedded import extract_answer, generate_problems
from gradstats.system.files import write_json

#: Arm → the estimator that it trains with; `reinforce`, without a baseline, shows what a clear difference looks like.
ARMS = {
    "rloo": "rloo",
    "length_weighted": "length_weighted(alpha=0.8, loo=True)",
    "asymre": "asymmetric(delta=-0.1, loo=True)",
    "reinforce": "reinforce",
}
WATCHED = "rloo"
HELD_OUT_SEED = 1_000_000


@dataclass(frozen=True)
class Training:
    """What all arms share.

    Attributes:
        revision: the checkpoint of the embedded policy that training begins with.
        tokens: the completions' tokens that an arm draws.
        prompts: problems a step.
        group_size: completions of each problem.
        max_new_tokens: cap of a completion.
        learning_rate: of AdamW, constant.
        monitor_every: steps between two measurements of the monitor.
        held_out: problems that the trained policy answers.
        held_out_completions: completions of each.
    """

    revision: str = "step-2000"
    tokens: int = 160_000
    prompts: int = 8
    group_size: int = 8
    max_new_tokens: int = 128
    learning_rate: float = 3e-4
    monitor_every: int = 10
    held_out: int = 128
    held_out_completions: int = 4

    @property
    def most_steps(self) -> int:
        """Steps that are enough for the tokens unless completions become shorter than ten tokens."""
        return math.ceil(self.tokens / (10 * self.prompts * self.group_size))


class Scorer:
    """The reward function; keeps the mean reward and the lengths of every step."""

    __name__ = "embedded_reward"

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.tokens = 0
        self._begun = time.process_time()

    def __call__(
        self,
        completions: Sequence[Sequence[dict[str, str]]],
        completion_ids: Sequence[Sequence[int]],
        answer: Sequence[str],
        **_: object,
    ) -> list[float]:
        """Return 1 for each right answer and 0 for each other completion."""
        texts = [messages[0]["content"] for messages in completions]
        rewards = [float(extract_answer(text) == right) for text, right in zip(texts, answer, strict=True)]
        lengths = [len(ids) for ids in completion_ids]
        self.tokens += sum(lengths)
        self.steps.append(
            {
                "tokens": self.tokens,
                "mean_reward": float(np.mean(rewards)),
                "mean_length": float(np.mean(lengths)),
                "processor_s": time.process_time() - self._begun,
            }
        )
        return rewards


class StopAtTokens(transformers.TrainerCallback):
    """Ends a training run after the step in which its share of tokens is used up."""

    def __init__(self, scorer: Scorer, tokens: int) -> None:
        self._scorer, self._tokens = scorer, tokens

    def on_step_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **_: object,
    ) -> None:
        """Stop when the tokens are drawn."""
        control.should_training_stop |= self._scorer.tokens >= self._tokens


def train_arm(arm: str, seed: int, training: Training, monitored: Path | None) -> dict[str, object]:
    """Train one arm with one seed; returns what its file holds.

    Args:
        arm: of `ARMS`.
        seed: decides the problems, their order and the completions.
        training: what all arms share.
        monitored: the folder of the monitor's record; None without a monitor.
    """
    policy = gs.load_policy("embedded", revision=training.revision, progress=False)
    scorer = Scorer()
    problems = generate_problems(training.prompts * training.most_steps, rng=seed, split="train")
    rows = [{"prompt": [{"role": "user", "content": problem.prompt}], "answer": problem.answer} for problem in problems]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            seed=seed,
            per_device_train_batch_size=training.prompts * training.group_size,
            num_generations=training.group_size,
            max_completion_length=training.max_new_tokens,
            max_steps=training.most_steps,
            learning_rate=training.learning_rate,
            lr_scheduler_type="constant",
            loss_type="dr_grpo",  # a plain sum over tokens
            scale_rewards="none",
            beta=0.0,
            temperature=1.0,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer: Any = GRPOTrainer(
            model=policy.model,
            args=settings,
            processing_class=policy.tokenizer,
            reward_funcs=cast(Any, scorer),
            train_dataset=datasets.Dataset.from_list(rows),
            callbacks=[StopAtTokens(scorer, training.tokens)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        use_estimator(trainer, ARMS[arm])
        if monitored is not None:
            labels = [*ARMS.values(), "norm_weighted(loo=True)"]
            VarianceMonitor(labels, every=training.monitor_every, out=monitored, sketch_dim=8192).attach(trainer)
        trainer.train()
    trained = gs.load_policy("embedded", revision=training.revision, progress=False)
    trained.model.load_state_dict(trainer.model.state_dict())
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    return {
        "arm": arm,
        "estimator": ARMS[arm],
        "seed": seed,
        "training": asdict(training),
        "steps": [step | {"grad_norm": norm} for step, norm in zip(scorer.steps, norms, strict=True)],
        "held_out": held_out_rates(trained, training),
    }


def held_out_rates(policy: Policy, training: Training) -> list[float]:
    """Return the share of right answers to each held-out problem, the same for every policy."""
    problems = gs.load_prompts("embedded", n=training.held_out, rng=HELD_OUT_SEED)
    rollouts = gs.sample(
        policy,
        problems,
        group_size=training.held_out_completions,
        max_new_tokens=training.max_new_tokens,
        rng=HELD_OUT_SEED,
        batch_size=training.held_out * training.held_out_completions,
        progress=False,
    )
    rewards = dict.fromkeys((problem.prompt_id for problem in problems), 0.0)
    for prompt, reward in zip(rollouts.prompt_id.tolist(), rollouts.rewards.tolist(), strict=True):
        rewards[prompt] += reward / training.held_out_completions
    return list(rewards.values())


def main(
    out: Path = Path("runs/training"),
    seeds: int = 3,
    arms: tuple[str, ...] = tuple(ARMS),
    training: Training = Training(),
) -> None:
    """Train every arm with every seed that has no result yet.

    Args:
        out: folder of the results; the same command resumes there.
        seeds: number of seeds.
        arms: arms to train.
        training: what all arms share.
    """
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise SystemExit(f"unknown arm {unknown[0]}: choose among {', '.join(ARMS)}")
    out.mkdir(parents=True, exist_ok=True)
    shared = out / "training.json"
    if not shared.exists():
        write_json(shared, asdict(training))
    found = json.loads(shared.read_text(encoding="utf-8"))
    if differing := [name for name, value in asdict(training).items() if found.get(name) != value]:
        name = differing[0]
        raise SystemExit(f"{out} was trained with {name}={found.get(name)}: give the same, or another --out")
    start = out / "start.json"
    if not start.exists():
        policy = gs.load_policy("embedded", revision=training.revision, progress=False)
        write_json(start, {"training": asdict(training), "held_out": held_out_rates(policy, training)})
    for seed in range(seeds):
        for arm in arms:
            path = out / f"{arm}-seed-{seed}.json"
            if path.exists():
                continue
            monitored = out / f"monitor-seed-{seed}" if arm == WATCHED else None
            begun = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the libraries
                result = train_arm(arm, seed, training, monitored)
            write_json(path, result)
            print(f"{path} after {time.process_time() - begun:.0f} processor seconds", flush=True)


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except KeyboardInterrupt:
        raise SystemExit("\nInterrupted: the same command goes on with the training runs that are missing.") from None
