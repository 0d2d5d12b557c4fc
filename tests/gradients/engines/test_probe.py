"""Which modules the ghost engine runs again as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import oracle
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.engines.ghost import probed_layers
from gradstats.gradients.engines.layers import supported_layers
from gradstats.gradients.parameters import select_parameters


class Reading(nn.Module):
    """An MLP that reads the weight of one of its linear layers instead of calling it."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.inner = mlp

    def forward(self, hidden):
        gate = nn.functional.silu(hidden @ self.inner.gate_proj.weight.T)
        return self.inner.down_proj(gate * self.inner.up_proj(hidden))


class Returning(Reading):
    """An MLP with a parameter of its own, which it returns to the module around it."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__(mlp)
        self.shift = nn.Parameter(torch.rand(24, dtype=torch.float64))

    def forward(self, hidden):
        return self.inner(hidden), self.shift


class Adding(nn.Module):
    """Adds what the module inside it returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        return sum(self.inner(hidden))


class Remembering(nn.Module):
    """A module with a state of one row for each sequence, which the module around it forgets before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(24, dtype=torch.float64))
        self.state = None

    def forward(self, hidden):
        before = torch.zeros_like(hidden[:, 0]) if self.state is None else self.state
        self.state = hidden[:, -1].detach()
        return (hidden + before[:, None]) * self.scale


class Forgetting(Reading):
    """An MLP around a module that keeps a state."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__(mlp)
        self.remembering = Remembering()

    def forward(self, hidden):
        self.remembering.state = None
        return self.remembering(self.inner(hidden))


def changed(change) -> nn.Module:
    model = tiny_model("llama")
    model.model.layers[0].mlp = change(model.model.layers[0].mlp)
    return model


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (Reading, "model.layers.0.mlp"),  # the MLP inside, whose layer is read, is not called
        (lambda mlp: Adding(Returning(mlp)), "model.layers.0.mlp"),
        (Forgetting, "model.layers.0.mlp"),
    ],
)
def test_the_module_around_is_run_again(change, path):
    model, rollouts = changed(change), ragged_rollouts(4)
    selection = select_parameters(model)
    others = probed_layers(model, selection)[2]
    assert [other.path for other in others] == [path]
    measured = gradients.measure(model, rollouts, engine="ghost", blocks="parameter", sketch_dim=None, progress=False)
    for name, values in oracle(model, rollouts).items():
        np.testing.assert_allclose(measured.sq_norms_by_block[name], values, rtol=1e-9, atol=1e-18, err_msg=name)


def test_a_model_of_known_layers_is_left_as_it_is():
    model = tiny_model("qwen2", tied=True)
    selection = select_parameters(model)
    assert probed_layers(model, selection) == (*supported_layers(model, selection), [])


def test_a_model_is_probed_once_and_again_when_its_modules_change():
    model = tiny_model("llama")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        probed_layers(model, select_parameters(model))
    assert len(calls) == 1
    model.model.layers[0].mlp = Reading(model.model.layers[0].mlp)
    probed_layers(model, select_parameters(model))
    assert len(calls) > 1


class ReadingEmbedding(nn.Module):
    """Adds the mean row of the model's embedding."""

    def __init__(self, inner: nn.Module, embedding: nn.Embedding) -> None:
        super().__init__()
        self.inner = inner
        self.weight_of = [embedding]

    def forward(self, hidden):
        return self.inner(hidden) + self.weight_of[0].weight.mean(dim=0)


def test_a_parameter_that_is_read_far_from_its_module_is_named(rollouts):
    model = tiny_model("llama")
    model.model.layers[0].mlp = ReadingEmbedding(model.model.layers[0].mlp, model.model.embed_tokens)
    message = (
        r"cannot differentiate model\.embed_tokens \(Embedding\), whose parameters another module reads and which "
        r"owns model\.embed_tokens\.weight: use"
    )
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, engine="ghost", progress=False)
    with pytest.warns(UserWarning, match=message):
        measured = gradients.measure(model, rollouts, sketch_dim=None, progress=False)
    assert measured.metadata["engine"] == "vmap"
