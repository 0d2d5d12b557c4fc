"""vLLM through its documented interface."""

import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gradstats.config.sections import SamplingSection
from gradstats.policy.policy import load_policy
from gradstats.prompts import load_prompts
from gradstats.sampling import Completion, SamplerSettings, sample
from gradstats.sampling.plan import open_sampler

# vLLM, by the names and signatures that its documentation gives.


@dataclass
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True


@dataclass
class LLM:
    model: str
    revision: str | None = None
    dtype: str = "auto"
    seed: int = 0
    gpu_memory_utilization: float = 0.9
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"
    calls: list[Any] = field(default_factory=list)
    made = []  # noqa: RUF012
    reason = "stop"

    def __post_init__(self):
        LLM.made.append(self)
        core = SimpleNamespace(shutdown=lambda: setattr(self, "stopped", True))
        self.stopped, self.llm_engine = False, SimpleNamespace(engine_core=core)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None, priority=None):
        self.calls.append((prompts, sampling_params))
        answers = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            tokens = (4 + params.seed % 5, 1)
            logprobs = [{token: SimpleNamespace(logprob=-0.25 * token, rank=1, decoded_token=None)} for token in tokens]
            output = SimpleNamespace(index=0, text="", token_ids=tokens, logprobs=logprobs, finish_reason=LLM.reason)
            answers.append(SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[output]))
        return answers


VLLM = SamplingSection(sampler="vllm")


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__version__ = LLM, SamplingParams, "0.0.stand-in"
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(LLM, "made", [])
    return module


def test_vllm_is_asked_for_exactly_these_settings_and_logprobs(policy, vllm):
    sampler = open_sampler(policy, SamplingSection(sampler="vllm", sampler_options={"gpu_memory_utilization": 0.4}))
    settings = SamplerSettings(9, temperature=0.8, top_p=0.9, top_k=7, min_p=0.05, repetition_penalty=1.1)
    drawn = sampler.draw([[2, 4, 3], [2, 5, 3]], settings, [11, 12], lambda count: None)
    assert drawn == [Completion([5, 1], [-1.25, -0.25], "stop"), Completion([6, 1], [-1.5, -0.25], "stop")]
    (engine,) = LLM.made
    assert (engine.model, engine.dtype, engine.gpu_memory_utilization) == (policy.name, "float32", 0.4)
    assert (engine.logprobs_mode, engine.generation_config) == ("processed_logprobs", "vllm")
    prompts, parameters = engine.calls[0]
    assert prompts == [{"prompt_token_ids": [2, 4, 3]}, {"prompt_token_ids": [2, 5, 3]}]
    common = {
        "temperature": 0.8, "top_p": 0.9, "top_k": 7, "min_p": 0.05, "repetition_penalty": 1.1, "max_tokens": 9,
        "logprobs": 0, "detokenize": False, "stop_token_ids": [1],
    }  # fmt: skip
    assert parameters == [SamplingParams(seed=seed, **common) for seed in (11, 12)]
    assert sampler.describe() == {"engine": "vllm", "version": "0.0.stand-in", "gpu_memory_utilization": 0.4}


def test_vllm_takes_of_a_gpu_what_the_policy_leaves(policy, vllm, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (60 * 2**30, 80 * 2**30))
    for options in ({}, {"gpu_memory_utilization": 0.4}):
        open_sampler(policy, SamplingSection(sampler="vllm", sampler_options=options)).draw(
            [[2]], SamplerSettings(2), [1], lambda count: None
        )
    assert [engine.gpu_memory_utilization for engine in LLM.made] == [0.675, 0.4]


@pytest.mark.filterwarnings("ignore:the model's generation_config")
def test_vllm_is_stopped_when_all_are_drawn_unless_it_is_the_caller_s(policy, vllm):
    problems, settings = load_prompts("embedded", 1, rng=0), {"group_size": 1, "max_new_tokens": 2, "progress": False}
    policy = replace(policy, tokenizer=load_policy("embedded").tokenizer)
    sample(policy, problems, sampler="vllm", reward=lambda text, problem: 0.0, **settings)
    own = open_sampler(policy, VLLM)
    sample(policy, problems, sampler=own, reward=lambda text, problem: 0.0, **settings)
    assert [engine.stopped for engine in LLM.made] == [True, False]
    own.close()
    own.close()  # there is none now
    assert LLM.made[1].stopped


def test_vllm_that_gives_up_and_policies_it_cannot_load(policy, vllm, monkeypatch):
    monkeypatch.setattr(LLM, "reason", "abort")
    with pytest.raises(RuntimeError, match="vLLM gave up on a request .*'abort'"):
        open_sampler(policy, VLLM).draw([[2]], SamplerSettings(2), [1], lambda count: None)
    with pytest.raises(ValueError, match="vLLM cannot load the policy 'embedded': give a hub id or a folder"):
        open_sampler(load_policy("embedded"), SamplingSection(sampler="vllm")).draw(
            [[2]], SamplerSettings(2), [1], lambda count: None
        )
