"""Sampling with vLLM in this process (extra ``vllm``)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from gradstats.policy.checkpoint import EMBEDDED
from gradstats.policy.model import dtype_name
from gradstats.policy.policy import Policy
from gradstats.sampling.sampler import Completion, SamplerSettings, stop_token_ids


@dataclass
class VllmSampler:
    """vLLM's offline engine with prompts as token ids, one seed per completion.

    It loads the weights a second time, in addition to the policy's, and takes nine tenths of the memory that is free on
    the GPU (option ``gpu_memory_utilization``), until it is closed. Log-probabilities are requested after temperature
    and truncation (``logprobs_mode="processed_logprobs"``), under the distribution from which tokens are drawn.
    """

    policy: Policy  # whose name and revision vLLM loads
    options: Mapping[str, object] = field(default_factory=dict)  # arguments of vllm.LLM, such as gpu_memory_utilization
    own_seeds = True
    implements = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

    def describe(self) -> dict[str, object]:
        """Return the engine's name, version and options."""
        return {"engine": "vllm", "version": getattr(self._vllm, "__version__", None), **self.options}

    def draw(
        self,
        prompts: Sequence[list[int]],
        settings: SamplerSettings,
        seeds: Sequence[int],
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> list[Completion]:
        """Draw one completion for each prompt, see :class:`gradstats.sampling.sampler.Sampler`."""
        parameters = [
            self._vllm.SamplingParams(
                n=1,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                min_p=settings.min_p,
                repetition_penalty=settings.repetition_penalty,
                max_tokens=settings.max_new_tokens,
                seed=int(seed),
                logprobs=0,  # only that of the drawn token
                stop_token_ids=stop_token_ids(self.policy),
                detokenize=False,
            )
            for seed in seeds[: len(prompts)]
        ]
        answers = self._engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False
        )
        completions = [_completion(answer.outputs[0]) for answer in answers]
        on_tokens(sum(len(completion.tokens) for completion in completions))
        return completions

    def close(self) -> None:
        """Stop the engine, which holds a share of the GPU's memory; the next draw starts another."""
        engine = vars(self).pop("_engine", None)
        if engine is not None:
            engine.llm_engine.engine_core.shutdown()
            del engine
            gc.collect()

    @cached_property
    def _vllm(self) -> Any:
        try:
            import vllm  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("the sampler vllm needs vLLM: pip install 'gradstats[vllm]'") from error
        return vllm

    @cached_property
    def _engine(self) -> Any:
        name = self.policy.name
        if name == EMBEDDED or name.endswith(".gguf"):
            raise ValueError(f"vLLM cannot load the policy {name!r}: give a hub id or a folder of safetensors")
        arguments = {
            "model": name,
            "revision": self.policy.revision,
            "dtype": dtype_name(self.policy.dtype),
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # not the model's
        }
        if torch.cuda.is_available():  # the policy's own weights lie there already
            free, total = torch.cuda.mem_get_info(self.policy.device)
            arguments["gpu_memory_utilization"] = round(0.9 * free / total, 3)
        return self._vllm.LLM(**{**arguments, **self.options})


def _completion(output: Any) -> Completion:
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(
            f"vLLM gave up on a request (finish_reason {output.finish_reason!r}): see its log, and run again"
        )
    tokens = [int(token) for token in output.token_ids]
    logprobs = [float(values[token].logprob) for token, values in zip(tokens, output.logprobs, strict=True)]
    return Completion(tokens, logprobs, output.finish_reason)
