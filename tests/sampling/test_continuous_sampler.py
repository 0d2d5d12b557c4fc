"""Continuous batching: settings it lacks, the order of answers, and the decoding of generate."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from greedy_decoding import likeliest
from transformers.generation.continuous_batching import cache
from transformers.generation.continuous_batching.requests import GenerationOutput

from gradstats.measurement.storage import GIB
from gradstats.policy.policy import Policy, load_policy
from gradstats.sampling import SamplerSettings
from gradstats.sampling.plan import open_sampler
from gradstats.sampling.sampler import Completion
from gradstats.sampling.transformers_sampler import ContinuousSampler


@pytest.fixture(scope="module")
def policy(policy_folder):
    return load_policy(policy_folder)


@pytest.mark.slow
def test_continuous_batching_decodes_greedily_what_generate_does(policy, monkeypatch):
    # A machine with 2 GiB free: its default of 8192 tokens at once leaves no room for a cache in a share of them.
    monkeypatch.setattr(cache, "get_device_and_memory_breakdown", lambda: (torch.device("cpu"), 2 * GIB, 0, 0))
    sampler = open_sampler("continuous", policy)
    prompts = [[2, 4, 5, 3], [2, 6, 3], [2, 4, 4, 4, 3]]
    seen = []
    drawn = sampler.draw(prompts, SamplerSettings(6).greedy(), [1, 2, 3], seen.append)
    for prompt, completion in zip(prompts, drawn, strict=True):
        assert completion.tokens == likeliest(policy, prompt, 6)
        assert completion.logprobs == pytest.approx([0.0] * len(completion.tokens), abs=1e-5)
    assert sum(seen) == sum(len(completion.tokens) for completion in drawn)
    with pytest.raises(ValueError, match="repetition_penalty is 1.2: continuous batching does not support it"):
        sampler.draw(prompts, SamplerSettings(6, repetition_penalty=1.2), [1], seen.append)


@pytest.fixture
def answering(monkeypatch):
    """A sampler whose model answers by a function of the prompts, and the arguments of its calls."""
    calls = []

    def sampler(answers):
        model = tiny_model("qwen2", dtype=torch.float32)

        def generate_batch(inputs, generation_config, continuous_batching_config):
            calls.append((inputs, generation_config, continuous_batching_config))
            torch.manual_seed(99)
            return answers(inputs)

        monkeypatch.setattr(model, "generate_batch", generate_batch, raising=False)
        return ContinuousSampler(Policy(model), {"max_batch_tokens": 64})

    return sampler, calls


def answer(tokens, error=None):
    return GenerationOutput("req", [], generated_tokens=tokens, logprobs=[-0.5] * len(tokens), error=error)


def test_answers_are_put_into_the_order_of_the_prompts(answering):
    sampler, calls = answering
    state, drawn = torch.random.get_rng_state(), []
    # Twelve requests, returned last first: as texts, req_10 would come before req_2.
    own = sampler(lambda prompts: {f"req_{k}": answer([k, 1] if k % 2 else [k]) for k in reversed(range(len(prompts)))})
    settings = SamplerSettings(6, temperature=0.7, top_k=4)
    completions = own.draw([[2, k] for k in range(12)], settings, [5] * 12, drawn.append)
    assert completions == [
        Completion([k, 1] if k % 2 else [k], [-0.5] * (1 + k % 2), "stop" if k % 2 or k == 1 else "length")
        for k in range(12)
    ]
    assert drawn == [18]
    ((prompts, generation, config),) = calls
    assert prompts[3] == [2, 3]
    assert (generation.temperature, generation.top_k, generation.max_new_tokens) == (0.7, 4, 6)
    assert (config.seed, config.max_batch_tokens, config.return_logprobs) == (5, 64, True)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (lambda prompts: {"req_0": answer([4])}, "continuous batching answered 1 of 2 prompts: use sampler"),
        (
            lambda prompts: {f"req_{k}": answer([4], "cache full") for k in range(2)},
            r"continuous batching failed \(cache full\): use sampler \"transformers\"",
        ),
    ],
)
def test_requests_that_fail_are_named(answering, answers, message):
    sampler, _ = answering
    with pytest.raises(RuntimeError, match=message):
        sampler(answers).draw([[2], [3]], SamplerSettings(6), [1, 2])


def test_a_repetition_penalty_is_refused_before_anything_is_drawn(answering):
    sampler, calls = answering
    with pytest.raises(
        ValueError, match=r"repetition_penalty is 1\.2: continuous batching does not support it; leave it at 1"
    ):
        sampler(lambda prompts: {}).draw([[2]], SamplerSettings(6, repetition_penalty=1.2), [1])
    assert calls == []
