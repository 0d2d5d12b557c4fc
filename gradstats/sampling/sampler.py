"""What every sampler does, whatever engine draws the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gradstats.sampling.settings import SamplerSettings


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Attributes:
        tokens: token ids, the stop token included where one was drawn.
        logprobs: log-probability of each token under the distribution it was drawn from, NaN for a token of which the
            engine does not tell it; None where it tells none.
        finish_reason: "stop" or "length".
        token_source: where the ids come from, one of :data:`gradstats.rollouts.table.TOKEN_SOURCES`.
    """

    tokens: list[int]
    logprobs: list[float] | None
    finish_reason: str
    token_source: str = "engine"


@runtime_checkable
class Sampler(Protocol):
    """An engine that draws completions of prompts given as token ids.

    Attributes:
        own_seeds: whether every completion is drawn from its own seed; otherwise the first seeds the whole batch.
    """

    own_seeds: bool

    def describe(self) -> dict[str, Any]:
        """What a rollouts file records of the engine, beside the settings; ``engine`` names it."""
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
            prompts: token ids, one list per completion wanted (a prompt is repeated to draw from it again).
            settings: the sampler's parameters.
            seeds: one seed per completion; the same seeds give the same completions, as far as the engine can.
            on_tokens: called with numbers of tokens as they are drawn.

        Returns:
            Completions in the order of ``prompts``.
        """
        ...
