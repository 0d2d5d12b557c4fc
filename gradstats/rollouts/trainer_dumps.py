"""The readers of trainers' dumps (TRL, verl): texts, scores and tokens → rollouts.

Neither dump holds log-probabilities. Where you saved them, give ``Rollouts.from_sequences`` the columns
``sampler_logprobs`` (verl's ``rollout_log_probs``) and ``proximal_logprobs`` (its ``old_log_probs``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gradstats.rollouts.table import Rollouts, retokenised_sentence
from gradstats.system.chat_template import refuse_endless_template
from gradstats.system.files import read_json_lines
from gradstats.system.late import np, pa, pd, pq


@runtime_checkable
class Tokenizer(Protocol):
    """From text to token ids and back."""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Mapping[str, Sequence[int]]:
        """Return a mapping with the token ids under ``input_ids``."""
        ...

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of some tokens."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that may have a chat template."""

    chat_template: object

    def apply_chat_template(self, conversation: Sequence[Mapping[str, object]], **options: object) -> Sequence[int]:
        """Return the token ids of messages in the chat template."""
        ...


@dataclass(frozen=True)
class RestoredTokens:
    """Token ids found for a text."""

    tokens: list[int]  # the ids; empty for an empty text
    # "pieces" where the text of each token was given and decides its id; "text" where the whole text was re-tokenised,
    # decodes to the text, and has the stated number of tokens; else "mismatch"
    source: str


def restore_tokens(
    tokenizer: Tokenizer, text: str, *, pieces: Sequence[str] | None = None, counts: Sequence[int] | None = None
) -> RestoredTokens:
    """Return the token ids of a completion of which only the text is known.

    A text has many tokenisations and a sampler may have drawn any of them, while a tokenizer gives one, which is
    usually the one that was drawn. Where it decodes to another text, or has another number of tokens than were drawn,
    it certainly is not, and the source says so.
    """
    tokens = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    if pieces is not None and (drawn := _from_pieces(tokenizer, pieces, tokens)) is not None:
        return RestoredTokens(drawn, "pieces")
    same = tokenizer.decode(tokens) == text and (counts is None or len(tokens) in counts)
    return RestoredTokens(tokens, "text" if same else "mismatch")


def is_text_of(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> bool:
    """Whether tokens decode to a text, with or without special tokens and a last token that ended the completion.

    White space and letters that are cut off inside are not compared: servers decode token by token. An empty text is
    that of any tokens: some servers do not decode.
    """
    given = _compared(text)
    possible = [(list(some), skip) for some in (tokens, tokens[:-1]) for skip in (True, False)]
    candidates = (tokenizer.decode(some, skip_special_tokens=skip) for some, skip in possible)
    return not given or any(_compared(candidate) == given for candidate in candidates)


def _compared(text: str) -> str:
    return "".join(text.split()).replace("\ufffd", "")


def _from_pieces(tokenizer: Tokenizer, pieces: Sequence[str], tokens: list[int]) -> list[int] | None:
    """Return the ids whose texts are ``pieces``: those of the tokenizer where they agree, else the only candidates."""
    by_text = _ids_by_text(tokenizer)
    candidates = [by_text.get(piece, ()) for piece in pieces]
    if len(tokens) == len(pieces) and all(token in known for token, known in zip(tokens, candidates, strict=True)):
        return tokens
    # Several ids share a text where each is a part of one letter: then pieces do not decide.
    return [known[0] for known in candidates] if all(len(known) == 1 for known in candidates) else None


@functools.lru_cache(maxsize=4)
def _ids_by_text(tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
    ids: defaultdict[str, list[int]] = defaultdict(list)
    for token in range(len(tokenizer)):
        ids[tokenizer.decode([token])].append(token)
    return {text: tuple(tokens) for text, tokens in ids.items()}


@dataclass(frozen=True)
class TrainerDump:
    """A dump as parallel lists, whatever its format."""

    kind: str
    source: str
    steps: np.ndarray
    prompts: list[str]
    shown: list[str]
    encoded: list[list[int]]
    completions: list[str]
    rewards: np.ndarray  # reward of each completion, NaN where it has none
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
    """Return the token ids of messages in the tokenizer's chat template, up to where the policy begins to write."""
    if not tokenizer.chat_template:
        raise ValueError("the prompts are chat messages, and the tokenizer has no chat template: give the policy's own")
    refuse_endless_template(tokenizer, messages, options)
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options)
    )


def dump_files(path: Path, pattern: str, what: str) -> list[Path]:
    """Return the files of a dump: the file itself, or those of a folder in the order of their numbers."""
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
    """Refuse a file that lacks a column."""
    for column in columns:
        if column not in frame:
            raise ValueError(
                f"{file} has no column {column!r} (it has {', '.join(map(str, frame))}): was it written by TRL?"
            )


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
        ...     rollouts = gs.rollouts.read_trl_completions(path, gs.load_policy("embedded").tokenizer)
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
        max_completion_length: the trainer's ``data.max_response_length``, see
            :func:`gradstats.rollouts.read_trl_completions`.
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


#: Format → reader, as ``gradstats measure --rollouts-format`` names them.
READERS: dict[str, Callable[..., Rollouts]] = {"trl": read_trl_completions, "verl": read_verl_rollouts}
