"""Token weights of the user's: the gradients under them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import random_weightings

import gradstats.gradients as gradients


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_token_weights_give_the_gradient_of_the_weighted_sum(engine):
    model = tiny_model("llama", tied=True)
    rollouts = ragged_rollouts(4, masked=True)
    weightings = random_weightings(rollouts)
    measured = gradients.measure(
        model, rollouts, engine=engine, sketch_dim=64, token_weights=weightings, progress=False
    )
    plain = gradients.measure(model, rollouts, engine=engine, sketch_dim=64, progress=False)
    np.testing.assert_allclose(measured.sq_norms, plain.sq_norms, rtol=1e-10)
    sketch = gradients.CountSketch(64, version=plain.metadata["sketch_version"])
    for name, weights in weightings.items():
        for row in range(4):
            gradient = weighted_gradient(model, rollouts, row, weights[row])
            expected = sum(part.square().sum().item() for part in gradient.values())
            np.testing.assert_allclose(measured.weighted[name].sq_norms[row], expected, rtol=1e-9)
            projected = torch.zeros(1, 64, dtype=torch.float64)
            for parameter, part in gradient.items():
                sketch.add(projected, parameter, part[None])
            np.testing.assert_allclose(measured.weighted[name].sketches[row], projected[0], rtol=1e-8, atol=1e-9)


def weighted_gradient(model, rollouts, row, weights):
    """Σ_t m_t w_t ∇log π(y_t), token by token."""
    prompt, completion = (list(rollouts.frame[name].iloc[row]) for name in ("prompt_tokens", "completion_tokens"))
    logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0]
    value = sum(
        weights[place] * float(rollouts.masks[row][place]) * logits[len(prompt) + place - 1].log_softmax(0)[token]
        for place, token in enumerate(completion)
    )
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(value, list(named.values())), strict=True))


def test_one_list_of_token_weights_has_a_name_of_its_own(rollouts):
    ones = [np.ones(len(tokens)) for tokens in rollouts.tokens("completion_tokens")]
    measured = gradients.measure(
        tiny_model("qwen2"), rollouts, sketch_dim=None, token_weights=[2 * row for row in ones], progress=False
    )
    np.testing.assert_allclose(measured.weighted["weighted"].sq_norms, 4 * measured.sq_norms, rtol=1e-10)
    with pytest.raises(ValueError, match="holds no sketches"):
        measured.weighted["weighted"].gram()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r"token_weights 'weighted' has 4 rows for 5 rollouts"),
        (lambda rows: [*rows[:-1], [1.0] * 99], r"has the shape \(99,\) in row 4, whose completion has \d+ tokens"),
        (lambda rows: [[np.nan], *rows[1:]], r"is not finite in row 0"),
    ],
)
def test_token_weights_of_another_shape_are_refused(change, message, rollouts):
    ones = [[1.0] * len(tokens) for tokens in rollouts.tokens("completion_tokens")]
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, token_weights=change(ones), progress=False)
