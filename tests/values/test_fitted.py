"""Value heads against values that are known, and the hidden states that they are fitted to."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from rotary_models import lengths_around_the_limit, rotary_model

import gradstats as gs
from gradstats.reference import EnumeratedPolicy
from gradstats.rollouts.table import Rollouts
from gradstats.values.fitted import fit_values, fit_values_to, hidden_states


def table(lengths, rewards, prompts, **optional):
    return Rollouts.from_sequences(
        [[1]] * len(lengths), [[1] * length for length in lengths], rewards, prompts, **optional
    )


def linear(n_prompts=60, per_prompt=4, noise=0.5, seed=0):
    """Completions whose return is linear in a feature, and noise beside."""
    rng = np.random.default_rng(seed)
    n = n_prompts * per_prompt
    lengths = rng.integers(1, 12, n)
    slope = rng.normal(size=6)
    states = rng.normal(size=(n, 6))
    rewards = states @ slope + noise * rng.normal(size=n)
    features = [np.tile(state, (length, 1)) for state, length in zip(states, lengths, strict=True)]
    prompts = np.repeat(np.arange(n_prompts), per_prompt)
    return features, table(lengths, rewards, prompts), states @ slope


def test_ridge_recovers_a_linear_value():
    features, rollouts, truth = linear()
    fitted = fit_values_to(features, rollouts)
    assert np.corrcoef([values[0] for values in fitted.values], truth)[0, 1] > 0.99
    expected = 1.0 - 0.25 / np.var(rollouts.rewards)
    low, high = fitted.confidence_interval(0.99)
    assert low < expected < high < low + 0.2
    assert fitted.n_folds == len(fitted.penalties) == 5
    frame = fitted.to_frame()
    assert frame["explained_variance_low"][0] < frame["explained_variance"][0] < frame["explained_variance_high"][0]


def test_a_value_never_sees_its_own_prompt():
    """Features that name the prompt, and rewards that depend on it alone: nothing can be learned from other prompts."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(20), 5)
    rewards = rng.normal(size=20)[prompts]
    features = [np.eye(20)[prompt][None].repeat(3, axis=0) for prompt in prompts]
    assert fit_values_to(features, table([3] * 100, rewards, prompts)).explained_variance.value < 0.05


def test_values_of_prefixes_are_those_of_the_enumerated_policy():
    policy = EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, rng=1)
    rows = np.random.default_rng(0).choice(len(policy.rewards), 4000, p=policy.probabilities)
    prefixes = sorted({tokens[:end] for tokens in policy.trajectories for end in range(len(tokens))})
    features = [
        np.array([np.eye(len(prefixes))[prefixes.index(tokens[:end])] for end in range(len(tokens))])
        for tokens in policy.trajectories
    ]
    rollouts = table(policy.lengths[rows], policy.rewards[rows], np.arange(4000) // 4)
    fitted = fit_values_to([features[row] for row in rows], rollouts)
    for values, row in zip(fitted.values[:200], rows[:200], strict=True):
        np.testing.assert_allclose(values, policy.values[row, : policy.lengths[row]], atol=0.12)


def test_returns_follow_token_rewards_and_masks():
    features, _, _ = linear(8, 3)
    lengths = [len(rows) for rows in features]
    token_rewards = [np.arange(length, dtype=float).tolist() for length in lengths]
    masks = [[place != 1 for place in range(length)] for length in lengths]
    prompts = np.repeat(np.arange(8), 3)
    rollouts = table(lengths, [0.0] * 24, prompts, token_rewards=token_rewards, completion_mask=masks)
    # The return to go, less the masked token, is a function of the position from the end: give it as the feature.
    goal = [np.array([[float(sum({*range(t, length)} - {1}))] for t in range(length)]) for length in lengths]
    fitted = fit_values_to(goal, rollouts, n_folds=3, penalties=[1e-6])
    assert fitted.explained_variance.value == pytest.approx(1.0, abs=1e-6)
    assert all(values[1] == 0.0 for values in fitted.values if len(values) > 1)


def test_refused_value_heads():
    features, rollouts, _ = linear(4, 2)
    with pytest.raises(ValueError, match="n_folds=5 needs at least 6 prompts and two folds, got 4 prompts"):
        fit_values_to(features, rollouts)
    with pytest.raises(ValueError, match="do not have one row per completion token"):
        fit_values_to(features[::-1], rollouts)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "qwen2 without memory", "dynamic", "longrope"])
def test_hidden_states_are_those_before_each_token(kind):
    """Of a batch, as of each sequence by itself, also where rotary factors depend on the length of the longest."""
    rotary = kind in ("dynamic", "longrope")
    rollouts = lengths_around_the_limit() if rotary else ragged_rollouts(7)
    build = (lambda: rotary_model(kind)) if rotary else (lambda: tiny_model(kind.split()[0]))
    model, scarce = build(), "memory" in kind

    def few(_module, args):
        if scarce and len(args[0]) > 2:
            raise torch.OutOfMemoryError("out of memory")

    model.base_model.register_forward_pre_hook(few)
    options = {"token_budget": 40} if kind in ("qwen2", "gpt2") else {}
    with pytest.warns(RuntimeWarning, match=r"memory ran out on \d sequences together") if scarce else nullcontext():
        states = hidden_states(model, rollouts, progress=False, **options)
    assert len(states) == len(rollouts)
    for row, found in enumerate(states):
        prompt, completion = (rollouts.tokens(name)[row] for name in ("prompt_tokens", "completion_tokens"))
        with torch.no_grad():
            alone = build()(torch.tensor([[*prompt, *completion]]), output_hidden_states=True).hidden_states[-1][0]
        np.testing.assert_allclose(found, alone[len(prompt) - 1 : -1].float().numpy(), rtol=1e-5, atol=1e-5)


def test_values_go_into_a_comparison():
    model, rollouts = tiny_model("qwen2"), ragged_rollouts(24)
    fitted = fit_values(model, rollouts, n_folds=3, progress=False)
    assert [len(values) for values in fitted.values] == rollouts.lengths.tolist()
    batch = gs.estimators.Batch.from_measurement(SimpleNamespace(rollouts=rollouts), values=fitted.values)
    np.testing.assert_allclose(batch.values[3, : rollouts.lengths[3]], fitted.values[3])
