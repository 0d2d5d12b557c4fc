"""Sampling from servers of the OpenAI completions API (extra ``openai``), each in its own dialect."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

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


#: In the order in which they are tried: prompts as token ids first, all settings before a subset.
DIALECTS = (
    Dialect("extended, prompt as token ids", True, _extended),
    Dialect("extended, prompt as text", False, _extended),
    Dialect("transformers serve", False, _transformers),
    Dialect("standard, prompt as token ids", True, _standard),
    Dialect("standard, prompt as text", False, _standard),
)


# A log-probability may be above 0 by this much, by rounding.
_ROUNDING = 1e-3
_REFUSED = (400, 404, 415, 422)
_LONGEST_PAUSE = 8.0  # seconds, as the client library's own


class ServerFailureError(ConnectionError):
    """A server answered with an error status."""


class MalformedAnswerError(ConnectionError):
    """A server's answer is not a completion."""


@dataclass
class ServerSampler:
    """Requests of one completion each, several at a time, retried with increasing delays.

    The prompt is sent as token ids where the server accepts them, and otherwise as text; an answer that counts a
    different number of prompt tokens is refused. Token ids of the completion come from the server where it returns
    them, else from the text of each token, else from the whole text, tokenised again; each completion's
    ``token_source`` states which.
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
    api_key: str | None = None  # the key, or None to use OPENAI_API_KEY from the environment; local servers need none
    kept: dict[str, Completion] = field(default_factory=dict, repr=False)
    own_seeds = True
    implements = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

    def __post_init__(self) -> None:
        if not self.base_url:
            raise ValueError("base_url is missing: give the server's address, such as http://localhost:8000/v1")
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
            "logprobs_of": self.logprobs_of,
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
        return [done[row] for row in range(len(prompts))]

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
            listed = [entry.id for entry in self._client.models.list()]
        if len(listed) != 1:
            names = f"lists {', '.join(listed[:5])}" if listed else "lists no model"
            raise ValueError(f"the server at {self.base_url} {names}: name the one to use (sampler_options: model)")
        return listed[0]

    @cached_property
    def dialect(self) -> Dialect:
        """The first form of a request that the server accepts, found by requesting one token."""
        tokens = list(self.policy.tokenizer("1 + 1 =")["input_ids"])
        settings = SamplerSettings(1)
        refused: Exception | None = None
        for dialect in DIALECTS:
            prompt = tokens if dialect.takes_tokens else self.policy.tokenizer.decode(tokens)
            try:
                with self._failures():
                    # Some servers report a request that they do not understand as a server error: no retries.
                    self._ask(prompt, 1, 0, dialect.fields(settings, self._stop_tokens), max_retries=0)
                return dialect
            except (ValueError, ServerFailureError) as error:
                refused = error
        assert refused is not None
        raise refused

    def _ask(
        self,
        prompt: list[int] | str,
        max_tokens: int,
        seed: int,
        fields: Mapping[str, object],
        max_retries: int | None = None,
    ) -> object:
        retries = self.max_retries if max_retries is None else max_retries
        return self._client.with_options(max_retries=retries).completions.create(
            model=self.served_model, prompt=prompt, max_tokens=max_tokens, seed=seed, **fields
        )

    def _complete(
        self, sent: list[int] | str, prompt: list[int], max_tokens: int, seed: int, fields: Mapping[str, object]
    ) -> Completion:
        """Return one completion; a malformed answer is requested again, as the client does after failures."""
        for attempt in range(self.max_retries + 1):
            try:
                with self._failures():
                    answer = self._ask(sent, max_tokens, seed, fields)
                completion = self._plausible(self._read(answer, prompt), max_tokens)
                self._refuse_other_text(completion, answer)
                return completion
            except MalformedAnswerError:
                if attempt == self.max_retries:
                    raise
                time.sleep(min(0.5 * 2**attempt, _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")

    def _read(self, answer: object, prompt: list[int]) -> Completion:
        choices = getattr(answer, "choices", None)
        if not choices:
            raise MalformedAnswerError(
                f"the server at {self.base_url} answered with {0 if choices == [] else 'no'} completions where 1 was "
                f"requested, {self.max_retries + 1} times ({str(answer)[:80]!r}): see its log; finished shards are kept"
            )
        choice, usage = choices[0], getattr(answer, "usage", None)
        text, reason = getattr(choice, "text", None), getattr(choice, "finish_reason", None)
        if not isinstance(text, str) or reason not in ("stop", "length"):
            raise MalformedAnswerError(
                f"the server at {self.base_url} answered with a completion whose text is {str(text)[:40]!r} and whose "
                f"finish_reason is {reason!r}: it must be stop or length; finished shards are kept"
            )
        counted = getattr(usage, "prompt_tokens", None)
        if counted is not None and counted != len(prompt):
            raise ValueError(
                f"the server at {self.base_url} counts {counted} tokens in a prompt of {len(prompt)}: it uses "
                "a different tokenizer, or adds a start token; serve the policy's tokenizer, with a "
                "server that accepts token ids"
            )
        tokens, logprobs, source = self._tokens(choice, text, reason, getattr(usage, "completion_tokens", None))
        ended = bool(tokens) and tokens[-1] in self._stop_tokens
        if reason == "stop" and not ended and self._stop_token is not None:
            tokens = [*tokens, self._stop_token]
            logprobs = None if logprobs is None else [*logprobs, float("nan")]
        if not tokens:  # only special tokens, which servers omit from the text
            tokens, logprobs, source = [self._stop_token or 0], None, "mismatch"
        return Completion(tokens, logprobs, reason, source)

    def _plausible(self, completion: Completion, max_tokens: int) -> Completion:
        """Refuse tokens that no server of this policy can have drawn."""
        size = vocabulary_size(self.policy.model)
        faults = [f"the token id {token}" for token in completion.tokens if not 0 <= token < size]
        values = completion.logprobs or []
        faults += [f"the log-probability {value}" for value in values if value > _ROUNDING or math.isinf(value)]
        if len(completion.tokens) > max_tokens + 1:
            faults.append(f"{len(completion.tokens)} tokens where at most {max_tokens} were requested")
        if faults:
            raise MalformedAnswerError(
                f"the server at {self.base_url} answered with {faults[0]}: it serves another model, or is faulty; "
                "finished shards are kept"
            )
        return completion

    def _refuse_other_text(self, completion: Completion, answer: object) -> None:
        """Refuse token ids whose text is not the text of the answer."""
        text = getattr(answer, "choices")[0].text  # noqa: B009  # the client library's types are not imported
        if completion.token_source == "engine" and not is_text_of(self.policy.tokenizer, completion.tokens, text):
            raise MalformedAnswerError(
                f"the server at {self.base_url} answered with the text {text[:40]!r} and with token ids of another text"
                f" ({self.policy.tokenizer.decode(completion.tokens)[:40]!r}): it serves another tokenizer, or is at "
                "fault; finished shards are kept"
            )

    def _tokens(
        self, choice: object, text: str, reason: str, count: int | None
    ) -> tuple[list[int], list[float] | None, str]:
        reported = getattr(choice, "logprobs", None)
        values = getattr(reported, "token_logprobs", None)
        logprobs = None if values is None else [float("nan") if value is None else float(value) for value in values]
        ids = getattr(choice, "token_ids", None)
        if ids is not None:
            tokens, source = [int(token) for token in ids], "engine"
        else:
            # Servers differ in whether they count the token that ended the completion.
            counts = None if count is None else (count, count - 1) if reason == "stop" else (count,)
            pieces = getattr(reported, "tokens", None)
            restored = restore_tokens(self.policy.tokenizer, text, pieces=pieces, counts=counts)
            tokens, source = restored.tokens, restored.source
        if logprobs is not None and (len(logprobs) != len(tokens) or source in ("text", "mismatch")):
            logprobs = None
        return tokens, logprobs, source

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
        if self.logprobs_of == "sampled" or not departures:
            return True
        warnings.warn(
            "the server's log-probabilities are those of the model at temperature 1, not of the sampling distribution "
            f"({', '.join(departures)}), and are not kept: serve with vllm --logprobs-mode processed_logprobs and set "
            'logprobs_of="sampled"',
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
            if error.status_code in _REFUSED:
                raise ValueError(f"the server at {self.base_url} refuses the request: {reason}") from error
            raise ServerFailureError(
                f"the server at {self.base_url} answered {error.status_code}, {self.max_retries + 1} times: {reason}; "
                f"see its log; {kept}"
            ) from error
        except (openai.APIError, json.JSONDecodeError) as error:
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
        key = self.api_key or os.environ.get("OPENAI_API_KEY") or "none"
        return self._openai.OpenAI(
            base_url=self.base_url,
            api_key=key,
            timeout=self.timeout_seconds,
            max_retries=self.max_retries,
            http_client=client_until(self._openai.DefaultHttpxClient, self.timeout_seconds),
        )
