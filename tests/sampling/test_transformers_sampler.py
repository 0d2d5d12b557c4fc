"""Completions drawn with transformers' generate: their distribution, log-probabilities and ends."""

import numpy as np
import pytest
import torch
from conftest import tiny_model
from scipy import stats
from small_draws import PROBLEMS, draw, likeliest
from transformers.cache_utils import DynamicLayer
from transformers.generation.continuous_batching import cache
from transformers.generation.continuous_batching.requests import GenerationOutput

from gradstats.config.sections import SamplingSection
from gradstats.measurement.disk_size import GIB
from gradstats.policy.policy import Policy, as_policy
from gradstats.sampling import SamplerSettings
from gradstats.sampling.plan import open_sampler
from gradstats.sampling.sampler import Completion
from gradstats.sampling.transformers_sampler import ROOM, ContinuousSampler, GrowingLayer, draw_tokens, generate


def test_a_batch_is_drawn_in_halves_where_memory_runs_out(policy):
    """Each half has its own seed, so that completions of the same prompt differ; the same call draws the same."""
    prompts, settings = [[2, 4, 5, 3]] * 8, SamplerSettings(12)

    def few(_module, _args, kwargs):
        if len(kwargs["input_ids"]) > 4:
            raise torch.OutOfMemoryError("out of memory")

    undivided = generate(policy, prompts, settings, 5)
    handle = policy.model.register_forward_pre_hook(few, with_kwargs=True)
    try:
        with pytest.warns(RuntimeWarning, match=r"memory ran out on 8 completions together: continuing with 4"):
            drawn, again = (generate(policy, prompts, settings, 5) for _ in range(2))
        assert generate(policy, prompts[:4], settings, 5) == generate(policy, prompts[:4], settings, 5)
    finally:
        handle.remove()
    assert drawn == again
    assert len(drawn) == len(undivided) == 8
    assert [one.tokens for one in drawn[:4]] != [one.tokens for one in drawn[4:]]


@pytest.mark.parametrize("n_tokens", [4096, 5003], ids=["whole blocks", "a part of one"])
def test_tokens_of_a_large_vocabulary_are_drawn_in_proportion(n_tokens):
    """At both ends of blocks of 128, beside tokens without probability, and from sums that are not 1."""
    weights = {0: 1, 5: 4, 127: 2, 128: 3, 2047: 6, n_tokens - 1: 4}
    probabilities = torch.zeros(n_tokens)
    probabilities[list(weights)] = torch.tensor(list(weights.values())) / 19
    torch.manual_seed(0)
    drawn = np.concatenate([draw_tokens(probabilities.expand(500, -1))[:, 0].numpy() for _ in range(20)])
    counts = [np.sum(drawn == token) for token in weights]
    assert sum(counts) == len(drawn)
    assert stats.chisquare(counts, np.array(list(weights.values())) / 20 * len(drawn)).pvalue > 1e-3
    only_one = torch.eye(n_tokens)[[0, 127, 128, n_tokens - 1]]
    assert draw_tokens(only_one)[:, 0].tolist() == [0, 127, 128, n_tokens - 1]
    with pytest.raises(RuntimeError, match="not finite"):
        draw_tokens(torch.full((1, n_tokens), torch.nan))


def test_a_draw_at_the_end_of_the_last_token_stays_within_it(monkeypatch):
    """A uniform number below 1 may be rounded to the sum of all probabilities, behind which there are none."""
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype: torch.ones(shape, dtype=dtype))
    probabilities = torch.zeros(1, 4096)
    probabilities[0, [7, 300]] = torch.tensor([0.9, 0.1])
    assert draw_tokens(probabilities).item() == 300


@pytest.mark.slow
def test_continuous_batching_decodes_greedily_what_generate_does(policy, monkeypatch):
    # A machine with 2 GiB free: its default of 8192 tokens at once leaves no room for a cache in a share of them.
    monkeypatch.setattr(cache, "get_device_and_memory_breakdown", lambda: (torch.device("cpu"), 2 * GIB, 0, 0))
    sampler = open_sampler(policy, SamplingSection(sampler="continuous"))
    prompts = [[2, 4, 5, 3], [2, 6, 3], [2, 4, 4, 4, 3]]
    seen = []
    drawn = sampler.draw(prompts, SamplerSettings(6).greedy(), [1, 2, 3], seen.append)
    for prompt, completion in zip(prompts, drawn, strict=True):
        assert completion.tokens == likeliest(policy, prompt, 6)
        assert completion.logprobs == pytest.approx([0.0] * len(completion.tokens), abs=1e-5)
    assert sum(seen) == sum(len(completion.tokens) for completion in drawn)
    with pytest.raises(ValueError, match="repetition_penalty is 1.2, which a ContinuousSampler does not implement"):
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


def states(generator, rows, tokens):
    return [torch.randn(rows, 3, tokens, 4, dtype=torch.float64, generator=generator) for _ in range(2)]


def agree(layer, concatenated):
    return (
        torch.equal(layer.keys, concatenated.keys)
        and torch.equal(layer.values, concatenated.values)
        and layer.get_seq_length() == concatenated.get_seq_length()
    )


def test_it_holds_what_concatenation_holds_also_after_rows_were_taken_out():
    generator = torch.Generator().manual_seed(0)
    layer, concatenated = GrowingLayer(), DynamicLayer()
    rows = 6
    for stage, tokens in enumerate([5, *[1] * (2 * ROOM), 3, *[1] * 7]):
        if stage in (1, 20, ROOM + 3):  # before, within and after the first renewal of the buffers
            kept = torch.arange(1, rows).flip(0)
            rows -= 1
            layer.reorder_cache(kept)
            concatenated.reorder_cache(kept)
        further = states(generator, rows, tokens)
        returned, expected = layer.update(*further), concatenated.update(*further)
        assert all(torch.equal(one, other) for one, other in zip(returned, expected, strict=True))
        assert agree(layer, concatenated)
    assert layer.get_seq_length() == 5 + 2 * ROOM + 3 + 7


def test_shortened_and_reset_it_goes_on_as_concatenation_does():
    generator = torch.Generator().manual_seed(1)
    layer, concatenated = GrowingLayer(), DynamicLayer()
    for one in (layer, concatenated):
        one.update(*states(torch.Generator().manual_seed(2), 2, 9))
        one.crop(-4)
    further = states(generator, 2, 2)
    layer.update(*further)
    concatenated.update(*further)
    assert agree(layer, concatenated)
    for one in (layer, concatenated):
        one.reset()
        one.update(*further)
    assert agree(layer, concatenated)


def test_within_its_room_a_token_copies_nothing_that_was_there():
    generator = torch.Generator().manual_seed(3)
    layer = GrowingLayer()
    layer.update(*states(generator, 2, 5))
    where = layer.keys.data_ptr(), layer.values.data_ptr()
    for _ in range(ROOM):
        layer.update(*states(generator, 2, 1))
        assert (layer.keys.data_ptr(), layer.values.data_ptr()) == where
    layer.update(*states(generator, 2, 1))
    assert layer.keys.data_ptr() != where[0]


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
