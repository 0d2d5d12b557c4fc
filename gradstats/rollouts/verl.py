"""The JSONL files of rollouts that verl's trainer writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradstats.rollouts.table import Rollouts
from gradstats.rollouts.tokenizer import ChatTokenizer
from gradstats.rollouts.trainer_dumps import TrainerDump, dump_files, encode_chat
from gradstats.system.json_lines import read_json_lines


def read_verl_rollouts(
    path: str | os.PathLike[str],
    tokenizer: ChatTokenizer,
    *,
    reward: str = "score",
    step: int | None = None,
    max_completion_length: int | None = None,
    system_prompt: str | None = None,
    template_options: Mapping[str, object] | None = None,
) -> Rollouts:
    """Read the JSONL files that verl writes to ``trainer.rollout_data_dir``.

    verl writes prompts without the special tokens that separate the turns. They are restored where the text is a single
    user message in the tokenizer's chat template; a warning states how many prompts are not.

    Args:
        path: a ``STEP.jsonl``, or the folder.
        tokenizer: the tokenizer of the policy that was trained, with its chat template.
        reward: the field of the reward.
        step: keep only this step; by default all steps are kept, each of which was sampled from a different policy.
        max_completion_length: the trainer's ``data.max_response_length``, see :func:`gradstats.read_trl_completions`.
        system_prompt: the system message that the prompts began with.
        template_options: further variables of the chat template.

    Returns:
        The rollouts; a group is the completions of one prompt in one step.

    Raises:
        FileNotFoundError: when there is no such file, or none in the folder.
        ValueError: for a line that cannot be read (it is named), a missing field, or a step that the files do not
            hold.
    """
    files = dump_files(Path(path), "*.jsonl", "verl's rollouts (STEP.jsonl)")
    rows = [row for file in files for row in _completions(file, ("input", "output", "step", reward))]
    encode = _VerlPrompts(tokenizer, system_prompt, dict(template_options or {}))
    texts = [str(row["input"]) for row in rows]
    encoded = {text: encode(text) for text in dict.fromkeys(texts)}
    unrestored = sum(not restored for _, restored in encoded.values())
    lost = ["token ids", "log-probabilities of the sampler", "special tokens"]
    if unrestored:
        lost.append(f"the chat template around {unrestored} of {len(encoded)} prompts")
    return TrainerDump(
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


@dataclass(frozen=True)
class _VerlPrompts:
    """Token ids of a prompt whose special tokens verl left out, and whether the template could be restored."""

    tokenizer: ChatTokenizer
    system_prompt: str | None
    options: dict[str, object]

    def __call__(self, text: str) -> tuple[list[int], bool]:
        if self.tokenizer.chat_template:
            marker = "xqzjprompt"  # plain letters, which every tokenizer decodes to themselves
            before, marked, after = self._stripped(self._encode(marker)).partition(marker)
            if marked and text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after):
                tokens = self._encode(text[len(before) : len(text) - len(after)])
                if self._stripped(tokens) == text:
                    return tokens, True
        return list(self.tokenizer(text)["input_ids"]), False

    def _encode(self, content: str) -> list[int]:
        system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        return encode_chat(self.tokenizer, [*system, {"role": "user", "content": content}], self.options)

    def _stripped(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def _completions(file: Path, needed: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for number, row in read_json_lines(file):
        if missing := [name for name in needed if name not in row]:
            raise ValueError(f"line {number} of {file} has no field {missing[0]!r} (it has {', '.join(row)})")
        rows.append(row)
    if not rows:
        raise ValueError(f"{file} is empty: the trainer has written nothing to it yet")
    return rows


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")
