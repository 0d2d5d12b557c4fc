"""Selected parameters and the blocks by which their gradients are reported."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.parameters import select_parameters
from gradstats.reference.naive_estimators import sequence_gradients


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_blocks_and_parameter_subsets(engine, rollouts):
    model = tiny_model("qwen2")
    oracle = sequence_gradients(model, rollouts)
    everything = gradients.measure(model, rollouts, engine=engine, blocks="parameter", sketch_dim=None, progress=False)
    for name in everything.sq_norms_by_block:
        expected = [per_sequence[name].square().sum().item() for per_sequence in oracle]
        np.testing.assert_allclose(everything.sq_norms_by_block[name], expected, rtol=1e-9, atol=1e-20)
    some = gradients.measure(model, rollouts, engine=engine, params=r"mlp\.", sketch_dim=None, progress=False)
    assert list(some.sq_norms_by_block) == ["layers.0", "layers.1"]
    mlp = [name for name in everything.sq_norms_by_block if "mlp." in name]
    np.testing.assert_allclose(some.sq_norms, everything.sq_norms_by_block[mlp].sum(axis=1), rtol=1e-9)


def test_frozen_parameters_are_not_measured(rollouts):
    model = tiny_model("qwen2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    assert list(gradients.measure(model, rollouts, progress=False).sq_norms_by_block) == ["layers.1"]


class Names(torch.nn.Module):
    """A module whose parameters have given names, dots included."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._parameters = {name: torch.nn.Parameter(torch.zeros(2)) for name in names}


NAMES = (
    "transformer.wte.weight",
    "transformer.h.0.ln_1.weight",
    "transformer.h.0.attn.c_attn.weight",
    "transformer.h.11.mlp.c_fc.weight",
    "transformer.ln_f.weight",
    "lm_head.weight",
    "value.scale",
)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ("layer", ["embedding", "layers.0", "layers.0", "layers.11", "final norm", "head", "other"]),
        ("kind", ["embedding", "norm", "attention", "mlp", "norm", "head", "other"]),
        ("parameter", list(NAMES)),
        # The first pattern that matches counts.
        ({r"attn|h\.0\.": "first", r"ln_": "norms"}, ["other", "first", "first", "other", "norms", "other", "other"]),
    ],
)
def test_parameters_are_put_into_blocks_by_their_names(blocks, expected):
    selection = select_parameters(Names(*NAMES), blocks=blocks)
    assert list(selection.parameters) == list(NAMES)
    assert [selection.block_names[selection.block_index[name]] for name in NAMES] == expected
    assert list(selection.block_names) == list(dict.fromkeys(expected))
    assert selection.n_parameters == 2 * len(NAMES)


def test_a_model_without_trainable_parameters_is_named_as_such():
    with pytest.raises(ValueError, match=r"some that exist: none: every parameter is frozen \(requires_grad=False\)"):
        select_parameters(tiny_model("gpt2").requires_grad_(False))
