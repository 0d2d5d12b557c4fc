"""The readers of trainers' dumps (TRL, verl): texts, scores and tokens → rollouts.

Neither dump holds log-probabilities. Where you saved them, give ``Rollouts.from_sequences`` the columns
``sampler_logprobs`` (verl's ``rollout_log_probs``) and ``proximal_logprobs`` (its ``old_log_probs``).
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradstats.rollouts.dump_groups import GROUP_COLUMNS, number_groups
from gradstats.rollouts.restored import ChatTokenizer
from gradstats.rollouts.table import Rollouts, retokenised_sentence
from gradstats.rollouts.turns import Completion, CompletionReader, Message, OtherTurns, plain_messages
from gradstats.system.chat_template import refuse_endless_template, shown_content
from gradstats.system.files import read_json_lines
from gradstats.system.lazy_imports import pa, pd


@dataclass(frozen=True)
class _TrainerDump:
    """A dump as parallel lists, whatever its format."""

    kind: str
    source: str
    steps: np.ndarray
    prompts: list[str | list[Message]]
    shown: list[str]
    encoded: list[list[int]]
    completions: list[str | list[Message]]
    rewards: np.ndarray  # reward of each completion, NaN where it has none
    lost: list[str]
    done_to_prompts: str
    chats: list[bool]  # whether each prompt ends where a chat template lets the policy begin
    names: Mapping[str, Sequence[object]]  # columns that may name groups
    advantages: np.ndarray | None = None

    def rollouts(self, reader: CompletionReader, step: int | None, group_size: int | None) -> Rollouts:
        """Return the table of completions, with a warning that lists what is lost and what was assumed."""
        steps = np.unique(self.steps)
        if step is not None and step not in steps:
            raise ValueError(f"step is {step}, but {self.source} holds the steps {', '.join(map(str, steps[:20]))}")
        chosen = np.flatnonzero(self.steps == (self.steps if step is None else step)).tolist()
        keys = [key if isinstance(key, str) else json.dumps(key, sort_keys=True) for key in self.prompts]
        numbers, remarks = number_groups(
            self.steps[chosen],
            [keys[row] for row in chosen],
            self.rewards[chosen],
            names={name: [labels[row] for row in chosen] for name, labels in self.names.items()},
            advantages=None if self.advantages is None else self.advantages[chosen],
            group_size=group_size,
        )
        rows: dict[str, list[Any]] = {
            name: [] for name in ("prompt", "tokens", "mask", "reward", "id", "source", "reason", "text", "asked")
        }
        counts: Counter[str] = Counter()
        ends: Counter[int] = Counter()
        for row, number in zip(chosen, numbers, strict=True):
            try:
                completion = reader(self.prompts[row], self.completions[row])
            except ValueError as error:
                raise ValueError(f"completion {row} of {self.source} cannot be read: {error}") from error
            reason = self._reason(reader, completion, counts)
            end = completion.end if completion.end is not None else reader.end_of(chat=self.chats[row])
            known = completion.ended or (reader.cap is not None and reason == "stop")
            added = [end] if known and end is not None else []
            ends.update(added)
            tokens = [*completion.tokens, *added]
            counts["without a reward"] += not np.isfinite(self.rewards[row])
            counts["empty completions"] += not tokens
            if not tokens or not np.isfinite(self.rewards[row]):
                continue
            if not any(completion.mask) and not added:
                counts["empty completions"] += 1
                continue
            digest = hashlib.sha256(keys[row].encode()).hexdigest()[:12]
            rows["prompt"].append(self.encoded[row])
            rows["tokens"].append(tokens)
            rows["mask"].append([*completion.mask, *[True] * len(added)])
            rows["reward"].append(float(self.rewards[row]))
            rows["id"].append(f"{self.steps[row]}-{digest}" + (f"-{number + 1}" if number else ""))
            rows["source"].append(completion.source)
            rows["reason"].append(reason)
            rows["text"].append(completion.text)
            rows["asked"].append(self.shown[row])
            counts["rendered"] += completion.rendered
            counts["spelled"] += completion.spelled
        lost = [*self.lost, *([] if reader.cap is not None else ["how each completion ended"])]
        left_out = [f"{counts[why]} {why}" for why in ("empty completions", "without a reward") if counts[why]]
        if left_out:
            lost.append(f"rows left out ({', '.join(left_out)})")
        if not rows["id"]:
            raise ValueError(f"{self.source} holds no completion with text and a reward: there is nothing to read")
        several = step is None and len(steps) > 1
        masked = any(not all(mask) for mask in rows["mask"])
        rollouts = Rollouts.from_sequences(
            rows["prompt"],
            rows["tokens"],
            rows["reward"],
            rows["id"],
            completion_mask=rows["mask"] if masked else None,
            finish_reason=None if reader.cap is None else rows["reason"],
            prompt_text=rows["asked"],
            completion_text=rows["text"],
            token_source=rows["source"],
            metadata={
                "source": {
                    "format": self.kind,
                    "name": self.source,
                    "lost": lost,
                    "prompts": self.done_to_prompts,
                    "n_steps": len(steps),
                }
            },
        )
        notes = [f"{self.source} does not record {', '.join(lost)}", f"prompts: {self.done_to_prompts}"]
        notes += [*_remarks(reader, counts, ends), *remarks, retokenised_sentence(rollouts)]
        if masked:
            share = 1 - sum(map(sum, rows["mask"])) / sum(map(len, rows["mask"]))
            notes.append(f"{share:.0%} of the tokens of completions are of tools and other speakers, and masked")
        if several:
            notes.append(f"it holds {len(steps)} steps, of as many policies: choose one with step, or measure drift")
        warnings.warn("; ".join(note for note in notes if note), UserWarning, stacklevel=3)
        return rollouts

    def _reason(self, reader: CompletionReader, completion: Completion, counts: Counter[str]) -> str:
        """Return how a completion ended, as far as the trainer's cap says it."""
        if completion.ended or completion.cut or reader.cap is None:
            return "length" if completion.cut and not completion.ended else "stop"
        if len(completion.tokens) >= reader.cap:
            return "length"
        if reader.may_be_cut(completion):
            counts["doubtful"] += 1
            return "length"
        return "stop"


def _remarks(reader: CompletionReader, counts: Counter[str], ends: Counter[int]) -> list[str]:
    """Return sentences on what was assumed about completions."""
    said = []
    usual = getattr(reader.tokenizer, "eos_token_id", None)
    if other := [token for token in ends if token != usual]:
        said.append(
            f"{ends[other[0]]} completions were given the end token {reader.tokenizer.decode([other[0]])}, which "
            f"closes a turn, not the tokenizer's own ({'none' if usual is None else reader.tokenizer.decode([usual])})"
        )
    if usual is not None and usual in ends and reader.ends[0] != usual:
        said.append(
            f"{ends[usual]} completions of plain text were given the end token {reader.tokenizer.decode([usual])}, not "
            f"{reader.tokenizer.decode(reader.ends[:1])}, which closes a turn of the chat template"
        )
    if counts["doubtful"]:
        said.append(
            f"{counts['doubtful']} completions are tokenised to a little less than max_completion_length={reader.cap} "
            "and may have been cut there: they are read as cut, without an end token"
        )
    if counts["rendered"]:
        said.append(
            f"tool calls or reasoning of {counts['rendered']} completions are written as the chat template writes them"
            ", which may differ from the policy's own spelling"
        )
    if counts["spelled"]:
        said.append(
            f"{counts['spelled']} completions hold the text of a special token, which is read as written letter by "
            "letter, since trainers decode without special tokens"
        )
    return said


def _encode_chat(
    tokenizer: ChatTokenizer, messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
) -> list[int]:
    """Return the token ids of messages in the tokenizer's chat template, up to where the policy begins to write."""
    if not tokenizer.chat_template:
        raise ValueError("the prompts are chat messages, and the tokenizer has no chat template: give the policy's own")
    messages = shown_content(tokenizer, messages)
    refuse_endless_template(tokenizer, messages, options)
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options)
    )


def _dump_files(path: Path, pattern: str, what: str) -> list[Path]:
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


def _require_columns(there: Sequence[str], columns: Sequence[str], file: Path) -> None:
    """Refuse a file that lacks a column."""
    for column in columns:
        if column not in there:
            raise ValueError(f"{file} has no column {column!r} (it has {', '.join(there)}): was it written by TRL?")


#: Columns of TRL that are not rewards.
_NOT_REWARDS = ("step", "prompt", "completion", "advantage", *GROUP_COLUMNS)


def read_trl_completions(
    path: str | os.PathLike[str],
    tokenizer: ChatTokenizer,
    *,
    reward: str | Mapping[str, float] | None = None,
    step: int | None = None,
    max_completion_length: int | None = None,
    template_options: Mapping[str, object] | None = None,
    group_size: int | None = None,
    eos_token_ids: int | Sequence[int] | None = None,
    other_turns: OtherTurns | None = None,
) -> Rollouts:
    """Read the Parquet files that TRL's GRPO and RLOO trainers write with ``log_completions=True``.

    Text is tokenised again. Tool calls, reasoning and the answers of tools are rendered by the chat template, as far as
    it shows them; ``completion_mask`` is False for what the policy did not write.

    Args:
        path: a ``completions_NNNNN.parquet``, or the ``completions`` folder of the trainer's output.
        tokenizer: the tokenizer of the policy that was trained, with its chat template.
        reward: the column of the reward, or columns with the trainer's ``reward_weights``; the only numeric column by
            default (a reward that is missing in TRL's file adds nothing to the sum).
        step: keep only this step; by default all steps are kept, each of which was sampled from a different policy.
        max_completion_length: the trainer's; shorter completions are then known to have ended by themselves, and get
            the end token that their text lacks. Without it no end token is added, and how they ended is unknown.
        template_options: the trainer's ``chat_template_kwargs``, and ``tools`` where it had some.
        group_size: the trainer's ``num_generations``, which tells apart groups of the same prompt where no column
            ``uid`` or ``request_id`` does; by default the advantages do.
        eos_token_ids: ``generation_config.eos_token_id`` of the model, which may be several; the end token is that of
            the chat template's turns where it is among them or they are not given, else ``tokenizer.eos_token``.
        other_turns: where the text of a completion itself holds turns of other speakers: "masked" where tools or an
            environment wrote them, "written" where the policy did. Such completions are refused by default.

    Returns:
        The rollouts; a group is the completions that were drawn together for one prompt in one step.

    Raises:
        FileNotFoundError: when there is no such file, or none in the folder.
        ValueError: for a file that cannot be read, a missing column, a reward that is not a number, neither named nor
            unique, a completion that is not text, whose policy's part cannot be known or that the chat template does
            not show whole, or a step that the files do not hold.

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
    import pyarrow.parquet as pq

    files = _dump_files(Path(path), "*.parquet", "TRL's completions (completions_*.parquet)")
    frames, texts = [], {"prompt": [], "completion": []}
    for file in files:
        try:
            table = pq.read_table(file)
            others = table.select([name for name in table.column_names if name not in texts]).to_pandas()
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} cannot be read as Parquet ({error}): copy it again from the trainer") from error
        _require_columns(table.column_names, ("step", *texts), file)
        for name, values in texts.items():
            values += table.column(name).to_pylist()
        frames.append(others)
    frame = pd.concat(frames, ignore_index=True)
    source = Path(path).name
    options = _template_options(template_options)
    reader = CompletionReader(tokenizer, options, eos_token_ids, max_completion_length, other_turns)
    prompts = [_said(value, "prompt", row, source) for row, value in enumerate(texts["prompt"])]
    completions = [_said(value, "completion", row, source) for row, value in enumerate(texts["completion"])]
    encoded = _encoded_trl(prompts, tokenizer, options)
    plain = sum(isinstance(prompt, str) for prompt in prompts)
    done = [f"{len(prompts) - plain} conversations put into the chat template"] * (plain < len(prompts))
    done += [f"{plain} plain texts left as they are, without the chat template, as TRL does"] * bool(plain)
    lost = ["token ids", "log-probabilities of the sampler", "special tokens"]
    calls = any(not isinstance(turns, str) and any("tool_calls" in turn for turn in turns) for turns in completions)
    if calls and "tools" not in options:
        lost.append("the tools that the prompts describe (give template_options={'tools': [...]})")
    return _TrainerDump(
        kind="trl",
        source=source,
        steps=_steps(frame["step"].tolist(), source),
        prompts=prompts,
        shown=[prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts],
        encoded=encoded,
        completions=completions,
        rewards=_trl_rewards(frame, reward, files[0]),
        lost=lost,
        done_to_prompts=", ".join(done),
        chats=[not isinstance(prompt, str) or reader.begins(prompt) for prompt in prompts],
        names={name: _missing_as_none(frame, name) for name in GROUP_COLUMNS if name in frame},
        advantages=_trl_advantages(frame),
    ).rollouts(reader, step, group_size)


def _said(value: object, what: str, row: int, source: str) -> str | list[Message]:
    """Return a prompt or a completion of TRL: text, or messages."""
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
            if messages := plain_messages(value):
                return messages
            if what == "completion":
                return ""
        raise ValueError("it is neither text nor messages")
    except ValueError as error:
        raise ValueError(f"{what} {row} of {source} is {str(value)[:60]}: {error}") from error


def _encoded_trl(
    prompts: list[str | list[Message]], tokenizer: ChatTokenizer, options: Mapping[str, object]
) -> list[list[int]]:
    """Return the token ids of prompts as TRL encodes them: plain text as it is, messages in the chat template."""
    encoded: dict[str, list[int]] = {}
    keys = [prompt if isinstance(prompt, str) else json.dumps(prompt) for prompt in prompts]
    for key, prompt in zip(keys, prompts, strict=True):
        if key not in encoded:
            text = isinstance(prompt, str)
            encoded[key] = list(tokenizer(prompt)["input_ids"]) if text else _encode_chat(tokenizer, prompt, options)
    return [encoded[key] for key in keys]


def _template_options(given: Mapping[str, object] | None) -> dict[str, object]:
    """Return variables of a template, tools that are functions as their descriptions."""
    options = dict(given or {})
    tools = options.get("tools")
    if isinstance(tools, (list, tuple)) and any(map(callable, tools)):
        from transformers.utils import get_json_schema

        options["tools"] = [get_json_schema(tool) if callable(tool) else tool for tool in tools]
    return options


def _steps(values: Sequence[Any], source: str) -> np.ndarray:
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value != int(value):
            raise ValueError(f"step of row {row} of {source} is {value!r}, which is not the number of a step")
    return np.array([int(value) for value in values], dtype=np.int64)


def _missing_as_none(frame: pd.DataFrame, name: str) -> list[object]:
    column = pd.Series(frame[name])
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna().tolist(), strict=True)]


def _trl_advantages(frame: pd.DataFrame) -> np.ndarray | None:
    if "advantage" not in frame or not pd.api.types.is_numeric_dtype(frame["advantage"]):
        return None
    return frame["advantage"].to_numpy(dtype=np.float64)


def _trl_rewards(frame: pd.DataFrame, reward: str | Mapping[str, float] | None, file: Path) -> np.ndarray:
    if reward is None:
        others = frame.drop(columns=[name for name in _NOT_REWARDS if name in frame])
        numeric = [str(name) for name in others.select_dtypes(["number", "bool"])]
        numeric = numeric or [str(name) for name in others if _all_numbers(_missing_as_none(frame, str(name)))]
        if len(numeric) != 1:
            has = ", ".join(numeric) or "none"
            raise ValueError(
                f"{file} does not have exactly one numeric column that may be the reward ({has}): name it with reward"
            )
        reward = numeric[0]
    weights = {reward: 1.0} if isinstance(reward, str) else dict(reward)
    _require_columns([str(name) for name in frame], list(weights), file)
    values = np.array(
        [
            [
                _reward_number(value, f"{name} of row {row} of {file}")
                for row, value in enumerate(_missing_as_none(frame, name))
            ]
            for name in weights
        ]
    ).T
    total = np.nansum(values * np.array(list(weights.values())), axis=1)
    return np.where(np.isnan(values).all(axis=1), np.nan, total)


def _all_numbers(values: list[object]) -> bool:
    """Whether values are numbers, or text of numbers."""
    try:
        return any(_reward_number(value, "") == _reward_number(value, "") for value in values)
    except ValueError:
        return False


def _reward_number(value: object, where: str) -> float:
    """Return a reward as a number, NaN where it is missing.

    Raises:
        ValueError: for what is not a number, or the text of one.
    """
    if value is None:
        return float("nan")
    try:
        if isinstance(value, (str, int, float)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{where} is {str(value)[:60]!r} ({type(value).__name__}), not a number: name another reward, or write numbers"
    )


def read_verl_rollouts(
    path: str | os.PathLike[str],
    tokenizer: ChatTokenizer,
    *,
    reward: str = "score",
    step: int | None = None,
    max_completion_length: int | None = None,
    system_prompt: str | None = None,
    template_options: Mapping[str, object] | None = None,
    group_size: int | None = None,
    eos_token_ids: int | Sequence[int] | None = None,
    other_turns: OtherTurns | None = None,
) -> Rollouts:
    """Read the JSONL files that verl writes to ``trainer.rollout_data_dir``.

    verl writes prompts and completions without the special tokens that separate the turns. In prompts they are restored
    where the text is a single user message in the tokenizer's chat template; a warning states how many prompts are not.
    In completions of several turns they are restored where the template names the speakers.

    Args:
        path: a ``STEP.jsonl``, or the folder.
        tokenizer: the tokenizer of the policy that was trained, with its chat template.
        reward: the field of the reward.
        step: keep only this step; by default all steps are kept, each of which was sampled from a different policy.
        max_completion_length: the trainer's ``data.max_response_length``, see
            :func:`gradstats.rollouts.read_trl_completions`.
        system_prompt: the system message that the prompts began with.
        template_options: further variables of the chat template, such as ``tools``.
        group_size: the trainer's ``actor_rollout_ref.rollout.n``, which tells apart groups of the same prompt where no
            field ``uid`` or ``request_id`` does and the rows are in the order of groups.
        eos_token_ids: as for :func:`gradstats.rollouts.read_trl_completions`.
        other_turns: where a completion holds turns of other speakers, as those of tools do: "masked" where tools or an
            environment wrote them, "written" where the policy did. Such completions are refused by default.

    Returns:
        The rollouts; a group is the completions that were drawn together for one prompt in one step.

    Raises:
        FileNotFoundError: when there is no such file, or none in the folder.
        ValueError: for a line that cannot be read or an entry of another type (it is named), a missing field, a
            completion whose policy's part cannot be known, or a step that the files do not hold.
    """
    files = _dump_files(Path(path), "*.jsonl", "verl's rollouts (STEP.jsonl)")
    rows = [row for file in files for row in _completions(file, reward)]
    options = _template_options(template_options)
    encode = _VerlPrompts(tokenizer, system_prompt, options)
    texts = [str(row["input"]) for row in rows]
    encoded = {text: encode(text) for text in dict.fromkeys(texts)}
    unrestored = sum(not restored for _, restored in encoded.values())
    lost = ["token ids", "log-probabilities of the sampler", "special tokens"]
    if unrestored:
        remedy = "give system_prompt, or template_options such as tools, if the trainer's prompts had them"
        lost.append(f"the chat template around {unrestored} of {len(encoded)} prompts ({remedy})")
    done = [f"the chat template restored around {len(encoded) - unrestored}"] * (unrestored < len(encoded))
    done += [f"{unrestored} tokenised as the text stands"] * bool(unrestored)
    return _TrainerDump(
        kind="verl",
        source=Path(path).name,
        steps=_steps([row["step"] for row in rows], Path(path).name),
        prompts=list(texts),
        shown=texts,
        encoded=[encoded[text][0] for text in texts],
        completions=[row["output"] for row in rows],
        rewards=np.array([row[reward] for row in rows]),
        lost=lost,
        done_to_prompts=", ".join(done),
        chats=[True] * len(rows),
        names={name: [row.get(name) for row in rows] for name in GROUP_COLUMNS if any(name in row for row in rows)},
    ).rollouts(
        CompletionReader(tokenizer, options, eos_token_ids, max_completion_length, other_turns), step, group_size
    )


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
        return _encode_chat(self.tokenizer, [*system, {"role": "user", "content": content}], self.options)

    def _stripped(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def _completions(file: Path, reward: str) -> list[dict[str, Any]]:
    """Return the rows of a file of verl, the reward as a number."""
    rows = []
    for number, row in read_json_lines(file):
        if missing := [name for name in ("input", "output", "step", reward) if name not in row]:
            raise ValueError(f"line {number} of {file} has no field {missing[0]!r} (it has {', '.join(row)})")
        for name in ("input", "output"):
            if not isinstance(row[name], str):
                raise ValueError(
                    f"{name} on line {number} of {file} is {json.dumps(row[name])[:60]}, not text: drop the line, or "
                    "give an empty text where the policy wrote nothing"
                )
        rows.append(row | {reward: _reward_number(row[reward], f"{reward} on line {number} of {file}")})
    if not rows:
        raise ValueError(f"{file} is empty: the trainer has written nothing to it yet")
    return rows


#: Format → reader, as ``gradstats measure --rollouts-format`` names them.
READERS: dict[str, Callable[..., Rollouts]] = {"trl": read_trl_completions, "verl": read_verl_rollouts}
