"""Second moments of Adam's metric from a policy's own gradients, for experiments/qwen_adam.yaml.

Samples completions of prompts that the experiment does not measure, those of a larger subset of the same problems, and
writes the mean squares of their batch gradients. What is sampled is kept: repeated, the command goes on.
"""

from __future__ import annotations

from pathlib import Path

import tyro

import gradstats as gs
from gradstats.config.experiment import read_experiment
from gradstats.config.sections import PromptsSection
from gradstats.prompts.problem import Problem


def main(
    experiment: Path = Path("experiments/qwen_adam.yaml"),
    prompts: int = 64,
    completions: int = 4,
    prompts_per_batch: int = 4,
    out: Path = Path("models/qwen_second_moments.safetensors"),
) -> None:
    """Estimate second moments and write them.

    Args:
        experiment: whose policy, problems and sampler are taken.
        prompts: prompts beside those that the experiment measures.
        completions: completions of each.
        prompts_per_batch: prompts of a batch whose gradient is squared.
        out: the file, a safetensors file.
    """
    settings = read_experiment(experiment)
    others = beside(settings.prompts, prompts)
    policy = gs.load_policy(settings.policy.name, **settings.policy.arguments())
    prompts_together = settings.sampling.batch_size // settings.sampling.group_size
    drawn = {"group_size": completions, "batch_size": prompts_together * completions}
    sampling = settings.sampling.model_copy(update=drawn)
    rollouts = gs.sample(policy, others, **sampling.arguments(), keep_in=out.with_suffix(""))
    gs.estimate_second_moments(policy, rollouts, "rloo", prompts_per_batch=prompts_per_batch).save(out)
    print(out)


def beside(source: PromptsSection, count: int) -> list[Problem]:
    """Return problems of a set whose texts are none of those that an experiment measures; some sets repeat them."""
    assert source.n is not None

    def chosen(n: int) -> list[Problem]:
        return gs.load_prompts(source.source, n, rng=source.seed, **source.settings)

    measured, size = {one.prompt for one in chosen(source.n)}, source.n + count
    while True:
        others = {one.prompt: one for one in chosen(size) if one.prompt not in measured}
        if len(others) >= count:
            return list(others.values())
        size += count - len(others)


if __name__ == "__main__":
    tyro.cli(main)
