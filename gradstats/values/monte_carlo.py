r"""VinePPO's values: the mean reward of fresh completions from the prefixes at which steps begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gradstats.policy.policy import Policy, suitable_threads
from gradstats.prompts.problem import Problem
from gradstats.rewards.grading import Grader, RewardSpec
from gradstats.rollouts.table import Rollouts
from gradstats.sampling.sampler import SamplerSettings
from gradstats.sampling.transformers_sampler import generate
from gradstats.system.patterns import matches
from gradstats.system.progress import Report, progress_bar

Steps = str | Callable[[list[str]], Sequence[int]]


def monte_carlo_values(
    policy: Policy,
    rollouts: Rollouts,
    problems: Sequence[Problem],
    *,
    k: int = 4,
    steps: Steps = r"\n+",
    reward: RewardSpec = None,
    rng: int = 0,
    batch_size: int = 64,
    progress: bool = True,
    report: Report | None = None,
) -> list[np.ndarray]:
    r""":math:`\hat V` where each step begins, NaN inside steps, for the ``vine`` baseline (VinePPO, arXiv:2410.01679).

    From each prefix, k completions are drawn with the rollouts' sampler settings, up to the remainder of their length
    cap; :math:`\hat V` is the mean reward of prefix and continuation together. The value of the prompt itself is
    estimated once per prompt. The cost is k completions per step: use small k and samples of prompts.

    Args:
        policy: the policy that drew the rollouts.
        rollouts: the completions, with the sampler's settings in their metadata.
        problems: the problems, for their answers; found by ``prompt_id``.
        k: completions per prefix.
        steps: a regular expression that ends a step in the completion's text (a line break by default), or a function
            from the texts of the tokens to the positions at which steps begin.
        reward: as for :func:`gradstats.sample`.
        rng: seed.
        batch_size: completions drawn together.
        progress: show a progress bar.
        report: where to count the tokens drawn, in place of a bar.

    Returns:
        For each completion, :math:`(T_i,)` values, for ``gs.compare(measured, ["vine"], values=…)``.

    Raises:
        ValueError: for k below 1, rollouts without sampler settings, or a prompt that is not among the problems.
    """
    if k < 1:
        raise ValueError(f"k={k} must be at least 1: it is the number of completions behind each value")
    sampler = rollouts.metadata.get("sampler")
    if sampler is None:
        raise ValueError(
            "the rollouts do not record how they were sampled (metadata['sampler']): values must come from the same "
            "sampler; sample with gradstats.sample, or put its settings there"
        )
    settings = SamplerSettings(**{key: sampler[key] for key in SamplerSettings.model_fields if key in sampler})
    known = {problem.prompt_id: problem for problem in problems}
    missing = sorted({str(prompt) for prompt in rollouts.prompt_id} - set(known))
    if missing:
        raise ValueError(
            f"prompt {missing[0]!r} of the rollouts is not among the problems: pass those they were drawn for"
        )
    grade = Grader.make(reward, problems)
    prompt_tokens, tokens = (rollouts.tokens(name) for name in ("prompt_tokens", "completion_tokens"))
    begins = [step_starts(policy, list(map(int, row)), steps) for row in tokens]
    first_of = {prompt: row for row, prompt in reversed(list(enumerate(rollouts.prompt_id)))}
    wanted = [(row, 0) for row in sorted(first_of.values())]
    wanted += [(row, start) for row, starts in enumerate(begins) for start in starts if start > 0]
    # Prefixes of similar length go together, so that little is padding.
    jobs = sorted(
        (job for job in wanted for _ in range(k)), key=lambda job: len(prompt_tokens[job[0]]) + job[1], reverse=True
    )
    rewards: dict[tuple[int, int], list[float]] = {job: [] for job in wanted}
    batches = [jobs[start : start + batch_size] for start in range(0, len(jobs), batch_size)]
    with progress_bar("values of prefixes", len(jobs), shown=progress and report is None) as bar:
        counter = bar if report is None else report
        for number, batch in enumerate(batches):
            seed = int(np.random.SeedSequence([rng, number]).generate_state(1)[0])
            left = [settings.max_new_tokens - start for _, start in batch]
            prefixes = [[*map(int, prompt_tokens[row]), *map(int, tokens[row][:start])] for row, start in batch]
            with suitable_threads(policy):
                drawn = generate(policy, prefixes, settings.capped(max(left)), seed, counter.tokens)
            for (row, start), most, completion in zip(batch, left, drawn, strict=True):
                whole = [*map(int, tokens[row][:start]), *completion.tokens[:most]]
                text = policy.tokenizer.decode(whole, skip_special_tokens=True)
                rewards[row, start].append(grade(text, known[rollouts.prompt_id[row]]))
            bar.advance(len(batch))
    values = [np.full(len(row), np.nan) for row in tokens]
    for row, starts in enumerate(begins):
        values[row][0] = np.mean(rewards[first_of[rollouts.prompt_id[row]], 0])
        for start in starts:
            if start > 0:
                values[row][start] = np.mean(rewards[row, start])
    return values


def step_starts(policy: Policy, tokens: list[int], steps: Steps = r"\n+") -> list[int]:
    """Return the positions of the tokens at which steps begin, including the first token."""
    texts = [policy.tokenizer.decode(tokens[: end + 1]) for end in range(len(tokens))]
    if callable(steps):
        pieces = [text[len(before) :] for before, text in zip(["", *texts], texts, strict=False)]
        starts = sorted({0, *map(int, steps(pieces))})
    else:
        ends = np.array([len(text) for text in texts])
        after = [int(np.searchsorted(ends, end)) + 1 for _, end in matches(steps, texts[-1:], "steps")[0]]
        starts = sorted({0, *(start for start in after if start < len(tokens))})
    if starts[0] < 0 or starts[-1] >= len(tokens):
        raise ValueError(f"steps gave positions {starts[0]} to {starts[-1]} in a completion of {len(tokens)} tokens")
    return starts
