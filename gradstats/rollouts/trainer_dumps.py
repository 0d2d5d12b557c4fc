"""The common part of the readers of TRL's completions and verl's rollout dumps.

Both dumps hold text without special tokens and no token ids. What is lost is listed in a warning and in the metadata.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradstats.rollouts.retokenise import restore_tokens
from gradstats.rollouts.table import Rollouts, retokenised_sentence
from gradstats.rollouts.tokenizer import ChatTokenizer
from gradstats.system.chat_template import refuse_endless_template


@dataclass(frozen=True)
class TrainerDump:
    """A dump as parallel lists, whatever its format.

    Attributes:
        kind: name of the format.
        source: name of the file or folder.
        steps: training step of each completion.
        prompts: text that identifies each prompt.
        shown: text of each prompt for people.
        encoded: token ids of each prompt.
        completions: text of each completion.
        rewards: reward of each completion, NaN where it has none.
        lost: what the format does not record.
    """

    kind: str
    source: str
    steps: np.ndarray
    prompts: list[str]
    shown: list[str]
    encoded: list[list[int]]
    completions: list[str]
    rewards: np.ndarray
    lost: list[str]

    def rollouts(self, tokenizer: ChatTokenizer, step: int | None, max_completion_length: int | None) -> Rollouts:
        """Return the table of completions, with a warning that lists what is lost."""
        steps = np.unique(self.steps)
        if step is not None and step not in steps:
            raise ValueError(f"step is {step}, but {self.source} holds the steps {', '.join(map(str, steps[:20]))}")
        end = None if max_completion_length is None else getattr(tokenizer, "eos_token_id", None)
        rows: dict[str, list[Any]] = {
            name: [] for name in ("prompt", "tokens", "reward", "id", "source", "reason", "text", "asked")
        }
        empty = ungraded = 0
        for row in range(len(self.prompts)) if step is None else np.flatnonzero(self.steps == step):
            restored = restore_tokens(tokenizer, self.completions[row])
            cut = max_completion_length is not None and len(restored.tokens) >= max_completion_length
            tokens = restored.tokens + ([] if end is None or cut else [end])
            ungraded += not np.isfinite(self.rewards[row])
            empty += not tokens
            if not tokens or not np.isfinite(self.rewards[row]):
                continue
            digest = hashlib.sha256(self.prompts[row].encode()).hexdigest()[:12]
            rows["prompt"].append(self.encoded[row])
            rows["tokens"].append(tokens)
            rows["reward"].append(float(self.rewards[row]))
            rows["id"].append(f"{self.steps[row]}-{digest}")
            rows["source"].append(restored.source)
            rows["reason"].append("length" if cut else "stop")
            rows["text"].append(self.completions[row])
            rows["asked"].append(self.shown[row])
        lost = [*self.lost, *([] if max_completion_length is not None else ["how each completion ended"])]
        if dropped := [f"{n} {why}" for n, why in ((empty, "empty completions"), (ungraded, "without a reward")) if n]:
            lost.append(f"rows left out ({', '.join(dropped)})")
        if not rows["id"]:
            raise ValueError(f"{self.source} holds no completion with text and a reward: there is nothing to read")
        several = step is None and len(steps) > 1
        rollouts = Rollouts.from_sequences(
            rows["prompt"],
            rows["tokens"],
            rows["reward"],
            rows["id"],
            finish_reason=None if max_completion_length is None else rows["reason"],
            prompt_text=rows["asked"],
            completion_text=rows["text"],
            token_source=rows["source"],
            metadata={"source": {"format": self.kind, "name": self.source, "lost": lost, "n_steps": len(steps)}},
        )
        notes = [f"{self.source} does not record {', '.join(lost)}", retokenised_sentence(rollouts)]
        if several:
            notes.append(f"it holds {len(steps)} steps, of as many policies: choose one with step, or measure drift")
        warnings.warn("; ".join(note for note in notes if note), UserWarning, stacklevel=3)
        return rollouts


def encode_chat(
    tokenizer: ChatTokenizer, messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
) -> list[int]:
    """Return the token ids of messages in the tokenizer's chat template, up to where the policy begins to write.

    Raises:
        ValueError: when the tokenizer has no chat template, or the template does not end.
    """
    if not tokenizer.chat_template:
        raise ValueError("the prompts are chat messages, and the tokenizer has no chat template: give the policy's own")
    refuse_endless_template(tokenizer, messages, options)
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options)
    )


def dump_files(path: Path, pattern: str, what: str) -> list[Path]:
    """Return the files of a dump: the file itself, or those of a folder in the order of their numbers.

    Args:
        path: a file or a folder.
        pattern: of the files' names in a folder.
        what: names the files in messages.

    Raises:
        FileNotFoundError: when there are none.
    """
    if path.is_dir():
        # verl numbers its files without leading zeros.
        files = sorted(path.glob(pattern), key=lambda file: (len(file.name), file.name))
        if not files:
            raise FileNotFoundError(f"the folder {path} holds none of {what}")
        return files
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give {what} or their folder")
    return [path]


def require_columns(frame: pd.DataFrame, columns: Sequence[str], file: Path) -> None:
    """Refuse a file that lacks a column.

    Raises:
        ValueError: with the columns it has.
    """
    for column in columns:
        if column not in frame:
            raise ValueError(
                f"{file} has no column {column!r} (it has {', '.join(map(str, frame))}): was it written by TRL?"
            )
