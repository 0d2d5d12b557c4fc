"""Sampling from servers of the OpenAI completions API (extra ``openai``), each in its own dialect."""

from __future__ import annotations

import json
import math
import os
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gradstats.config.trust import API_KEY_ENV, BASE_URL_ENV, written_secret
from gradstats.policy.model import vocabulary_size
from gradstats.policy.policy import Policy
from gradstats.rollouts.restored import is_text_of, restore_tokens
from gradstats.sampling.sampler import Completion, SamplerSettings, client_until, stop_token_ids, usual_stop_token
from gradstats.system.files import digest

# Servers have their own defaults for omitted settings (top_k: llama.cpp 40, transformers 50), so all are stated.
_STATED_ELSEWHERE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Dialect:
    """One form of a request for a completion."""

    name: str
    takes_tokens: bool
    # settings and stop tokens → the request's fields other than model, prompt, max_tokens and seed; fields that OpenAI
    # does not define are under extra_body
    fields: Callable[[SamplerSettings, list[int]], Mapping[str, object]]
    # of llama.cpp's own API beside OpenAI's, whose log-probabilities are those of the distribution that is drawn from
    native: bool = False


def _extended(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Return the fields of vLLM and of llama.cpp, each of which ignores the other's name for the repetition penalty."""
    return {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "logprobs": 1,
        "extra_body": {
            "top_k": settings.top_k,
            "min_p": settings.min_p,
            "repetition_penalty": settings.repetition_penalty,
            "repeat_penalty": settings.repetition_penalty,
            "return_token_ids": True,
        },
    }


def _transformers(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Give a generation config, without which ``transformers serve`` uses the model's."""
    generation = {
        "do_sample": True,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": settings.min_p or None,
        "repetition_penalty": settings.repetition_penalty,
        "max_new_tokens": settings.max_new_tokens,
        "eos_token_id": stop_tokens or None,
        "pad_token_id": stop_tokens[0] if stop_tokens else None,
    }
    return {"extra_body": {"generation_config": json.dumps(generation)}}


def _standard(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Return OpenAI's fields. Greedy decoding is temperature 0; settings without a field are refused."""
    if settings.top_k == 1:
        return {"temperature": 0.0, "logprobs": 1}
    missing = [
        f"{name}={getattr(settings, name)}"
        for name, neutral in _STATED_ELSEWHERE.items()
        if getattr(settings, name) != neutral
    ]
    if missing:
        raise ValueError(
            f"the server accepts only OpenAI's settings, which have no {', '.join(missing)}: leave them out, or "
            "serve the model with vLLM"
        )
    return {"temperature": settings.temperature, "top_p": settings.top_p, "logprobs": 1}


def _llama_cpp(settings: SamplerSettings, stop_tokens: list[int]) -> Mapping[str, object]:
    """Return the fields of llama.cpp's ``/completion``; a server can be started with other defaults for each."""
    return {
        "return_tokens": True,
        "n_probs": 1,
        "post_sampling_probs": bool(settings.departures(1.0)),
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],  # in the order of transformers and vLLM
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "min_p": settings.min_p,
        "repeat_penalty": settings.repetition_penalty,
        "repeat_last_n": _WHOLE_CONTEXT,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
    }


#: In the order in which they are tried: prompts as token ids first, all settings before a subset.
DIALECTS = (
    Dialect("extended, prompt as token ids", True, _extended),
    Dialect("extended, prompt as text", False, _extended),
    Dialect("transformers serve", False, _transformers),
    Dialect("standard, prompt as token ids", True, _standard),
    Dialect("standard, prompt as text", False, _standard),
)

#: Tried where an answer is llama.cpp's: only there does it list all tokens, also where several make one letter.
_LLAMA_CPP = Dialect("llama.cpp, prompt as token ids", True, _llama_cpp, native=True)


# llama.cpp's penalty looks back so many tokens, 64 by default; more than contexts have.
_WHOLE_CONTEXT = 2**17
# A log-probability may be above 0 by this much, by rounding.
_ROUNDING = 1e-3
# No generator of random numbers draws a token below this at temperature 1 (double precision ends at -745); vLLM writes
# -9999 for minus infinity, others the lowest number of float32.
_LEAST_LOGPROB = -1000.0
_REFUSED = (400, 404, 415, 422)
_LONGEST_PAUSE = 8.0  # seconds, as the client library's own


class ServerFailureError(ConnectionError):
    """A server answered with an error status."""


class MalformedAnswerError(ConnectionError):
    """A server's answer is not a completion."""


@dataclass(frozen=True)
class TokenEntry:
    """One entry of a server's list of log-probabilities."""

    token: int | None  # the id, where the server gives it
    text: str | None
    logprob: float  # NaN where the server does not know it


@dataclass(frozen=True)
class _ServerAnswer:
    """What an answer says of its completion, whichever form it has."""

    text: str
    finish_reason: str  # "stop" or "length"
    token_ids: list[int] | None  # of all drawn tokens
    entries: list[TokenEntry]  # of each token; llama.cpp has one for all tokens that make one letter
    prompt: int | list[int] | None  # the prompt's tokens, or their number
    count: int | None  # of the tokens that were drawn
    ended_by: int | None  # the token that ended the completion


def _read_answer(body: object) -> _ServerAnswer:
    """Read what a server says of a completion.

    ================ ============================================= ==============================================
    server           token ids                                     log-probabilities
    ================ ============================================= ==============================================
    vLLM             ``token_ids``, or ``token_id:N`` as tokens    ``logprobs.token_logprobs``
    SGLang           ``token_ids``, ``output_ids``, or in          ``logprobs.token_logprobs``, or
                     ``meta_info.output_token_logprobs``           ``meta_info.output_token_logprobs``
    llama.cpp        ``logprobs.content[].id``                     ``logprobs.content[].logprob``
    its /completion  ``tokens``                                    ``completion_probabilities[].logprob``
    others           none: ``logprobs.tokens`` are texts           ``logprobs.token_logprobs``
    ================ ============================================= ==============================================

    Raises:
        ValueError: for what is not a completion; the message continues "the server answered with".
    """
    if not isinstance(body, Mapping):
        raise ValueError(f"{str(body)[:40]!r}, which is not a completion")
    native = "choices" not in body and isinstance(body.get("content"), str)  # of llama.cpp's own API
    choices = [body] if native else body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        number = 0 if choices == [] else "no"
        raise ValueError(f"{number} completions where 1 was requested")
    choice = choices[0]
    # SGLang's meta_info stands in the choice or beside the choices, as one or one for each choice.
    about = _mapping(_first(choice.get("meta_info", body.get("meta_info"))))
    usage = _mapping(body.get("usage"))
    if native:
        reason = {"eos": "stop", "word": "stop", "limit": "length"}.get(str(choice.get("stop_type")))
        text, ids, prompt, count = (
            choice.get(name) for name in ("content", "tokens", "tokens_evaluated", "tokens_predicted")
        )
        entries = [_described(entry) for entry in _list(choice.get("completion_probabilities") or [])]
    else:
        text, reason = choice.get("text"), choice.get("finish_reason")
        ids = next(
            (
                given
                for given in (
                    choice.get("token_ids"),
                    choice.get("output_ids"),
                    _first(body.get("output_ids"), of=list),
                    about.get("output_ids"),
                )
                if given is not None
            ),
            None,
        )
        prompt = choice.get("prompt_token_ids")
        prompt = usage.get("prompt_tokens") if prompt is None else prompt
        count = usage.get("completion_tokens", about.get("completion_tokens"))
        entries = _entries(choice, about, str(text))
    if not isinstance(text, str) or reason not in ("stop", "length"):
        raise ValueError(
            f"a completion whose text is {str(text)[:40]!r} and whose finish_reason is {reason!r}: it must be stop or "
            "length"
        )
    ended_by = choice.get("stop_reason", choice.get("matched_stop"))
    return _ServerAnswer(
        text,
        str(reason),
        None if ids is None or (native and not ids) else [_integer(token, "token id") for token in _list(ids)],
        entries,
        [_integer(token, "token id") for token in prompt] if isinstance(prompt, list) else _count(prompt),
        _count(count),
        ended_by if isinstance(ended_by, int) and not isinstance(ended_by, bool) else None,
    )


def _entries(choice: Mapping[str, Any], about: Mapping[str, Any], text: str) -> list[TokenEntry]:
    """Return the entries of OpenAI's lists, of its objects, or of SGLang's triples."""
    if about.get("output_token_logprobs") is not None:
        triples = [[*_list(triple), None, None][:3] for triple in _list(about["output_token_logprobs"])]
        return [_entry(token, None, value) for value, token, _ in triples]
    reported = _mapping(choice.get("logprobs"))
    if reported.get("content") is not None:
        return [_described(entry) for entry in _list(reported["content"])]
    values, pieces, offsets = (reported.get(name) for name in ("token_logprobs", "tokens", "text_offset"))
    if not pieces and offsets:
        starts = [_integer(offset, "text offset") for offset in _list(offsets)]
        ends = [*starts[1:], starts[0] + len(text)]
        pieces = [text[start - starts[0] : end - starts[0]] for start, end in zip(starts, ends, strict=True)]
    lists = [_list(given) for given in (values, pieces) if given]
    if len(lists) == 2 and len(lists[0]) != len(lists[1]):
        raise ValueError(f"{len(lists[1])} tokens and {len(lists[0])} log-probabilities")
    length = len(lists[0]) if lists else 0
    return [
        _entry(_placeholder(piece), _unescaped(piece) if _placeholder(piece) is None else None, value)
        for piece, value in zip(pieces or [None] * length, values or [None] * length, strict=True)
    ]


def _described(entry: object) -> TokenEntry:
    """Read ``{id, token, bytes, logprob}``; llama.cpp gives a probability where temperature and truncation count."""
    fields = _mapping(entry)
    value, text, data = fields.get("logprob"), fields.get("token"), fields.get("bytes")
    if value is None and (probability := fields.get("prob")) is not None:
        value = math.log(probability) if isinstance(probability, (int, float)) and probability > 0 else -math.inf
    if isinstance(data, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in data):
        text = bytes(data).decode(errors="replace")
    return _entry(fields.get("id", _placeholder(text)), text, value)


def _entry(token: object, text: object, value: object) -> TokenEntry:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value)):
        raise ValueError(f"the log-probability {value!r}")
    return TokenEntry(
        None if token is None else _integer(token, "token id"),
        text if isinstance(text, str) else None,
        math.nan if value is None else float(value),
    )


def _placeholder(piece: object) -> int | None:
    """Return the id of ``token_id:N``, which vLLM writes in the place of a token's text if it is asked to."""
    number = piece.removeprefix("token_id:") if isinstance(piece, str) and piece.startswith("token_id:") else ""
    return int(number) if number.isdecimal() and len(number) < 12 else None


def _unescaped(piece: object) -> object:
    r"""Return the text of ``bytes:\xe2\x9d``, as OpenAI writes a part of a letter."""
    if isinstance(piece, str) and re.fullmatch(r"bytes:(\\x[0-9a-f]{2})+", piece):
        return bytes.fromhex(piece.removeprefix("bytes:").replace("\\x", "")).decode(errors="replace")
    return piece


def _integer(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"the {what} {str(value)[:40]!r}")
    return value


def _count(value: object) -> int | None:
    return None if value is None else _integer(value, "number of tokens")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]!r} where a list belongs")
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(value: object, of: type = Mapping) -> Any:
    """Return the first of several things of a kind, or the only one."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], of) else value


@dataclass
class ServerSampler:
    """Requests of one completion each, several at a time, retried with increasing delays.

    The prompt is sent as token ids where the server accepts them, and otherwise as text; an answer that counts a
    different number of prompt tokens is refused. Token ids of the completion come from the server where it returns
    them, else from the text of each token, else from the whole text, tokenised again; each completion's
    ``token_source`` states which, and is ``mismatch`` where anything that the server says speaks against the ids.

    A malformed answer is requested again, first with the same seed and then with others, as ``sampler_seed`` records.
    Redirects are refused: requests, with their prompts and key, go to ``base_url`` alone.
    """

    policy: Policy  # its tokenizer and stop tokens are used; its weights are not
    base_url: str  # the server's address, up to and including /v1
    model: str | None = None  # the model's name on the server; may be None where the server has only one model
    # "model" where the server's log-probabilities are those of the model at temperature 1 whatever the settings (the
    # default of vLLM and llama.cpp); they are dropped where the settings differ from that. "sampled" where they are
    # those of the distribution from which tokens are drawn (vllm serve --logprobs-mode processed_logprobs)
    logprobs_of: str = "model"
    concurrency: int = 8
    timeout_seconds: float = 600.0
    max_retries: int = 5
    api_key: str | None = field(default=None, repr=False)  # the key itself; None for that of the environment
    api_key_env: str = API_KEY_ENV  # the environment variable that holds the key; local servers need none
    kept: dict[str, Completion] = field(default_factory=dict, repr=False)
    own_seeds = True
    implements = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

    def __post_init__(self) -> None:
        self.base_url = self.base_url or os.environ.get(BASE_URL_ENV, "")
        if not self.base_url:
            raise ValueError("base_url is missing: give the server's address, such as http://localhost:8000/v1")
        if secret := written_secret({"base_url": self.base_url}):
            raise ValueError(secret)
        if self.api_key_env != API_KEY_ENV and not os.environ.get(self.api_key_env):
            raise ValueError(
                f"api_key_env is {self.api_key_env!r}, which is not in the environment: export the key under that name"
            )
        if self.logprobs_of not in ("model", "sampled"):
            raise ValueError(f"logprobs_of is {self.logprobs_of!r}: it must be model or sampled")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}: it must be at least 1")
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is {self.timeout_seconds}: it must be above 0")
        if self.max_retries < 0:
            raise ValueError(f"max_retries is {self.max_retries}: it must be 0 or more")

    def describe(self) -> dict[str, object]:
        """Return the engine, the server, its model and its dialect; the last two are requested from the server."""
        return {
            "engine": "openai",
            "base_url": self.base_url,
            "model": self.served_model,
            "dialect": self.dialect.name,
            "logprobs_of": "sampled" if self.dialect.native else self.logprobs_of,
        }

    def draw(
        self,
        prompts: Sequence[list[int]],
        settings: SamplerSettings,
        seeds: Sequence[int],
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> list[Completion]:
        """Draw one completion for each prompt, see :class:`gradstats.sampling.sampler.Sampler`."""
        sent = [self._prompt(prompt) for prompt in prompts]
        fields = dict(self.dialect.fields(settings, self._stop_tokens))
        keep_logprobs = self._keep_logprobs(settings)
        about = [settings.model_dump(), self.describe()]
        requests = [digest([prompt, int(seed), about]) for prompt, seed in zip(prompts, seeds, strict=False)]
        done = {row: self.kept[request] for row, request in enumerate(requests) if request in self.kept}
        for completion in done.values():
            on_tokens(len(completion.tokens))
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="completions")
        try:
            waiting = {
                pool.submit(
                    self._complete, sent[row], prompts[row], settings.max_new_tokens, int(seeds[row]), fields
                ): row
                for row in range(len(prompts))
                if row not in done
            }
            for future in as_completed(waiting):
                completion = done[waiting[future]] = self._kept(future, keep_logprobs, requests[waiting[future]])
                on_tokens(len(completion.tokens))
        except BaseException:
            for future, row in waiting.items():
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._kept(future, keep_logprobs, requests[row])
            raise
        finally:
            # Also on an error or Ctrl-C: cancel the requests that have not been sent.
            pool.shutdown(wait=False, cancel_futures=True)
        drawn = [done[row] for row in range(len(prompts))]
        if n_other := sum(completion.seed is not None for completion in drawn):
            warnings.warn(
                f"{n_other} of {len(drawn)} completions have other seeds than planned, which sampler_seed records: the "
                f"answer of the server at {self.base_url} to the planned ones was malformed twice",
                UserWarning,
                stacklevel=4,
            )
        return drawn

    def _kept(self, future: Future[Completion], keep_logprobs: bool, request: str) -> Completion:
        """Keep an answer that has arrived, and return it."""
        completion = future.result()
        self.kept[request] = completion if keep_logprobs else replace(completion, logprobs=None)
        return self.kept[request]

    @cached_property
    def served_model(self) -> str:
        """The model's name: the one given, or the only one that the server lists."""
        if self.model is not None:
            return self.model
        with self._failures():
            answer = self._json(self._client.get("/models", cast_to=object))
        entries = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(_mapping(entry).get("id"), str) for entry in entries):
            raise MalformedAnswerError(
                f"the server at {self.base_url} does not list its models ({str(answer)[:80]!r}): name the one to use "
                "(sampler_options: model)"
            )
        listed = [entry["id"] for entry in entries]
        if len(listed) != 1:
            names = f"lists {', '.join(listed[:5])}" if listed else "lists no model"
            raise ValueError(f"the server at {self.base_url} {names}: name the one to use (sampler_options: model)")
        return listed[0]

    @cached_property
    def dialect(self) -> Dialect:
        """The first form of a request that the server accepts, found by requesting one token."""
        tokens = list(self.policy.tokenizer("1 + 1 =")["input_ids"])
        refused: Exception | None = None
        for dialect in DIALECTS:
            try:
                answer = self._try(dialect, tokens)
            except (ValueError, ServerFailureError) as error:
                refused = error
                continue
            return _LLAMA_CPP if dialect.takes_tokens and self._is_llama_cpp(answer, tokens) else dialect
        assert refused is not None
        raise refused

    def _try(self, dialect: Dialect, tokens: list[int]) -> object:
        prompt = tokens if dialect.takes_tokens else self.policy.tokenizer.decode(tokens)
        fields = dialect.fields(SamplerSettings(1), self._stop_tokens)
        # Some servers report a request that they do not understand as a server error: no retries.
        return self._ask(dialect, prompt, 1, 0, fields, max_retries=0)

    def _is_llama_cpp(self, answer: object, tokens: list[int]) -> bool:
        """Whether an answer has the form of llama.cpp's server, and the server its own API."""
        body = _mapping(answer)
        content = _mapping(_mapping(_first(body.get("choices"))).get("logprobs")).get("content")
        # A first token that is a part of a letter has no entry yet.
        if not {"stop_type", "timings"} & body.keys() and not isinstance(content, list):
            return False
        try:
            return bool(_mapping(self._try(_LLAMA_CPP, tokens)).get("tokens"))
        except (ValueError, ConnectionError):
            return False

    def _ask(
        self,
        dialect: Dialect,
        prompt: list[int] | str,
        max_tokens: int,
        seed: int,
        fields: Mapping[str, object],
        max_retries: int | None = None,
    ) -> object:
        """Return the answer to a request, as plain JSON: each server adds fields of its own."""
        stated = {"model": self.served_model, "prompt": prompt, "max_tokens": max_tokens, "seed": seed, **fields}
        stated |= stated.pop("extra_body", {})
        path = f"{self.base_url.rstrip('/').removesuffix('/v1')}/completion" if dialect.native else "/completions"
        retries = self.max_retries if max_retries is None else max_retries
        with self._failures():
            return self._json(self._client.with_options(max_retries=retries).post(path, cast_to=object, body=stated))

    def _json(self, answer: object) -> object:
        """Return the answer of the client, which gives a body whose type is not JSON as text."""
        if not isinstance(answer, str):
            return answer
        if answer.lstrip()[:1] == "<":
            raise ValueError(
                f"the server at {self.base_url} answered with a web page: base_url is the address of its API, which "
                f"most servers have at {self.base_url.rstrip('/').removesuffix('/v1')}/v1"
            )
        return json.loads(answer)

    def _complete(
        self, sent: list[int] | str, prompt: list[int], max_tokens: int, seed: int, fields: Mapping[str, object]
    ) -> Completion:
        """Return one completion; a malformed answer is requested again, as the client does after failures."""
        for attempt in range(self.max_retries + 1):
            # A fault that passes is repeated as it was. One that belongs to what the seed draws would stay for ever.
            used = seed if attempt < 2 else int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])
            try:
                answer = self._ask(self.dialect, sent, max_tokens, used, fields)
                completion = self._plausible(self._read(answer, prompt, max_tokens), max_tokens)
                return completion if used == seed else replace(completion, seed=used)
            except MalformedAnswerError:
                if attempt == self.max_retries:
                    raise
                time.sleep(min(0.5 * 2**attempt, _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")

    def _read(self, body: object, prompt: list[int], max_tokens: int) -> Completion:
        try:
            answer = _read_answer(body)
        except ValueError as error:
            raise self._malformed(f"{error}, {self.max_retries + 1} times ({str(body)[:80]!r})") from error
        if answer.prompt not in (None, len(prompt), prompt):
            counts = f"{answer.prompt} tokens in" if isinstance(answer.prompt, int) else "other tokens of"
            raise ValueError(
                f"the server at {self.base_url} counts {counts} a prompt of {len(prompt)}: it uses "
                "a different tokenizer, or adds a start token; serve the policy's tokenizer, with a "
                "server that accepts token ids"
            )
        self._refuse_oversized(answer, max_tokens)
        tokens, logprobs, source = self._tokens(answer)
        if source in ("engine", "pieces") and not is_text_of(self.policy.tokenizer, tokens, answer.text):
            raise self._malformed(
                f"the text {answer.text[:40]!r} and with token ids of another text "
                f"({self.policy.tokenizer.decode(tokens)[:40]!r}): it serves another tokenizer, or is at fault"
            )
        ended = bool(tokens) and tokens[-1] in self._stop_tokens
        end = answer.ended_by if answer.ended_by in self._stop_tokens else self._stop_token
        if answer.finish_reason == "stop" and not ended and end is not None:
            tokens = [*tokens, end]
            logprobs = None if logprobs is None else [*logprobs, float("nan")]
        if not tokens:  # only special tokens, which servers omit from the text
            tokens, logprobs, source = [self._stop_token or 0], None, "mismatch"
        return Completion(tokens, logprobs, answer.finish_reason, source)

    def _malformed(self, what: str) -> MalformedAnswerError:
        return MalformedAnswerError(
            f"the server at {self.base_url} answered with {what}; see its log; finished shards are kept"
        )

    def _plausible(self, completion: Completion, max_tokens: int) -> Completion:
        """Refuse tokens that no server of this policy can have drawn."""
        values = completion.logprobs or []
        faults = [
            f"the log-probability {value}" for value in values if value > _ROUNDING or value < _LEAST_LOGPROB
        ] + self._impossible(completion.tokens)
        # A text that is tokenised again may have more tokens than were drawn.
        if len(completion.tokens) > max_tokens + 1 and completion.token_source in ("engine", "pieces"):
            faults.append(f"{len(completion.tokens)} tokens where at most {max_tokens} were requested")
        if faults:
            raise self._malformed(f"{faults[0]}: it serves another model, or is faulty")
        return completion

    def _impossible(self, tokens: Iterable[int]) -> list[str]:
        size = vocabulary_size(self.policy.model)
        return [f"the token id {token}" for token in tokens if not 0 <= token < size]

    def _refuse_oversized(self, answer: _ServerAnswer, max_tokens: int) -> None:
        """Refuse ids that cannot be decoded, and more than a completion can be, before any of it is tokenised."""
        listed = [*(answer.token_ids or ()), *(entry.token for entry in answer.entries if entry.token is not None)]
        faults = self._impossible(listed)
        n_tokens = max(len(answer.token_ids or ()), len(answer.entries))
        if n_tokens > max_tokens + 1:
            faults.append(f"{n_tokens} tokens where at most {max_tokens} were requested")
        texts = [answer.text, "".join(entry.text or "" for entry in answer.entries)]
        longest = (max_tokens + 1) * self._longest_token
        faults += [
            f"a text of {len(text):,} characters, which {max_tokens} tokens cannot have"
            for text in texts
            if len(text) > longest
        ]
        if faults:
            raise self._malformed(f"{faults[0]}: it serves another model, or is faulty")

    @cached_property
    def _longest_token(self) -> int:
        """A bound of the characters of a token: bytes count as characters in a vocabulary, and a space may be added."""
        return 1 + max(map(len, self.policy.tokenizer.get_vocab()))

    def _tokens(self, answer: _ServerAnswer) -> tuple[list[int], list[float] | None, str]:
        """Return the token ids of an answer, their log-probabilities, and where the ids come from."""
        if answer.token_ids is not None:
            return answer.token_ids, self._placed(answer.token_ids, answer.entries), "engine"
        # Servers differ in whether they count, and list, the token that ended the completion.
        counts = None
        if answer.count is not None:
            spread = (0, -1, 1) if answer.finish_reason == "stop" else (0,)
            counts = [answer.count + more for more in spread]
        if answer.entries and all(entry.token is not None for entry in answer.entries):
            return self._from_entries(answer, counts)
        pieces = [entry.text for entry in answer.entries if entry.text is not None]
        restored = restore_tokens(
            self.policy.tokenizer,
            answer.text,
            pieces=pieces if pieces and len(pieces) == len(answer.entries) else None,
            counts=counts,
        )
        logprobs = [entry.logprob for entry in answer.entries]
        known = restored.source == "pieces" and not all(map(math.isnan, logprobs))
        return restored.tokens, logprobs if known else None, restored.source

    def _from_entries(
        self, answer: _ServerAnswer, counts: Sequence[int] | None
    ) -> tuple[list[int], list[float] | None, str]:
        """Return the ids of entries, of which llama.cpp gives only the last where several tokens make one letter."""
        tokenizer = self.policy.tokenizer
        tokens: list[int] = []
        logprobs: list[float] = []
        for entry in answer.entries:
            assert entry.token is not None
            parts, text = [entry.token], "".join((entry.text or "").split())
            if text and not is_text_of(tokenizer, parts, text):
                own = "".join(tokenizer.decode(parts).replace("\ufffd", "").split())
                if not text.endswith(own):
                    raise self._malformed(
                        f"the token id {entry.token} for {text[:40]!r}, which is that of {own[:40]!r} in the policy's "
                        "tokenizer: it serves another tokenizer, or is at fault"
                    )
                parts = list(tokenizer(entry.text, add_special_tokens=False)["input_ids"])
            tokens += parts
            logprobs += [entry.logprob] if len(parts) == 1 else [math.nan] * len(parts)
        restored = len(tokens) > len(answer.entries)  # some by tokenising the text of an entry
        last = {entry.token for entry in answer.entries} <= set(tokens)
        if not is_text_of(tokenizer, tokens, answer.text):
            tokens, last = list(tokenizer(answer.text, add_special_tokens=False)["input_ids"]), False
        if not last or (counts is None and restored) or (counts is not None and len(tokens) not in counts):
            return tokens, None, "mismatch"
        return tokens, None if all(map(math.isnan, logprobs)) else logprobs, "text" if restored else "engine"

    def _placed(self, tokens: list[int], entries: list[TokenEntry]) -> list[float] | None:
        """Return the log-probability of each token; None where the entries cannot be told to be these tokens'."""
        if len(entries) == len(tokens):
            if any(entry.token not in (None, token) for entry, token in zip(entries, tokens, strict=True)):
                raise self._malformed("log-probabilities of other tokens than those that it lists: it is at fault")
            found = [entry.logprob for entry in entries]
            return None if all(map(math.isnan, found)) else found
        if not entries or any(entry.token is None for entry in entries):
            return None
        # llama.cpp's own API: one entry where several tokens make a letter, with the last one's log-probability.
        found, start = [math.nan] * len(tokens), 0
        for entry in entries:
            for place in range(start, len(tokens)):
                joined = tokens[start : place + 1]
                if tokens[place] == entry.token and is_text_of(self.policy.tokenizer, joined, entry.text or ""):
                    found[place], start = entry.logprob, place + 1
                    break
            else:
                return None
        return found

    def _prompt(self, tokens: list[int]) -> list[int] | str:
        if self.dialect.takes_tokens:
            return tokens
        text = self.policy.tokenizer.decode(tokens)
        if list(self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]) != tokens:
            raise ValueError(
                f"the server at {self.base_url} accepts prompts only as text, and tokenising the text of "
                f"the prompt {text[:60]!r} does not restore its tokens: use a server that accepts token ids"
            )
        return text

    def _keep_logprobs(self, settings: SamplerSettings) -> bool:
        departures = settings.departures(1.0)
        if self.dialect.native or self.logprobs_of == "sampled" or not departures:
            return True
        warnings.warn(
            "the server's log-probabilities are those of the model at temperature 1, not of the sampling distribution "
            f"({', '.join(departures)}), and are not kept: serve with vllm --logprobs-mode processed_logprobs and set "
            'logprobs_of="sampled", or serve with llama.cpp',
            UserWarning,
            stacklevel=4,
        )
        return False

    @cached_property
    def _stop_tokens(self) -> list[int]:
        return stop_token_ids(self.policy)

    @property
    def _stop_token(self) -> int | None:
        """The token assumed to have ended a completion where the server reports only that it ended."""
        return usual_stop_token(self.policy)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn errors of the client library into ones that state the cause and the remedy."""
        openai = self._openai
        kept = "finished shards are kept, and the same command resumes from them"
        try:
            yield
        except openai.APITimeoutError as error:
            raise TimeoutError(
                f"the server at {self.base_url} did not answer within {self.timeout_seconds:g} s, "
                f"{self.max_retries + 1} times: ask for fewer completions at once (concurrency) or wait longer "
                f"(timeout_seconds); {kept}"
            ) from error
        except openai.APIConnectionError as error:
            raise ConnectionError(
                f"no server can be reached at {self.base_url} ({error.__cause__ or error}): start it, or correct "
                f"base_url; {kept}"
            ) from error
        except openai.APIStatusError as error:
            reason = " ".join(str(error).split())[:200]
            if 300 <= error.status_code < 400:
                there = str(error.response.headers.get("location"))[:200]
                raise ValueError(
                    f"the server at {self.base_url} redirects to {there!r}, where neither prompts nor a key are sent: "
                    "if you trust that server, give its address as base_url"
                ) from error
            if error.status_code in _REFUSED:
                hint = "" if self.base_url.rstrip("/").endswith("/v1") else "; most servers have base_url end in /v1"
                raise ValueError(f"the server at {self.base_url} refuses the request: {reason}{hint}") from error
            raise ServerFailureError(
                f"the server at {self.base_url} answered {error.status_code}, {self.max_retries + 1} times: {reason}; "
                f"see its log; {kept}"
            ) from error
        except (openai.APIError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedAnswerError(
                f"the server at {self.base_url} sent an answer that is not of the completions API ({error}); {kept}"
            ) from error

    @cached_property
    def _openai(self) -> Any:
        try:
            import openai
        except ImportError as error:
            raise ImportError(
                "sampling from a server needs the openai library: pip install 'gradstats[openai]'"
            ) from error
        return openai

    @cached_property
    def _client(self) -> Any:
        # The client requires a key; local servers accept any.
        key = self.api_key or os.environ.get(self.api_key_env) or "none"
        client = self._openai.OpenAI(
            base_url=self.base_url,
            api_key=key,
            timeout=self.timeout_seconds,
            max_retries=self.max_retries,
            http_client=client_until(self._openai.DefaultHttpxClient, self.timeout_seconds),
        )
        weakref.finalize(self, client.close)
        return client
