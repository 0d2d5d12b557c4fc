"""The samplers by name, each with its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradstats.policy.model import refuse_weights_that_are_not_finite
from gradstats.policy.policy import Policy
from gradstats.sampling.sampler import Sampler

#: Name → what it is; ``gradstats.sampling`` takes these as ``sampler``.
SAMPLERS = {
    "transformers": "batches of prompts of similar length through the policy's own generate",
    "continuous": "transformers' continuous batching, which starts a new prompt when a completion ends",
    "vllm": "vLLM in this process (extra vllm)",
    "openai": "a server of the OpenAI completions API at base_url (extra openai)",
}


def open_sampler(
    sampler: str | Sampler,
    policy: Policy,
    base_url: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Sampler:
    """Return the sampler with the given name; an object is returned unchanged.

    Args:
        sampler: a name of :data:`SAMPLERS`, or a sampler.
        policy: the policy to draw from (for a server: whose tokenizer and stop tokens count).
        base_url: the server's address, for "openai" alone.
        options: for "openai" the attributes of :class:`gradstats.sampling.server_sampler.ServerSampler` (model,
            logprobs_of, concurrency, timeout_seconds, max_retries); for "vllm" arguments of ``vllm.LLM``; for
            "continuous" those of transformers' ``ContinuousBatchingConfig``.

    Raises:
        ValueError: for an unknown name or option, an address that the engine does not use, or weights with NaN.
        ImportError: when the engine's library is not installed.
    """
    if not isinstance(sampler, str):
        return sampler
    options = dict(options or {})
    kind: Any
    arguments: dict[str, Any]
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler is {sampler!r}: choose one of {', '.join(SAMPLERS)}")
    if base_url is not None and sampler != "openai":
        raise ValueError(f'base_url is {base_url!r}, but sampler is {sampler!r}: a server takes sampler "openai"')
    if sampler in ("transformers", "continuous"):  # the others draw from weights of their own
        refuse_weights_that_are_not_finite(policy.model, policy.name)
    # Imported here: each needs a library that the others do not.
    if sampler == "openai":
        from gradstats.sampling.server_sampler import ServerSampler

        kind, arguments = ServerSampler, {"base_url": base_url or "", **options}
    elif sampler == "vllm":
        from gradstats.sampling.vllm_sampler import VllmSampler

        kind, arguments = VllmSampler, {"options": options}
    elif sampler == "continuous":
        from gradstats.sampling.continuous_sampler import ContinuousSampler

        kind, arguments = ContinuousSampler, {"options": options}
    else:
        from gradstats.sampling.transformers_sampler import TransformersSampler

        kind, arguments = TransformersSampler, options
    try:
        return kind(policy, **arguments)
    except TypeError as error:
        raise ValueError(f"sampler_options {options} do not suit the sampler {sampler!r}: {error}") from error
