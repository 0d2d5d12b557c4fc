"""The Parquet files of completions that TRL's trainers write."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gradstats.rollouts.table import Rollouts
from gradstats.rollouts.tokenizer import ChatTokenizer
from gradstats.rollouts.trainer_dumps import TrainerDump, dump_files, encode_chat, require_columns

#: Columns that are not rewards.
_NOT_REWARDS = ("step", "prompt", "completion", "advantage")


def read_trl_completions(
    path: str | os.PathLike[str],
    tokenizer: ChatTokenizer,
    *,
    reward: str | Mapping[str, float] | None = None,
    step: int | None = None,
    max_completion_length: int | None = None,
    template_options: Mapping[str, object] | None = None,
) -> Rollouts:
    """Read the Parquet files that TRL's GRPO and RLOO trainers write with ``log_completions=True``.

    Args:
        path: a ``completions_NNNNN.parquet``, or the ``completions`` folder of the trainer's output.
        tokenizer: the tokenizer of the policy that was trained, with its chat template.
        reward: the column of the reward, or columns with the trainer's ``reward_weights``; the only numeric column by
            default (a reward that is missing in TRL's file adds nothing to the sum).
        step: keep only this step; by default all steps are kept, each of which was sampled from a different policy.
        max_completion_length: the trainer's; shorter completions are then known to have ended by themselves, and get
            the end token that their text lacks. Without it no end token is added, and how they ended is unknown.
        template_options: the trainer's ``chat_template_kwargs``.

    Returns:
        The rollouts; a group is the completions of one prompt in one step.

    Raises:
        FileNotFoundError: when there is no such file, or none in the folder.
        ValueError: for a file that cannot be read, a missing column, a reward that is neither named nor unique, or a
            step that the files do not hold.

    Example:
        >>> import tempfile, warnings
        >>> import gradstats as gs
        >>> path = Path(tempfile.mkdtemp()) / "completions_00001.parquet"
        >>> texts = {"prompt": ["1 + 1 ="] * 2, "completion": [" 2", " 3"]}
        >>> pd.DataFrame(texts | {"step": 1, "accuracy": [1.0, 0.0], "advantage": [1.0, -1.0]}).to_parquet(path)
        >>> with warnings.catch_warnings(action="ignore"):  # what the file does not record
        ...     rollouts = gs.read_trl_completions(path, gs.load_policy("embedded").tokenizer)
        >>> rollouts.rewards.tolist(), len(set(rollouts.prompt_id))
        ([1.0, 0.0], 1)
    """
    files = dump_files(Path(path), "*.parquet", "TRL's completions (completions_*.parquet)")
    frames = []
    for file in files:
        try:
            frame = pq.read_table(file).to_pandas()
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} cannot be read as Parquet ({error}): copy it again from the trainer") from error
        require_columns(frame, ("step", "prompt", "completion"), file)
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    rewards = _trl_rewards(frame, reward, files[0])
    prompts = [_messages(prompt) for prompt in frame["prompt"]]
    encode = _TrlPrompts(tokenizer, dict(template_options or {}))
    return TrainerDump(
        kind="trl",
        source=Path(path).name,
        steps=frame["step"].to_numpy(dtype=np.int64),
        prompts=[prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True) for prompt in prompts],
        shown=[prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) for prompt in prompts],
        encoded=[encode(prompt) for prompt in prompts],
        completions=[_completion_text(completion) for completion in frame["completion"]],
        rewards=rewards,
        lost=["token ids", "log-probabilities of the sampler", "special tokens"],
    ).rollouts(tokenizer, step, max_completion_length)


@dataclass(frozen=True)
class _TrlPrompts:
    """Token ids of a prompt as TRL encodes it: plain text as it is, messages in the chat template."""

    tokenizer: ChatTokenizer
    options: dict[str, object]

    def __call__(self, prompt: str | list[dict[str, object]]) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        return encode_chat(self.tokenizer, prompt, self.options)


def _trl_rewards(frame: pd.DataFrame, reward: str | Mapping[str, float] | None, file: Path) -> np.ndarray:
    if reward is None:
        numeric = [str(name) for name in frame.select_dtypes("number") if name not in _NOT_REWARDS]
        if len(numeric) != 1:
            has = ", ".join(numeric) or "none"
            raise ValueError(
                f"{file} does not have exactly one numeric column that may be the reward ({has}): name it with reward"
            )
        reward = numeric[0]
    weights = {reward: 1.0} if isinstance(reward, str) else dict(reward)
    require_columns(frame, list(weights), file)
    values = frame[list(weights)].to_numpy(dtype=np.float64)
    total = np.nansum(values * np.array(list(weights.values())), axis=1)
    return np.where(np.isnan(values).all(axis=1), np.nan, total)


def _messages(value: str | Iterable[Mapping[str, object]]) -> str | list[dict[str, object]]:
    """Return a prompt or completion as TRL has it: text, or messages (whose absent keys Parquet fills with None)."""
    if isinstance(value, str):
        return value
    return [{key: entry for key, entry in message.items() if entry is not None} for message in value]


def _completion_text(value: str | Iterable[Mapping[str, object]]) -> str:
    messages = _messages(value)
    return messages if isinstance(messages, str) else "".join(str(message.get("content", "")) for message in messages)
