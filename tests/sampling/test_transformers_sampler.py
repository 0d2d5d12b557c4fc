"""Completions drawn with transformers' generate: their distribution, log-probabilities and ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_model
from scipy import stats

from gradstats.policy.policy import as_policy, load_policy
from gradstats.prompts import Problem
from gradstats.sampling import SamplerSettings
from gradstats.sampling.sample import sample
from gradstats.sampling.transformers_sampler import generate

PROBLEMS = [
    Problem("long", "abc def", "z", "exact"),
    Problem("short", "q", "7", "exact"),
    Problem("mid", "ab c", "x", "exact"),
]


@pytest.fixture(scope="module")
def policy(policy_folder):
    return load_policy(policy_folder)


def draw(policy, problems=PROBLEMS, **options):
    """Sample, expecting the warning that the folder's generation_config is not followed."""
    settings = {"group_size": 4, "max_new_tokens": 12, "progress": False, "reward": "exact"} | options
    with pytest.warns(UserWarning, match="it is not followed"):
        return sample(policy, problems, **settings)


def exact_distribution(policy, prompt_ids, temperature=1.0, top_k=0, top_p=1.0):
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt_ids])).logits[0, -1].double() / temperature
    pi = torch.softmax(logits, dim=-1).numpy()
    if top_k:
        pi[np.argsort(pi)[:-top_k]] = 0.0
        pi /= pi.sum()
    if top_p < 1:
        order = np.argsort(-pi)
        before = np.cumsum(pi[order]) - pi[order]
        pi[order[before >= top_p]] = 0.0
        pi /= pi.sum()
    return pi


@pytest.mark.parametrize("setting", [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.6, "temperature": 0.8}])
def test_tokens_are_drawn_from_exactly_the_stated_distribution(policy, setting):
    rollouts = draw(policy, PROBLEMS[:1], group_size=2000, max_new_tokens=1, batch_size=1000, **setting)
    pi = exact_distribution(policy, rollouts.frame["prompt_tokens"].iloc[0], **setting)
    drawn = np.array([tokens[0] for tokens in rollouts.frame["completion_tokens"]])
    counts = np.bincount(drawn, minlength=len(pi))
    assert counts[pi == 0].sum() == 0
    # Cells with few expected draws are pooled, as a chi-squared test requires.
    rare = pi * 2000 < 5
    observed = [*counts[~rare], counts[rare].sum()]
    expected = [*(pi * 2000)[~rare], (pi * 2000)[rare].sum()]
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert stats.chisquare(observed, np.array(expected) / np.sum(expected) * 2000).pvalue > 1e-4
    recorded = np.array([values[0] for values in rollouts.frame["sampler_logprobs"]])
    np.testing.assert_allclose(recorded, np.log(pi[drawn]), atol=2e-5)


def test_recorded_logprobs_are_those_of_every_token_in_its_context(policy):
    rollouts = draw(policy, temperature=0.7, top_k=6)
    for row in rollouts.frame.itertuples():
        for position, token in enumerate(row.completion_tokens):
            context = [*row.prompt_tokens, *row.completion_tokens[:position]]
            pi = exact_distribution(policy, context, temperature=0.7, top_k=6)
            assert row.sampler_logprobs[position] == pytest.approx(np.log(pi[token]), abs=1e-4)


def test_completions_end_with_their_stop_token_or_at_the_cap(policy):
    rollouts = draw(policy, group_size=60, max_new_tokens=12)
    reasons = rollouts.frame["finish_reason"]
    assert set(reasons) == {"stop", "length"}
    for tokens, reason in zip(rollouts.frame["completion_tokens"], reasons, strict=True):
        assert (tokens[-1] == 1) == (reason == "stop")
        assert 1 not in tokens[:-1]
        assert len(tokens) == 12 if reason == "length" else len(tokens) <= 12


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
