"""Greedy completions for ReMax, vLLM through its documented interface, continuous batching, tokens, context."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny_model, tiny_tokenizer

import gradstats
from gradstats.policy.policy import as_policy, load_policy
from gradstats.prompts import Problem
from gradstats.rollouts.retokenise import restore_tokens
from gradstats.rollouts.table import Rollouts
from gradstats.sampling import Completion, Sampler, SamplerSettings
from gradstats.sampling.engines import open_sampler
from gradstats.sampling.sample import sample
from gradstats.sampling.transformers_sampler import generate

PROBLEMS = [Problem(f"p{k}", "ab" * k, "x", "exact") for k in range(1, 5)]


def length_reward(completion, problem):
    return len(completion) + len(problem.prompt) / 10


@pytest.fixture(scope="module")
def policy(policy_folder):
    return load_policy(policy_folder)


def likeliest(policy, prompt, cap):
    """Greedy decoding with one forward pass per token."""
    tokens = []
    while len(tokens) < cap and (not tokens or tokens[-1] != 1):
        with torch.no_grad():
            tokens.append(int(policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].argmax()))
    return tokens


@pytest.mark.filterwarnings("ignore:the model's generation_config")
def test_greedy_completions_reach_remax_from_sampling_to_comparison(policy, tmp_path):
    rollouts = sample(
        policy, PROBLEMS, group_size=3, max_new_tokens=6, temperature=1.3, batch_size=4, reward=length_reward,
        greedy=True, progress=False,
    )  # fmt: skip
    frame = rollouts.frame.groupby("prompt_id").first()
    for problem in PROBLEMS:
        row = frame.loc[problem.prompt_id]
        text = policy.tokenizer.decode(likeliest(policy, row["prompt_tokens"], 6), skip_special_tokens=True)
        assert row["greedy_text"] == text
        assert row["greedy_reward"] == length_reward(text, problem)
    assert rollouts.frame.groupby("prompt_id")["greedy_reward"].nunique().eq(1).all()
    rollouts.to_parquet(tmp_path / "r.parquet")
    measured = gradstats.measure(policy, gradstats.read_rollouts(tmp_path / "r.parquet"), sketch_dim=64, progress=False)
    batch = gradstats.estimators.Batch.from_measurement(measured)
    np.testing.assert_array_equal(batch.greedy_rewards, rollouts.frame["greedy_reward"])
    with pytest.warns(UserWarning, match="prompts"):
        table = gradstats.compare(measured, ["reinforce", "remax"], reference="reinforce").to_frame()
    assert np.isfinite(table.set_index("estimator").loc["remax", "trace_cov"])


@pytest.mark.filterwarnings("ignore:the model's generation_config")
def test_greedy_completions_leave_the_sampled_ones_alone(policy):
    options = {"group_size": 4, "max_new_tokens": 6, "batch_size": 8, "reward": length_reward, "progress": False}
    plain, greedy = sample(policy, PROBLEMS, **options), sample(policy, PROBLEMS, greedy=True, **options)
    assert greedy.frame.drop(columns=["greedy_text", "greedy_reward"]).equals(plain.frame)


def test_a_sampler_of_ones_own_is_used_with_its_seeds(policy):
    class Constant:
        own_seeds = True
        seen: list[int] = []  # noqa: RUF012

        def describe(self):
            return {"engine": "constant"}

        def draw(self, prompts, settings, seeds, on_tokens):
            self.seen.extend(seeds)
            return [Completion([4, 1], [-1.0, float("nan")], "stop", "pieces") for _ in prompts]

    own = Constant()
    assert isinstance(own, Sampler)
    with pytest.warns(UserWarning, match="generation_config"):
        rollouts = sample(policy, PROBLEMS, group_size=2, max_new_tokens=4, sampler=own, reward="exact", progress=False)
    assert sorted(rollouts.frame["sampler_seed"]) == sorted(own.seen)
    assert rollouts.metadata["sampler"]["engine"] == "constant"
    assert np.isnan(rollouts.frame["sampler_logprobs"].iloc[0][1])


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

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None, priority=None):
        self.calls.append((prompts, sampling_params))
        answers = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            tokens = (4 + params.seed % 5, 1)
            logprobs = [{token: SimpleNamespace(logprob=-0.25 * token, rank=1, decoded_token=None)} for token in tokens]
            output = SimpleNamespace(index=0, text="", token_ids=tokens, logprobs=logprobs, finish_reason=LLM.reason)
            answers.append(SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[output]))
        return answers


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__version__ = LLM, SamplingParams, "0.0.stand-in"
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(LLM, "made", [])
    return module


def test_vllm_is_asked_for_exactly_these_settings_and_logprobs(policy, vllm):
    sampler = open_sampler("vllm", policy, options={"gpu_memory_utilization": 0.4})
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


def test_vllm_that_gives_up_and_policies_it_cannot_load(policy, vllm, monkeypatch):
    monkeypatch.setattr(LLM, "reason", "abort")
    with pytest.raises(RuntimeError, match="vLLM gave up on a request .*'abort'"):
        open_sampler("vllm", policy).draw([[2]], SamplerSettings(2), [1], lambda count: None)
    with pytest.raises(ValueError, match="vLLM cannot load the policy 'embedded': give a hub id or a folder"):
        open_sampler("vllm", load_policy("embedded")).draw([[2]], SamplerSettings(2), [1], lambda count: None)


def test_absent_libraries_are_named(policy, monkeypatch):
    for name, library in (("vllm", "vllm"), ("openai", "openai")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=rf"pip install 'gradstats\[{name}\]'"):
            open_sampler(name, policy, "http://x/v1" if name == "openai" else None).describe()


@pytest.mark.slow
def test_continuous_batching_decodes_greedily_what_generate_does(policy):
    sampler = open_sampler("continuous", policy)
    prompts = [[2, 4, 5, 3], [2, 6, 3], [2, 4, 4, 4, 3]]
    seen = []
    drawn = sampler.draw(prompts, SamplerSettings(6).greedy(), [1, 2, 3], seen.append)
    for prompt, completion in zip(prompts, drawn, strict=True):
        assert completion.tokens == likeliest(policy, prompt, 6)
        assert completion.logprobs == pytest.approx([0.0] * len(completion.tokens), abs=1e-5)
    assert sum(seen) == sum(len(completion.tokens) for completion in drawn)
    with pytest.raises(ValueError, match="repetition_penalty is 1.2: continuous batching has none"):
        sampler.draw(prompts, SamplerSettings(6, repetition_penalty=1.2), [1], seen.append)


def test_pieces_decide_between_tokenisations():
    tokenizer = tiny_tokenizer()
    assert restore_tokens(tokenizer, "ab", pieces=["a", "b"]).source == "pieces"
    # A token of which the tokenizer knows no id: what is left is the text.
    restored = restore_tokens(tokenizer, "ab", pieces=["ab"], counts=(1,))
    assert (restored.tokens, restored.source) == (tokenizer("ab")["input_ids"], "mismatch")
    assert restore_tokens(tokenizer, "ab", counts=(2, 3)).source == "text"


class Merging:
    """A tokenizer that merges a and b, which the policy may have sampled separately."""

    texts = ("", "a", "b", "ab")

    def __len__(self):
        return 4

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [3] if text == "ab" else [self.texts.index(letter) for letter in text]}

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(self.texts[token] for token in tokens)


def test_what_was_drawn_apart_is_restored_apart_or_reported():
    assert restore_tokens(Merging(), "ab", pieces=["a", "b"]).tokens == [1, 2]
    assert restore_tokens(Merging(), "ab", counts=(2,)).source == "mismatch"
    assert restore_tokens(Merging(), "ab").source == "text"  # nothing speaks against it


def rollouts_with(**columns):
    return Rollouts.from_sequences([[2]], [[4, 5]], [1.0], ["p"], **columns)


def test_tables_with_and_without_logprobs_are_stacked_and_other_differences_refused():
    known = rollouts_with(sampler_logprobs=[[-1.0, -2.0]])
    unknown = Rollouts(rollouts_with().frame.assign(prompt_id="q"))
    stacked = Rollouts.concatenate([unknown, known]).tokens("sampler_logprobs")
    assert np.isnan(stacked[0]).all()
    assert stacked[1].tolist() == [-1.0, -2.0]
    with pytest.raises(ValueError, match="rollouts differ in the column 'greedy_reward'"):
        Rollouts.concatenate([unknown, rollouts_with(greedy_reward=[1.0])])


def test_wrong_columns_of_samplers_are_named():
    with pytest.raises(ValueError, match="token_source that is none of engine, pieces, text, mismatch"):
        rollouts_with(token_source=["guess"])
    with pytest.raises(ValueError, match="greedy_reward that is not finite"):
        rollouts_with(greedy_reward=[float("nan")])


def test_recipes_that_need_every_logprob_are_told_that_one_is_missing(policy):
    table = rollouts_with(sampler_logprobs=[[-1.0, float("nan")]])
    measured = gradstats.measure(policy, table, sketch_dim=None, progress=False)
    batch = gradstats.estimators.Batch.from_measurement(measured)
    assert batch.old_logprobs is None
    assert pd.notna(batch.logprobs).all()


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_completions_that_have_ended_leave_the_batch_and_change_nothing(architecture):
    # A fifth of the vocabulary ends a completion: lengths differ, and the batch is halved several times.
    policy = as_policy(tiny_model(architecture))
    policy.model.generation_config.eos_token_id = list(range(0, policy.model.config.vocab_size, 5))
    settings = SamplerSettings(max_new_tokens=20)
    prompts = [[2, 3, 4], [5, 6], [7, 8, 9, 10], [3], [11, 2], [4, 4, 4], [9, 2, 6], [12]] * 4
    completions = generate(policy, prompts, settings, seed=3)
    lengths = [len(completion.tokens) for completion in completions]
    assert len(set(lengths)) > 3
    for prompt, completion in zip(prompts, completions, strict=True):
        stops = [token % 5 == 0 for token in completion.tokens]
        assert not any(stops[:-1])
        assert completion.finish_reason == ("stop" if stops[-1] else "length")
        assert stops[-1] or len(completion.tokens) == 20
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *completion.tokens]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), rtol=1e-4, atol=1e-5)
