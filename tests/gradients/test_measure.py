"""Mean squares of batch gradients against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, random_weightings
from token_gradients import token_gradients

import gradstats.gradients as gradients
from gradstats.gradients.measure import mean_square_gradients
from gradstats.policy.policy import Policy


@pytest.mark.parametrize("token_budget", [4096, 30])
def test_mean_squares_equal_those_of_token_gradients(token_budget):
    model, rollouts = any_model("gpt2", True), ragged_rollouts(6, masked=True)
    (weights,) = random_weightings(rollouts, 1).values()
    batches = [np.array([0, 3, 1]), np.array([5, 2])]
    found = mean_square_gradients(
        Policy(model, temperature=0.7),
        rollouts,
        gradients.select_parameters(model, r"h\."),
        weights,
        batches,
        token_budget=token_budget,
    )
    scores = token_gradients(model, rollouts, 0.7)
    for name, values in found.items():
        of_batches = [
            sum(weight * score[name] for row in rows for weight, score in zip(weights[row], scores[row], strict=True))
            for rows in batches
        ]
        expected = torch.stack(of_batches).square().mean(dim=0)
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-20, err_msg=name)
    assert len(found) == 24


def test_a_gradient_that_is_not_finite_is_named():
    model, rollouts = any_model("qwen2"), ragged_rollouts(3)
    weights = [np.full(len(tokens), 1e308) for tokens in rollouts.tokens("completion_tokens")]
    with pytest.raises(
        ValueError, match=r"the gradient of .* in batch 0 of the estimate of second moments is not finite"
    ):
        mean_square_gradients(Policy(model), rollouts, gradients.select_parameters(model), weights, [np.arange(3)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "ghosts"}, "engine is 'ghosts': choose one of auto, ghost, vmap, loop"),
        (
            {"params": "nothing_like_it"},
            r"matches no trainable parameter; some that exist: model\.embed_tokens\.weight",
        ),
        ({"params": "("}, "is not a regular expression"),
        ({"blocks": "rows"}, "blocks is 'rows'"),
        ({"token_budget": 0}, "token_budget is 0"),
        ({"memory_gib": 0.0}, "memory_gib is 0.0"),
    ],
)
def test_bad_settings_are_refused(options, message, rollouts):
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False, **options)


def test_a_model_of_no_kind_is_refused(rollouts):
    with pytest.raises(TypeError, match="policy is a str: pass a Policy"):
        gradients.measure("gpt2", rollouts, progress=False)
