"""Vectors that other modules read: each sequence gets a copy of its own, where that is shown to be right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import oracle
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.engines.layers import StandIns, broadcasts


class Holder(nn.Module):
    """A module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(24, dtype=torch.float64) + 0.5)


class Scaling(nn.Module):
    """An MLP that multiplies its output by the vector of another module, in one of several ways."""

    def __init__(self, inner: nn.Module, holder: Holder, use) -> None:
        super().__init__()
        self.inner = inner
        self.use = use
        self.holder = [holder]

    def forward(self, hidden):
        return self.use(self.inner(hidden), self.holder[0].scale)


def holding(use) -> nn.Module:
    """A model whose layers read a vector that belongs to a module beside them."""
    model = tiny_model("llama")
    model.model.holder = Holder()
    for layer in model.model.layers:
        layer.mlp = Scaling(layer.mlp, model.model.holder, use)
    return model


def times(hidden, scale):
    return hidden * scale


def outer(hidden, scale):
    return hidden @ torch.outer(scale, scale)


def over_time(hidden, scale):
    """Fits a vector for each sequence, but gives each the vectors of all."""
    return hidden * scale.reshape(-1, 24).mean(dim=0)


@pytest.mark.parametrize(("use", "fits"), [(times, True), (outer, False), (over_time, False)])
def test_stand_ins_are_tried_with_vectors_that_differ_between_sequences(use, fits):
    model = holding(use)
    own = model.model.holder.scale
    one = StandIns("model.holder", model.model.holder, {"scale": "model.holder.scale"})
    assert one.are_vectors
    assert broadcasts(model, [one], torch.arange(35).view(5, 7)) == fits
    assert model.model.holder.scale is own


def test_a_vector_that_every_layer_reads_equals_autograd():
    model, rollouts = holding(times), ragged_rollouts(4)
    measured = gradients.measure(model, rollouts, engine="ghost", blocks="parameter", sketch_dim=64, progress=False)
    for name, values in oracle(model, rollouts).items():
        np.testing.assert_allclose(measured.sq_norms_by_block[name], values, rtol=1e-9, atol=1e-18, err_msg=name)
    assert (measured.sq_norms_by_block["model.holder.scale"] > 0).all()


def test_a_vector_that_is_used_otherwise_is_named(rollouts):
    message = r"cannot differentiate model\.holder \(Holder\), whose parameters another module reads and which owns"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(holding(outer), rollouts, engine="ghost", progress=False)
