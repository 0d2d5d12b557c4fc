"""The gradients of single layers against autograd, and layers that are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.engines.layers import KINDS, BroadcastLayer, EmbeddingRows
from gradstats.gradients.engines.reduction import OuterProducts


class ScaledEmbedding(nn.Embedding):
    embed_scale = 3.0

    def forward(self, ids):
        return super().forward(ids) * self.embed_scale


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(6, 4), (3, 5, 6)),
        (nn.Linear(6, 4, bias=False), (3, 2, 5, 6)),
        (nn.LayerNorm(6), (3, 5, 6)),
        (nn.LayerNorm(6, bias=False), (3, 5, 6)),
        (nn.LayerNorm((2, 6)), (3, 5, 2, 6)),
        (nn.RMSNorm(6), (3, 5, 4, 6)),
        (nn.Embedding(9, 4, padding_idx=2), None),
        (ScaledEmbedding(9, 4), None),
    ],
)
def test_terms_of_single_layers(module, shape):
    torch.manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    inputs = torch.randint(0, 9, (3, 5)) if shape is None else torch.randn(shape, dtype=torch.float64)
    output = module(inputs)
    gradient = torch.randn_like(output)
    kind = next(kind for kind in KINDS if kind.handles(module))
    layer = kind("somewhere", module, {name: name for name, _ in module.named_parameters()})
    assert dict(layer.term_kinds()).keys() == dict(module.named_parameters()).keys()
    for name, term in layer.terms(inputs, gradient.detach()):
        if isinstance(term, OuterProducts):
            found = torch.einsum("btr,btc->brc", term.left, term.right)
        elif isinstance(term, EmbeddingRows):
            found = torch.stack(
                [
                    torch.zeros_like(module.weight).index_add(0, ids, rows)
                    for ids, rows in zip(term.ids, term.values, strict=True)
                ]
            )
        else:
            found = term
        for row in range(3):
            (expected,) = torch.autograd.grad(output[row], dict(module.named_parameters())[name], gradient[row], True)
            torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize(
    "module",
    [
        nn.Embedding(9, 4, max_norm=1.0),
        nn.Embedding(9, 4, scale_grad_by_freq=True),
        nn.Bilinear(3, 3, 2),
        nn.BatchNorm1d(3),
    ],
)
def test_layers_that_compute_something_else_are_not_taken_for_known_ones(module):
    assert not any(kind.handles(module) for kind in KINDS)


def test_sequences_that_cannot_be_told_apart_are_refused():
    layer = next(kind for kind in KINDS if kind.handles(nn.Linear(2, 2)))("experts.3.up", nn.Linear(2, 2), {})
    with pytest.raises(gradients.UnsupportedModuleError, match=r"sequences in experts\.3\.up \(Linear\), .* \(9, 2\)"):
        layer.per_token(torch.zeros(9, 2), 3, (5,))
    norm = BroadcastLayer("norm", torch.nn.Identity(), {})
    with pytest.raises(gradients.UnsupportedModuleError, match=r"cannot distinguish sequences in norm"):
        norm.stand_in(torch.zeros(9, 2), 3, (5,))
