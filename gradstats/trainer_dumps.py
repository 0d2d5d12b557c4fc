"""What trainers write of their rollouts, read into a Rollouts table: TRL's completions and verl's rollout dumps.

Both hold text without special tokens and no token ids. What is lost is said in a warning and kept in the metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gradstats.retokenise import restore_tokens
from gradstats.rollouts import Rollouts, retokenised_sentence

_TRL_OTHER = ("step", "prompt", "completion", "advantage")


def read_trl_completions(
    path: str | os.PathLike[str],
    tokenizer: Any,
    *,
    reward: str | Mapping[str, float] | None = None,
    step: int | None = None,
    max_completion_length: int | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Read the Parquet files that TRL's GRPO and RLOO trainers write with ``log_completions=True``.

    Args:
        path: a ``completions_NNNNN.parquet``, or the ``completions`` folder of the trainer's output.
        tokenizer: that of the policy that was trained, with its chat template.
        reward: the column of the reward, or columns with the trainer's ``reward_weights``; the only numeric column by
            default (a reward that TRL has as missing counts nothing in a sum).
        step: keep this step alone; by default all, each of which another policy has sampled.
        max_completion_length: the trainer's; shorter completions are then known to have ended by themselves, and get
            the end token that the text has not. Without it no end token is added and the finish is unknown.
        template_options: the trainer's ``chat_template_kwargs``.

    Returns:
        The rollouts; a group is the completions of one prompt in one step.

    Raises:
        FileNotFoundError: when nothing is there.
        ValueError: for a file that cannot be read, a missing column, a reward that is not named and not unique, or a
            step that is not in it.
    """
    files = _files(Path(path), "*.parquet", "TRL's completions (completions_*.parquet)")
    frames = []
    for file in files:
        try:
            frame = pq.read_table(file).to_pandas()
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} cannot be read as Parquet ({error}): copy it again from the trainer") from error
        _require(frame, ("step", "prompt", "completion"), file)
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    rewards = _trl_rewards(frame, reward, files[0])
    prompts = [_messages(prompt) for prompt in frame["prompt"]]
    encode = _TrlPrompts(tokenizer, dict(template_options or {}))
    return _Dump(
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


def read_verl_rollouts(
    path: str | os.PathLike[str],
    tokenizer: Any,
    *,
    reward: str = "score",
    step: int | None = None,
    max_completion_length: int | None = None,
    system_prompt: str | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Read the JSONL files that verl writes to ``trainer.rollout_data_dir``.

    verl writes prompts without the special tokens that set off the turns. They are restored where the text is that of a
    single user message in the tokenizer's chat template; how many are not is said in a warning.

    Args:
        path: a ``STEP.jsonl``, or the folder.
        tokenizer: that of the policy that was trained, with its chat template.
        reward: the field of the reward.
        step: keep this step alone; by default all, each of which another policy has sampled.
        max_completion_length: the trainer's ``data.max_response_length``, see :func:`read_trl_completions`.
        system_prompt: the system message that the prompts began with.
        template_options: further variables of the chat template.

    Raises:
        FileNotFoundError: when nothing is there.
        ValueError: for a line that cannot be read (named), a missing field, or a step that is not in it.
    """
    files = _files(Path(path), "*.jsonl", "verl's rollouts (STEP.jsonl)")
    rows = [row for file in files for row in _json_lines(file, ("input", "output", "step", reward))]
    encode = _VerlPrompts(tokenizer, system_prompt, dict(template_options or {}))
    texts = [str(row["input"]) for row in rows]
    encoded = {text: encode(text) for text in dict.fromkeys(texts)}
    unrestored = sum(not restored for _, restored in encoded.values())
    lost = ["token ids", "log-probabilities of the sampler", "special tokens"]
    if unrestored:
        lost.append(f"the chat template around {unrestored} of {len(encoded)} prompts")
    return _Dump(
        kind="verl",
        source=Path(path).name,
        steps=np.array([int(row["step"]) for row in rows]),
        prompts=texts,
        shown=texts,
        encoded=[encoded[text][0] for text in texts],
        completions=[str(row["output"]) for row in rows],
        rewards=np.array([_number(row[reward]) for row in rows]),
        lost=lost,
    ).rollouts(tokenizer, step, max_completion_length)


#: Format → reader, as ``gradstats measure --rollouts-format`` names them.
READERS: dict[str, Callable[..., Rollouts]] = {"trl": read_trl_completions, "verl": read_verl_rollouts}


@dataclass(frozen=True)
class _Dump:
    """A dump as parallel lists, whatever its format."""

    kind: str
    source: str
    steps: np.ndarray
    prompts: list[str]
    shown: list[str]
    encoded: list[list[int]]
    completions: list[str]
    rewards: np.ndarray
    lost: list[str]

    def rollouts(self, tokenizer: Any, step: int | None, max_completion_length: int | None) -> Rollouts:
        """The table, after saying what is lost."""
        found = np.unique(self.steps)
        if step is not None and step not in found:
            raise ValueError(f"step is {step}, but {self.source} holds the steps {', '.join(map(str, found[:20]))}")
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
        several = step is None and len(found) > 1
        rollouts = Rollouts.from_sequences(
            rows["prompt"],
            rows["tokens"],
            rows["reward"],
            rows["id"],
            finish_reason=None if max_completion_length is None else rows["reason"],
            prompt_text=rows["asked"],
            completion_text=rows["text"],
            token_source=rows["source"],
            metadata={"source": {"format": self.kind, "name": self.source, "lost": lost, "n_steps": len(found)}},
        )
        said = [f"{self.source} does not tell {', '.join(lost)}", retokenised_sentence(rollouts)]
        if several:
            said.append(f"it holds {len(found)} steps, of as many policies: say which with step, or measure drift")
        warnings.warn("; ".join(sentence for sentence in said if sentence), UserWarning, stacklevel=3)
        return rollouts


@dataclass(frozen=True)
class _TrlPrompts:
    """Token ids of a prompt as TRL encodes it: plain text as it is, messages in the chat template."""

    tokenizer: Any
    options: dict[str, Any]

    def __call__(self, prompt: str | list[dict[str, Any]]) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        return _in_template(self.tokenizer, prompt, self.options)


@dataclass(frozen=True)
class _VerlPrompts:
    """Token ids of a prompt whose special tokens verl left out, and whether the template could be put back."""

    tokenizer: Any
    system_prompt: str | None
    options: dict[str, Any]

    def __call__(self, text: str) -> tuple[list[int], bool]:
        if self.tokenizer.chat_template:
            mark = "xqzjprompt"  # plain letters, which every tokenizer gives back
            before, found, after = self._stripped(self._encode(mark)).partition(mark)
            if found and text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after):
                tokens = self._encode(text[len(before) : len(text) - len(after)])
                if self._stripped(tokens) == text:
                    return tokens, True
        return list(self.tokenizer(text)["input_ids"]), False

    def _encode(self, content: str) -> list[int]:
        system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        return _in_template(self.tokenizer, [*system, {"role": "user", "content": content}], self.options)

    def _stripped(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def _in_template(tokenizer: Any, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> list[int]:
    if not tokenizer.chat_template:
        raise ValueError("the prompts are chat messages, and the tokenizer has no chat template: give the policy's own")
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options)
    )


def _files(path: Path, pattern: str, what: str) -> list[Path]:
    if path.is_dir():
        # verl numbers its files without leading zeros.
        found = sorted(path.glob(pattern), key=lambda file: (len(file.name), file.name))
        if not found:
            raise FileNotFoundError(f"the folder {path} holds none of {what}")
        return found
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give {what} or their folder")
    return [path]


def _json_lines(file: Path, needed: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    with file.open(encoding="utf-8", errors="strict") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_json_line(line, number, file, needed))
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 after line {len(rows)} ({error}): copy it again") from error
    if not rows:
        raise ValueError(f"{file} is empty: the trainer has written nothing to it yet")
    return rows


def _json_line(line: str, number: int, file: Path, needed: Sequence[str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        cut = ": the file is cut short, drop the line" if not line.endswith("\n") else ""
        raise ValueError(f"line {number} of {file} is not JSON ({error}){cut}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} of {file} is not a JSON object: {line[:60]!r}")
    if missing := [name for name in needed if name not in row]:
        raise ValueError(f"line {number} of {file} has no field {missing[0]!r} (it has {', '.join(row)})")
    return row


def _require(frame: pd.DataFrame, columns: Sequence[str], file: Path) -> None:
    for column in columns:
        if column not in frame:
            raise ValueError(f"{file} has no column {column!r} (it has {', '.join(map(str, frame))}): is it TRL's?")


def _trl_rewards(frame: pd.DataFrame, reward: str | Mapping[str, float] | None, file: Path) -> np.ndarray:
    if reward is None:
        numeric = [str(name) for name in frame.select_dtypes("number") if name not in _TRL_OTHER]
        if len(numeric) != 1:
            has = ", ".join(numeric) or "none"
            raise ValueError(f"{file} has not one numeric column that may be the reward ({has}): name it with reward")
        reward = numeric[0]
    weights = {reward: 1.0} if isinstance(reward, str) else dict(reward)
    _require(frame, list(weights), file)
    values = frame[list(weights)].to_numpy(dtype=np.float64)
    total = np.nansum(values * np.array(list(weights.values())), axis=1)
    return np.where(np.isnan(values).all(axis=1), np.nan, total)


def _messages(value: Any) -> str | list[dict[str, Any]]:
    """A prompt or completion as TRL has it: text, or messages (whose absent keys Parquet fills with None)."""
    if isinstance(value, str):
        return value
    return [{key: part for key, part in dict(message).items() if part is not None} for message in value]


def _completion_text(value: Any) -> str:
    messages = _messages(value)
    return messages if isinstance(messages, str) else "".join(str(message.get("content", "")) for message in messages)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")
