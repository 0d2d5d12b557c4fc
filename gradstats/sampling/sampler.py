"""The interface of samplers: engines that draw completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gradstats.sampling.settings import SamplerSettings


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Attributes:
        tokens: token ids, the stop token included where one was drawn.
        logprobs: log-probability of each token under the distribution from which it was drawn, NaN for a token whose
            log-probability the engine does not report; None where it reports none.
        finish_reason: "stop" or "length".
        token_source: the origin of the ids, one of :data:`gradstats.rollouts.table.TOKEN_SOURCES`.
    """

    tokens: list[int]
    logprobs: list[float] | None
    finish_reason: str
    token_source: str = "engine"


@runtime_checkable
class Sampler(Protocol):
    """An engine that draws completions of prompts given as token ids.

    Attributes:
        own_seeds: whether every completion is drawn with its own seed; otherwise the first seed is used for the batch.
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
        """Draw one completion for each prompt.

        Args:
            prompts: token ids, one list per completion (repeat a prompt to draw several completions from it).
            settings: the sampler's parameters.
            seeds: one seed per completion; the same seeds give the same completions, where the engine allows.
            on_tokens: called with the number of new tokens as they are drawn.

        Returns:
            Completions in the order of ``prompts``.
        """
        ...


@runtime_checkable
class KeepsAnswers(Protocol):
    """A sampler whose completions cost money or time: it keeps them by request until their batch is complete.

    Attributes:
        kept: digest of a request, with its prompt, seed and settings → the completion that answered it.
    """

    kept: dict[str, Completion]
