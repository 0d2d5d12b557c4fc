"""Monte-Carlo values against an enumerated policy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gradstats as gs
from gradstats.policy.policy import Policy
from gradstats.prompts.problem import Problem
from gradstats.reference import EnumeratedPolicy
from gradstats.rollouts.table import Rollouts
from gradstats.sampling.transformers_sampler import Completion
from gradstats.values import monte_carlo
from gradstats.values.monte_carlo import monte_carlo_values, step_starts

WORDS = {0: "", 1: "a", 2: "\n"}
READER = Policy(
    torch.nn.Linear(1, 1),
    SimpleNamespace(decode=lambda tokens, **options: "".join(WORDS[int(token)] for token in tokens)),
)


def test_monte_carlo_values_are_those_of_the_enumerated_policy(monkeypatch):
    policy = EnumeratedPolicy(vocabulary=3, max_length=4, dimension=6, rng=3)
    # No two trajectories read the same, so that a reward of texts is one of trajectories.
    grades = {READER.tokenizer.decode(t): reward for t, reward in zip(policy.trajectories, policy.rewards, strict=True)}
    assert len(grades) == len(policy.rewards)
    rng = np.random.default_rng(0)

    def graded(text, problem):
        return grades[text]

    def draw(_policy, prefixes, settings, seed, on_tokens):
        completions = []
        for prefix in prefixes:
            start = tuple(prefix[1:])
            ahead = [row for row, tokens in enumerate(policy.trajectories) if tokens[: len(start)] == start]
            chance = policy.probabilities[ahead] / policy.probabilities[ahead].sum()
            tokens = policy.trajectories[rng.choice(ahead, p=chance)]
            completions.append(Completion(list(tokens[len(start) :]), [], "stop"))
        return completions

    monkeypatch.setattr(monte_carlo, "generate", draw)
    tokens = (2, 1, 2, 0)
    rollouts = Rollouts.from_sequences(
        [[7], [7]], [list(tokens), [1, 0]], [0.0, 0.0], ["p", "p"], metadata={"sampler": {"max_new_tokens": 4}}
    )
    values = monte_carlo_values(READER, rollouts, [Problem("p", "", "")], k=3000, reward=graded, progress=False)
    row = policy.trajectories.index(tokens)
    assert np.isnan(values[0][2])
    np.testing.assert_allclose(values[0][[0, 1, 3]], policy.values[row, [0, 1, 3]], atol=0.04)
    assert values[1][0] == values[0][0]
    assert np.isnan(values[1][1])


def test_several_rewards_are_added_up_as_in_sampling(monkeypatch):
    def draw(policy, prefixes, settings, seed, on_tokens):
        return [Completion([2, 0], [0.0, 0.0], "stop") for _ in prefixes]

    monkeypatch.setattr(monte_carlo, "generate", draw)
    rollouts = Rollouts.from_sequences([[7]], [[2, 0]], [0.0], ["p"], metadata={"sampler": {"max_new_tokens": 4}})
    problems = [Problem("p", "", READER.tokenizer.decode([2, 0], skip_special_tokens=True))]
    # "embedded" finds no answer in this text, which adds 0.
    values = monte_carlo_values(READER, rollouts, problems, k=2, reward={"exact": 0.5, "embedded": 3}, progress=False)
    assert values[0][0] == 0.5


def test_steps_by_regular_expression_and_by_function():
    tokens = [1, 2, 2, 1, 1, 2, 0]
    assert step_starts(READER, tokens) == [0, 3, 6]
    assert step_starts(READER, tokens, r"a") == [0, 1, 4, 5]
    by_function = step_starts(READER, tokens, lambda texts: [at for at, text in enumerate(texts) if text == "\n"])
    assert by_function == [0, 1, 2, 5]
    with pytest.raises(ValueError, match="steps gave positions 0 to 9 in a completion of 7 tokens"):
        step_starts(READER, tokens, lambda texts: [9])


@pytest.mark.parametrize(
    ("k", "metadata", "message"),
    [
        (0, {}, "k=0 must be at least 1"),
        (1, {}, "do not record how they were sampled"),
        (1, {"sampler": {"max_new_tokens": 4}}, "prompt 'p' of the rollouts is not among the problems"),
    ],
)
def test_refused_monte_carlo_values(k, metadata, message):
    rollouts = Rollouts.from_sequences([[1]], [[1, 1, 1]], [1.0], ["p"], metadata=metadata)
    with pytest.raises(ValueError, match=message):
        monte_carlo_values(READER, rollouts, [], k=k)


def test_monte_carlo_values_of_the_embedded_policy():
    policy = gs.load_policy("embedded")
    problems = gs.load_prompts("embedded", n=2, rng=0)
    rollouts = gs.sample(policy, problems, group_size=2, max_new_tokens=60, rng=0, progress=False)
    values = monte_carlo_values(policy, rollouts, problems, k=2, progress=False)
    again = monte_carlo_values(policy, rollouts, problems, k=2, progress=False)
    for row, (drawn, repeated) in enumerate(zip(values, again, strict=True)):
        np.testing.assert_array_equal(drawn, repeated)
        known = drawn[np.isfinite(drawn)]
        assert np.isfinite(drawn[0])
        assert set(known) <= {0.0, 0.5, 1.0}, row
