"""A completion of a trainer's dump → token ids, with a mask of what the policy wrote where others speak in it.

A dump holds a completion as text, or as messages: the policy's, with tool calls and reasoning as fields of their own,
and those of tools and environments. What the policy wrote in plain text is tokenised as it is; its tool calls and
reasoning, and everything between its turns, are what the chat template makes of them. Where the template does not show
something that the dump holds, or it cannot be known who wrote what, a sentence says so: nothing is left out, and
nothing is attributed to the policy by guess.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gradstats.rollouts.restored import ChatTokenizer, restore_tokens
from gradstats.system.chat_template import added_tokens, end_tokens, rendered, shown_content

Message = dict[str, Any]
#: Who wrote the turns of other speakers that the text of a completion holds.
OtherTurns = Literal["masked", "written"]

_POLICY = ("assistant", "model")
_REASONING = ("reasoning_content", "reasoning", "thinking")
# Role names on a line of their own: others', and after them the policy's.
_OTHERS_LINE = re.compile(r"(?:^|\n)[ \t]*(?:user|human|tool|function|environment|observation|ipython)[ \t]*\n")
_POLICYS_LINE = re.compile(r"\n[ \t]*(?:assistant|model)[ \t]*(?:\n|$)")
_TOOLS_TAG = "<tool_response>"
_REMEDY = (
    "read the dump with the template that the trainer used (tokenizer.chat_template = …; for TRL see "
    "trl.chat_template_utils.get_training_chat_template), or give token ids and completion_mask to "
    "Rollouts.from_sequences"
)
_IMAGES = "a dump holds no images, and without them the policy's log-probabilities are others: leave these rows out"


def plain_messages(value: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return messages without the keys that Parquet fills with None, their content as text.

    Raises:
        ValueError: for content that is neither text nor blocks of text.
    """
    messages = []
    for given in value:
        message: Message = _without_missing(dict(given))
        message["role"] = str(message.get("role", "assistant"))
        message["content"] = _text_of_content(message.get("content"))
        calls = message.pop("function_call", None) or message.get("tool_calls")
        if calls:
            calls = _parsed(calls)
            message["tool_calls"] = [_parsed(call) for call in (calls if isinstance(calls, list) else [calls])]
        messages.append(message)
    return messages


def _text_of_content(content: object) -> str:
    """Return the content of a message as text; that of several blocks is joined."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for block in content if isinstance(content, (list, tuple)) else [content]:
        known = isinstance(block, Mapping)
        text = block if isinstance(block, str) else block.get("text") if known else None
        if not isinstance(text, str):
            kind = repr(str(block.get("type", "unknown"))) if known else type(block).__name__
            raise ValueError(
                f"a message holds a block of the type {kind}, not text: {_IMAGES}"
                if known and str(block.get("type")) in ("image", "image_url", "video", "audio", "input_image")
                else f"a message holds a block of the type {kind}, which is not text: give messages with text"
            )
        texts.append(text)
    return "".join(texts)


@dataclass(frozen=True)
class Completion:
    """A completion as tokens, without the token that ended it."""

    tokens: list[int]
    mask: list[bool]  # whether the policy wrote each token
    source: str  # as in TOKEN_SOURCES: "text" or "mismatch"
    text: str
    end: int | None = None  # the token that ends it if it has ended, where the text or the template says which
    ended: bool = False  # whether the text shows that it has ended
    cut: bool = False  # whether it is known not to have ended
    rendered: bool = False  # whether a part of what the policy wrote is what the template makes of it
    spelled: bool = False  # whether it holds the text of a special token, which then was written letter by letter


@dataclass(frozen=True)
class CompletionReader:
    """From a completion, as text or messages, to tokens.

    Attributes:
        tokenizer: the policy's, with its chat template.
        options: variables of the template.
        eos_token_ids: the model's, see :func:`gradstats.system.chat_template.end_tokens`.
        cap: the trainer's greatest number of tokens of a completion, or None.
        other_turns: what to do where the text of a completion holds turns of other speakers.
    """

    tokenizer: ChatTokenizer
    options: Mapping[str, object] = field(default_factory=dict)
    eos_token_ids: object = None
    cap: int | None = None
    other_turns: OtherTurns | None = None

    def __post_init__(self) -> None:
        if self.other_turns not in (None, "masked", "written"):
            raise ValueError(
                f"other_turns is {self.other_turns!r}: give 'masked' where tools or an environment wrote the turns of "
                "other speakers, 'written' where the policy did"
            )
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"max_completion_length is {self.cap}: give the trainer's, at least 1")

    def __call__(self, prompt: str | Sequence[Message], completion: str | Sequence[Message]) -> Completion:
        """Return the tokens of a completion.

        Raises:
            ValueError: where it cannot be known what the policy wrote.
        """
        if isinstance(completion, str):
            return self._text(completion)
        messages = list(completion)
        if not messages:
            return self._text("")
        if len(messages) == 1 and messages[0]["role"] in _POLICY and not _structured(messages[0]):
            return self._text(messages[0]["content"])
        asked: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return self._conversation(asked, messages)

    @functools.cached_property
    def ends(self) -> list[int]:
        """The tokens that end a completion, the usual one first."""
        return end_tokens(self.tokenizer, self.eos_token_ids)

    def end_of(self, *, chat: bool) -> int | None:
        """Return the token that ends a completion after a prompt in the chat template, or after plain text."""
        own = getattr(self.tokenizer, "eos_token_id", None)
        return next(iter(self.ends), None) if chat or own is None else int(own)

    def begins(self, prompt: str) -> bool:
        """Whether a prompt of plain text ends where the chat template lets the policy begin."""
        return bool(self._beginning) and prompt.rstrip().endswith(self._beginning)

    @functools.cached_property
    def _beginning(self) -> str:
        if not self.tokenizer.chat_template:
            return ""
        try:
            asked = [{"role": "user", "content": "xqzjprompt"}]
            return self._rendered(asked, generation_prompt=True).rpartition("xqzjprompt")[2].strip()
        except ValueError:
            return ""

    def may_be_cut(self, completion: Completion) -> bool:
        """Whether a completion that is tokenised to fewer tokens than the cap may have been cut at it.

        Of all tokenisations of a text the tokenizer gives one of the shortest, and policies draw others now and then: a
        completion of exactly ``cap`` tokens then comes back shorter. Up to a twentieth of the cap is taken as possible,
        as far as its tokens can be divided at all.
        """
        if self.cap is None:
            return False
        needed = self.cap - len(completion.tokens)
        if needed > max(4, math.ceil(self.cap / 20)):
            return False
        for token, own in zip(completion.tokens, completion.mask, strict=True):
            if needed <= 0:
                break
            needed -= _pieces(self.tokenizer, token) - 1 if own else 0
        return needed <= 0

    def _text(self, text: str) -> Completion:
        """Return a completion of which the whole text is known."""
        shown, end = self._without_end(text)
        if self._speakers(shown):
            if self.other_turns is not None and (turns := self._split(shown)):
                found = self._conversation([{"role": "user", "content": "…"}], turns)
                if self.tokenizer.decode(found.tokens, skip_special_tokens=True) == shown:
                    mask = found.mask if self.other_turns == "masked" else [True] * len(found.tokens)
                    return replace(found, mask=mask, text=shown, end=end, ended=end is not None)
            if self.other_turns != "written":
                self._refuse_speakers()
        return self._plain(shown, end)

    def _refuse_speakers(self) -> None:
        if self.other_turns is None:
            raise ValueError(
                "its text holds turns of other speakers (a user, a tool) between the policy's, and a text does not say "
                "who wrote them: give other_turns='masked' where tools or an environment did, other_turns='written' "
                "where the policy itself ran on, or token ids and completion_mask to Rollouts.from_sequences"
            )
        raise ValueError(
            "its text holds turns of other speakers (a user, a tool) that are not as the tokenizer's chat template "
            f"writes them, so that they cannot be told from the policy's: {_REMEDY}"
        )

    def _conversation(self, prompt: list[Message], turns: list[Message]) -> Completion:
        """Return a completion of several messages, or of one with tool calls or reasoning."""
        if turns[0]["role"] not in _POLICY:
            raise ValueError(
                f"it begins with a message of the role {turns[0]['role']!r}, before the policy has written anything: "
                "move that message into the prompt"
            )
        tokens: list[int] = []
        mask: list[bool] = []
        text = ""
        history, own = list(prompt), []
        at = 0
        while at < len(turns):
            message, written = self._turn(history, turns[at], last=at == len(turns) - 1)
            own.append(written)
            history.append(message)
            tokens += written.tokens
            mask += written.mask
            text += written.text
            others = list(itertools.takewhile(lambda message: message["role"] not in _POLICY, turns[at + 1 :]))
            at += 1 + len(others)
            if others or at < len(turns):
                end, between = self._between(history, others, written)
                ids = list(self.tokenizer(between, add_special_tokens=False)["input_ids"])
                tokens += [*end, *ids]
                mask += [*[True] * len(end), *[False] * len(ids)]
                text += between
                history += others
        closed = turns[-1]["role"] in _POLICY
        return Completion(
            tokens,
            mask,
            "mismatch" if any(turn.source == "mismatch" for turn in own) else "text",
            text,
            own[-1].end if closed else None,
            own[-1].ended and closed,
            own[-1].cut or not closed,
            any(turn.rendered for turn in own),
            any(turn.spelled for turn in own),
        )

    def _turn(self, history: list[Message], message: Message, *, last: bool) -> tuple[Message, Completion]:
        """Return a message of the policy in the form that the template shows, and what it wrote in it."""
        if not _structured(message):
            text, end = self._without_end(message["content"])
            if self.other_turns != "written" and self._speakers(text):
                self._refuse_speakers()
            return message | {"content": text}, self._plain(text, end)
        beginning = self._rendered(history, generation_prompt=True)
        faults = []
        for variant in _variants(message):
            try:
                whole = self._rendered([*history, variant], generation_prompt=False)
            except ValueError as error:
                faults.append(str(error))
                continue
            text, end = self._without_end(whole.removeprefix(beginning))
            if not whole.startswith(beginning):
                faults.append("the chat template begins the message otherwise than it ends the prompt")
            elif (missing := _not_shown(variant, text)) is not None:
                faults.append(f"the chat template does not show {missing}")
            else:
                return variant, self._shown(variant, text, end, last=last)
        raise ValueError(f"{_what(message)} cannot be rendered, since {faults[0]}: {_REMEDY}")

    def _shown(self, message: Message, text: str, end: int | None, *, last: bool) -> Completion:
        """Return what the policy wrote in a message that the template shows as ``text``."""
        if last and not message["content"].strip() and not message.get("tool_calls"):
            # Thinking that no answer follows was cut, unless it is far from the cap; the template ends it all the same.
            reasoning = next(str(message[name]).strip() for name in _REASONING if message.get(name))
            cut = self._tokens(text[: text.rfind(reasoning) + len(reasoning)], cut=True, rendered=True)
            if self.cap is None or len(cut.tokens) >= self.cap or self.may_be_cut(cut):
                return cut
        return self._tokens(text, end=end, rendered=True)

    def _plain(self, text: str, end: int | None) -> Completion:
        """Return a text that the policy wrote, which the trainer decoded without special tokens."""
        spelled = any(name in text for name in self._left_out)
        return self._tokens(text, end=end, ended=end is not None, spelled=spelled)

    def _tokens(self, text: str, *, spelled: bool = False, **further: Any) -> Completion:
        restored = restore_tokens(self.tokenizer, text, spelled=spelled)
        mask = [True] * len(restored.tokens)
        return Completion(restored.tokens, mask, restored.source, text, spelled=spelled, **further)

    def _between(self, history: list[Message], others: list[Message], written: Completion) -> tuple[list[int], str]:
        """Return the token that ended the policy's last message, if any, and what stands from there to its next one."""
        for rest in self._rests(history, others):
            if any(not _is_in(message["content"], rest) for message in others):
                continue
            if written.end is not None:
                return [written.end], rest
            if written.rendered and any(written.text.endswith(name) for name in self._left_out):
                return [], rest  # the special token that is the last of a call ended it
            # Some policies end a turn with the token that begins the next one.
            first = next((token for token in self.ends if rest.startswith(self._name(token))), None)
            return (self.ends[:1], rest) if first is None else ([first], rest.removeprefix(self._name(first)))
        role = others[0]["role"] if others else "assistant"
        raise ValueError(
            f"its message of the role {role!r} cannot be rendered after the policy's, since the chat template does not "
            f"show it or changes what stands before it: {_REMEDY}"
        )

    def _rests(self, history: list[Message], others: list[Message]) -> Iterator[str]:
        """Yield what may stand between the end of the policy's last message and its next one."""
        called = next((str(message["name"]) for message in others if message.get("name")), "tool")
        call = {"type": "function", "function": {"name": called, "arguments": {}}}
        # TRL itself renders a tool's answer after a dummy call: it serves templates that show earlier turns otherwise.
        dummy = [{"role": "user", "content": "…"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        for before in (history, dummy):
            try:
                alone = self._rendered(before, generation_prompt=False)
                whole = self._rendered([*before, *others], generation_prompt=True)
            except ValueError:
                continue
            content, closed = self._without_end(alone)
            upto = len(content) + (0 if closed is None else len(self._name(closed)))
            if whole.startswith(alone[:upto]):
                yield whole[upto:]
        # Others write more around an answer that is the last message than around an earlier one.
        plain = [dummy[0], {"role": "assistant", "content": "xqzjanswer"}, *others]
        try:
            rest = self._rendered(plain, generation_prompt=True).partition("xqzjanswer")[2]
        except ValueError:
            return
        closing = next((name for name in map(self._name, self.ends) if name and rest.startswith(name)), None)
        if closing is not None:
            yield rest.removeprefix(closing)

    def _rendered(self, messages: list[Message], *, generation_prompt: bool) -> str:
        try:
            shown = shown_content(self.tokenizer, messages)
            return rendered(self.tokenizer, shown, self.options, generation_prompt=generation_prompt)
        except Exception as error:  # a template can raise any error
            raise ValueError(f"the chat template fails ({' '.join(str(error).split())[:200]})") from error

    def _without_end(self, text: str) -> tuple[str, int | None]:
        """Return a text up to the tokens that end it, and the first of these."""
        end = None
        while True:
            bare = text.rstrip()
            last = next((token for token in self.ends if self._name(token) and bare.endswith(self._name(token))), None)
            if last is None:
                return text, end
            text, end = bare.removesuffix(self._name(last)), last

    def _name(self, token: int) -> str:
        return self._added.get(token, "")

    @functools.cached_property
    def _added(self) -> dict[int, str]:
        return added_tokens(self.tokenizer)

    @functools.cached_property
    def _left_out(self) -> list[str]:
        """The texts of the tokens that trainers leave out when they decode."""
        decode = self.tokenizer.decode
        return [name for token, name in self._added.items() if name and not decode([token], skip_special_tokens=True)]

    def _speakers(self, text: str) -> bool:
        """Whether a text seems to hold turns of other speakers."""
        line = _OTHERS_LINE.search(text)
        named = line is not None and _POLICYS_LINE.search(text, line.end() - 1) is not None
        return named or _TOOLS_TAG in text or next(self._framed(text), None) is not None

    def _split(self, text: str) -> list[Message]:
        """Return a text as the policy's messages and those between them, as the template frames them, or []."""
        turns: list[Message] = []
        at = 0
        for role, name, start, content, end in self._framed(text):
            if start > at or not turns:  # where nothing stands between two answers of tools, the policy wrote nothing
                turns.append({"role": "assistant", "content": text[at:start]})
            several = content.split(self._joint) if role == "tool" and self._joint else [content]
            turns += [{"role": role, "name": name, "content": one} for one in several]
            at = end
        return [*turns, {"role": "assistant", "content": text[at:]}] if turns and text[at:] else turns

    def _framed(self, text: str) -> Iterator[tuple[str, str, int, str, int]]:
        """Yield the role, name, beginning, content and end of others' messages in a text."""
        at = 0
        while True:
            begun = [(before.search(text, at), role, after) for role, before, after in self._frames]
            found = [(match, role, after) for match, role, after in begun if match is not None]
            if not found:
                return
            match, role, after = min(found, key=lambda entry: entry[0].start())
            until = text.find(after, match.end())
            if until < 0:
                return
            at = until + len(after)
            yield role, match.group(1) if match.re.groups else role, match.start(), text[match.end() : until], at

    @functools.cached_property
    def _frames(self) -> list[tuple[str, re.Pattern[str], str]]:
        """For a tool and a user: what stands before and after their messages where special tokens are left out.

        Only where that names the speakers.
        """
        frames = []
        for role in ("tool", "user"):
            before, _, after = self._around([{"role": role, "name": "xqzjname", "content": "xqzjother"}])
            if re.search("[a-z]", before.replace("xqzjname", "")) and after.strip():
                pattern = re.escape(before).replace("xqzjname", r"([\w.\-]{1,64})", 1)
                frames.append((role, re.compile(pattern.replace("xqzjname", r"[\w.\-]{1,64}")), after))
        return frames

    @functools.cached_property
    def _joint(self) -> str:
        """What stands between the answers of two tools where special tokens are left out, if that names them."""
        answer = {"role": "tool", "name": "tool", "content": "xqzjother"}
        between = self._around([answer, answer])[1]
        return between if re.search("[a-z]", between) else ""

    def _around(self, others: list[Message]) -> tuple[str, str, str]:
        """Return what stands before, between and after others' messages, "" where the template does not show them."""
        asked: Message = {"role": "user", "content": "xqzjprompt"}
        call = {"type": "function", "function": {"name": others[0]["name"], "arguments": {}}}
        # Some templates show a tool's answer only after a call.
        for said in ({"content": "xqzjanswer"}, {"content": "", "tool_calls": [call]}):
            before = [asked, {"role": "assistant", **said}]
            try:
                alone = self._without_end(self._rendered(before, generation_prompt=False))[0]
                text = self._rendered([*before, *others], generation_prompt=True)
            except ValueError:
                continue
            rest = text.partition("xqzjanswer")[2] if "tool_calls" not in said else text.removeprefix(alone)
            for name in self._left_out:
                rest = rest.replace(name, "")
            parts = rest.split("xqzjother")
            if len(parts) > len(others) and len(rest) < len(text):
                return parts[0], "".join(parts[1:-1]), parts[-1]
        return "", "", ""


def _structured(message: Message) -> bool:
    """Whether the policy wrote more in a message than its content."""
    return bool(message.get("tool_calls")) or any(message.get(name) for name in _REASONING)


def _what(message: Message) -> str:
    parts = [*["tool calls"] * bool(message.get("tool_calls")), *[name for name in _REASONING if message.get(name)]]
    return f"a message with {' and '.join(parts)}"


def _variants(message: Message) -> Iterator[Message]:
    """Yield a message with its reasoning and the arguments of its calls in the forms that templates expect."""
    given = [name for name in _REASONING if message.get(name)][:1]
    for name in [*given, *[other for other in _REASONING if given and other not in given]] or [""]:
        rest = {key: value for key, value in message.items() if key not in given}
        named = rest | ({name: message[given[0]]} if given else {})
        yield named
        if message.get("tool_calls"):
            yield named | {"tool_calls": [_other_form(call) for call in message["tool_calls"]]}


def _function(call: Any) -> Mapping[str, Any]:
    inner = call.get("function", call) if isinstance(call, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def _other_form(call: Any) -> Any:
    """Return a call with its arguments as an object where they are JSON, and as JSON where they are an object."""
    function = dict(_function(call))
    arguments = function.get("arguments")
    function["arguments"] = _parsed(arguments) if isinstance(arguments, str) else json.dumps(arguments)
    return {**call, "function": function} if "function" in call else function


def _not_shown(message: Message, text: str) -> str | None:
    """Return what the policy wrote in a message and its rendered text lacks, or None."""
    for name in ("content", *_REASONING):
        if not _is_in(message.get(name) or "", text):
            return f"its {name}"
    for call in message.get("tool_calls", ()):
        function = _function(call)
        arguments = function.get("arguments")
        if not function.get("name"):
            return "a tool call, which has no name"
        # A template may write arguments that are already JSON as a string of JSON.
        quoted = isinstance(arguments, str) and json.dumps(arguments) in text
        if quoted or not all(_is_in(leaf, text) for leaf in (function["name"], *_leaves(arguments))):
            return f"its tool call ({function['name']})"
    return None


def _leaves(value: object) -> Iterator[object]:
    """Yield the keys and values of nested arguments."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from _leaves(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _leaves(entry)
    elif value is not None:
        yield value


def _is_in(value: object, text: str) -> bool:
    """Whether a text shows a value, as it is or as JSON writes it."""
    plain = value.strip() if isinstance(value, str) else str(value)
    forms = {plain, *(json.dumps(plain if isinstance(value, str) else value, ensure_ascii=e) for e in (True, False))}
    return any((form[1:-1] if form.startswith('"') and form != plain else form) in text for form in forms)


def _without_missing(value: Any) -> Any:
    """Return a value of a Parquet file without the None that stand for keys another row has."""
    if isinstance(value, Mapping):
        return {str(key): _without_missing(entry) for key, entry in value.items() if entry is not None}
    return [_without_missing(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _parsed(value: Any) -> Any:
    """Return what a text holds as JSON, or the value itself."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value


@functools.lru_cache(maxsize=65536)
def _pieces(tokenizer: ChatTokenizer, token: int) -> int:
    """Return into how many tokens the text of a token can be divided, letter by letter."""
    text = tokenizer.decode([token])
    return len(text) if text and all(_is_token(tokenizer, letter) for letter in text) else 1


@functools.lru_cache(maxsize=65536)
def _is_token(tokenizer: ChatTokenizer, letter: str) -> bool:
    ids = tokenizer(letter, add_special_tokens=False)["input_ids"]
    return len(ids) == 1 and tokenizer.decode(list(ids)) == letter
