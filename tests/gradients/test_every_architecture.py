"""Architectures of transformers in float64 through ``measure``, against one backward pass per sequence by autograd."""

import copy

import numpy as np
import pytest
import torch
from architectures import EVERY, small_model
from conftest import ragged_rollouts
from oracles.naive_estimators import sequence_gradients
from torch.overrides import TorchFunctionMode

import gradstats.gradients as gradients
from gradstats.gradients.checks.plain_pass import plain_sketch
from gradstats.gradients.sketches import CountSketch


class InFloat64(TorchFunctionMode):
    """Compute in float64 where a model asks for float32: in norms, softmax, routers and scans."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        named = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*args, **named)


# One of each way in which a model's modules can differ from those that are known.
QUICK = (
    "biogpt",  # positions without an axis of sequences
    "ctrl",  # embeddings that are multiplied in place
    "falcon",  # the output of a module of no known kind is changed in place
    "gpt_neox_japanese",  # a module that returns its parameter
    "jetmoe",  # experts that are used by two methods other than forward
    "longcat_flash",  # a linear layer whose weight is read by the module around it
    "llama4_text",  # experts that get the batch several times
    "recurrent_gemma",  # a module that keeps a state
    "lfm2",  # a convolution whose weight is read by the module around it
    "mamba2",
    "falcon_h1",
    "qwen3_next",
    "gemma4_text",
)


@pytest.mark.parametrize(
    "architecture", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_every_architecture_equals_autograd(architecture):
    model, rollouts = small_model(architecture), ragged_rollouts(5)
    with InFloat64():
        # The measured model is a copy: some modules keep a state from one call to the next.
        measured = gradients.measure(
            copy.deepcopy(model), rollouts, engine="ghost", blocks="parameter", sketch_dim=64, progress=False
        )
        exact = [sequence_gradients(copy.deepcopy(model), rollouts.select([row]))[0] for row in range(5)]
    smallest = 1e-12 * measured.sq_norms.max()
    for name, values in measured.sq_norms_by_block.items():
        expected = [one[name].square().sum().item() for one in exact]
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=smallest, err_msg=name)
    flat = {name: np.stack([one[name].flatten().numpy() for one in exact]) for name in exact[0]}
    explicit = plain_sketch(CountSketch(64, 0, measured.metadata["sketch_version"]), flat)
    gram = explicit @ explicit.T
    np.testing.assert_allclose(measured.sketches @ measured.sketches.T, gram, rtol=0, atol=1e-9 * gram.max())
