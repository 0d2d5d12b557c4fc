"""A few completions of a few prompts of a run, to be read on its page."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gradstats.report.shown_text import shortened, visible
from gradstats.rollouts.table import read_rollout_shards

#: What a page holds at most: prompts with completions, completions of each, characters of each text.
MOST_PROMPTS, MOST_COMPLETIONS, MOST_CHARACTERS = 40, 4, 1500
_SHOWN = ("prompt_id", "sample_id", "reward", "length", "truncated", "prompt_text", "completion_text")


@dataclass(frozen=True)
class ShownCompletion:
    """A completion on the page.

    Attributes:
        sample_id: its number among those of the prompt.
        reward: its reward.
        length: tokens that count.
        truncated: whether it was cut off at the cap.
        text: what is shown of it.
    """

    sample_id: int
    reward: float
    length: int
    truncated: bool
    text: str


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt on the page with a few of its completions.

    Attributes:
        text: what is shown of it; empty where it was not recorded.
        completions: the first with the highest reward, the first with the lowest, then in their order.
    """

    text: str
    completions: list[ShownCompletion]


def spread_over(prompts: list[str], most: int = MOST_PROMPTS) -> list[str]:
    """Return at most so many prompts of an ordered list, evenly spaced from the first to the last.

    >>> spread_over(["a", "b", "c", "d", "e"], 3)
    ['a', 'c', 'e']
    """
    if len(prompts) <= most:
        return prompts
    return [prompts[at] for at in np.linspace(0, len(prompts) - 1, most).round().astype(int)]


def read_completions(run: Path, prompts: Collection[str]) -> dict[str, ShownPrompt]:
    """Read a few completions of some prompts from a run directory, shard by shard.

    Args:
        run: the run directory.
        prompts: which prompts; those that have no recorded text are left out.

    Raises:
        FileNotFoundError: when the folder holds no rollouts.
        ValueError: when they are incomplete, damaged, or being scored again.
    """
    if not (run / "rollouts").is_dir():
        raise FileNotFoundError(f"the folder {run.name} holds no rollouts")
    kept = []
    with warnings.catch_warnings():
        # Whoever measures or analyses files without checksums is told; here they are only shown.
        warnings.filterwarnings("ignore", message="these files were written by an earlier version")
        for shard in read_rollout_shards(run / "rollouts"):
            frame = shard.frame.assign(length=shard.lengths, truncated=shard.truncated)
            kept.append(frame.loc[frame["prompt_id"].isin(list(prompts)), [name for name in _SHOWN if name in frame]])
    rows = pd.concat(kept, ignore_index=True)
    if "completion_text" not in rows:
        return {}
    # A run that grew has completions of one prompt in several shards.
    return {str(prompt): _shown(of_prompt) for prompt, of_prompt in rows.groupby("prompt_id", sort=False)}


def _shown(rows: pd.DataFrame) -> ShownPrompt:
    rows = rows.sort_values("sample_id", kind="stable", ignore_index=True)
    rewards = rows["reward"].to_numpy(dtype=float)
    first = dict.fromkeys([int(rewards.argmax()), int(rewards.argmin()), *range(len(rows))])
    picked = rows.iloc[sorted(list(first)[:MOST_COMPLETIONS])]
    texts = [_shown_text(text) for text in picked["completion_text"]]
    numbers = zip(picked["sample_id"], picked["reward"], picked["length"], picked["truncated"], texts, strict=True)
    return ShownPrompt(
        text=_shown_text(rows["prompt_text"].iloc[0]) if "prompt_text" in rows else "",
        completions=[
            ShownCompletion(int(sample), float(reward), int(length), bool(cut), text)
            for sample, reward, length, cut, text in numbers
        ],
    )


def _shown_text(text: object) -> str:
    return visible(shortened(text, MOST_CHARACTERS)[0]) if isinstance(text, str) else ""
