"""The interface of samplers, with their settings, deadlines and stop tokens."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gradstats.config.options import PositiveFloat, of_type
from gradstats.config.sections import DrawingSection
from gradstats.config.validation import setting
from gradstats.policy.policy import Policy
from gradstats.system.chat_template import end_tokens


class SamplerSettings(DrawingSection):
    """How a sampler draws: all settled, by default at temperature 1."""

    temperature: PositiveFloat = setting(  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
        1.0, "the sampler's temperature.", "samples, reshapes"
    )

    def __init__(self, max_new_tokens: int, **settings: Any) -> None:
        super().__init__(max_new_tokens=max_new_tokens, **settings)

    @classmethod
    def of(cls, section: DrawingSection, policy_temperature: float) -> SamplerSettings:
        """Return the settings of a section; one that states no temperature draws at the policy's."""
        settings: dict[str, Any] = section.model_dump(include=set(cls.model_fields))
        settings["temperature"] = section.temperature or policy_temperature
        return cls(**settings)

    def capped(self, max_new_tokens: int) -> SamplerSettings:
        """Return the settings with another cap."""
        return self.model_copy(update={"max_new_tokens": max_new_tokens})

    def _neutral(self) -> dict[str, Any]:
        return {name: type(self).model_fields[name].default for name in self.fields_that("reshapes")}

    def greedy(self) -> SamplerSettings:
        """Return the settings that always take the likeliest token: only one token is kept."""
        return self.model_copy(update=self._neutral() | {"top_k": 1})

    def departures(self, policy_temperature: float) -> list[str]:
        """Return the settings that make samples off-policy for a score at ``policy_temperature``, as ``name=value``."""
        neutral = self._neutral() | {"temperature": policy_temperature}
        return [f"{name}={getattr(self, name)}" for name, value in neutral.items() if getattr(self, name) != value]

    def refuse_unknown_to(self, sampler: object) -> None:
        """Refuse settings that an engine would pass over."""
        implemented = getattr(sampler, "implements", self.fields_that("reshapes"))
        for name, value in self._neutral().items():
            if name not in implemented and getattr(self, name) != value:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, which {of_type(sampler)} does not implement: leave it "
                    f'at {value}, or use sampler "transformers"'
                )

    def overridden(self, generation_config: Any) -> dict[str, object]:
        """Return what the model's ``generation_config`` would have changed, had it been used."""
        if generation_config is None:
            return {}
        used = self.model_dump() | {"do_sample": True}
        config = {key: value for key, value in generation_config.to_diff_dict().items() if key not in _NOT_SAMPLING}
        return {key: value for key, value in config.items() if value is not None and used.get(key) != value}


# Entries of a generation config that do not change the distribution that is sampled.
_NOT_SAMPLING = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version",
    "_from_model_config", "use_cache", "cache_implementation", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "max_length", "max_new_tokens", "do_sample",
}  # fmt: skip


_TOO_LATE = "the whole answer took longer than its limit"


def client_until(client: type[Any], seconds: float) -> Any:
    """Return an HTTP client that follows no redirect, and whose answers end within a time, however they arrive."""
    base = next(one for one in client.__mro__ if one.__name__ == "Client")
    httpx: Any = importlib.import_module(base.__module__.partition(".")[0])

    class UntilDeadline(httpx.SyncByteStream):
        def __init__(self, stream: Any, request: Any, end: float) -> None:
            self._stream, self._request, self._end = stream, request, end

        def __iter__(self) -> Iterator[bytes]:
            for part in self._stream:
                if time.monotonic() > self._end:
                    raise httpx.ReadTimeout(_TOO_LATE, request=self._request)
                yield part

        def close(self) -> None:
            self._stream.close()

    class DeadlineTransport(httpx.HTTPTransport):
        def handle_request(self, request: Any) -> Any:
            end = time.monotonic() + seconds
            # The headers are read within this call, with a timeout for each byte: a thread waits for them.
            waiting = ThreadPoolExecutor(max_workers=1)
            headers = waiting.submit(super().handle_request, request)
            waiting.shutdown(wait=False)
            try:
                response = headers.result(timeout=seconds)
            except TimeoutError:
                self.close()  # the thread ends at its next byte
                raise httpx.ReadTimeout(_TOO_LATE, request=request) from None
            response.stream = UntilDeadline(response.stream, request, end)
            return response

    # A redirect would carry the request, with its prompts, to another address.
    return client(transport=DeadlineTransport(), follow_redirects=False)


def stop_token_ids(policy: Policy) -> list[int]:
    """Return the tokens that end a completion, in ascending order."""
    return sorted(_end_tokens(policy))


def usual_stop_token(policy: Policy) -> int | None:
    """Return the token taken to have ended a completion of which only that it ended is known."""
    return next(iter(_end_tokens(policy)), None)


def _end_tokens(policy: Policy) -> list[int]:
    return end_tokens(policy.tokenizer, getattr(policy.model.generation_config, "eos_token_id", None))


@dataclass(frozen=True)
class Completion:
    """One sampled completion."""

    tokens: list[int]  # token ids, the stop token included where one was drawn
    # log-probability of each token under the distribution from which it was drawn, NaN for a token whose
    # log-probability the engine does not report; None where it reports none
    logprobs: list[float] | None
    finish_reason: str  # "stop" or "length"
    token_source: str = "engine"
    seed: int | None = None  # where another one was used than the plan's


@runtime_checkable
class Sampler(Protocol):
    """An engine that draws completions of prompts given as token ids.

    One that knows only some of the settings that reshape a distribution names them in ``implements``; others are then
    refused.
    """

    own_seeds: bool

    def describe(self) -> dict[str, object]:
        """Return the description of the engine in a rollouts file, next to the settings; ``engine`` is its name."""
        ...

    def draw(
        self,
        prompts: Sequence[list[int]],
        settings: SamplerSettings,
        seeds: Sequence[int],
        on_tokens: Callable[[int], None],
    ) -> list[Completion]:
        """Draw one completion for each prompt."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A sampler with an engine of its own, which holds memory until it is closed."""

    def close(self) -> None:
        """Stop the engine; the next draw starts another."""
        ...


@runtime_checkable
class KeepsAnswers(Protocol):
    """A sampler whose completions cost money or time: it keeps them by request until their batch is complete."""

    # digest of a request, with its prompt, seed and settings → the completion that answered it
    kept: dict[str, Completion]
