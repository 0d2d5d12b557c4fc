"""Squared norms and products of outer products against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradstats.gradients.engines.reduction import OuterProducts, contract, gram_strips


@pytest.mark.parametrize("time", [1, 5, 128, 300])
@pytest.mark.parametrize("transposed", [False, True])
def test_gram_form_product_form_and_autograd_agree(time, transposed):
    rng = torch.Generator().manual_seed(time)
    inputs = torch.randn(3, time, 2100, generator=rng, dtype=torch.float64)
    term = OuterProducts(inputs, torch.randn(3, time, 7, generator=rng, dtype=torch.float64), transposed)
    whole = torch.einsum("btr,btc->brc", term.left, term.right)
    expected = whole.square().sum(dim=(1, 2))
    gram = contract(gram_strips(term.gradients, torch.float64), gram_strips(term.inputs, torch.float64))
    torch.testing.assert_close(gram, expected, rtol=1e-11, atol=0)
    pieces = [(first, product.clone()) for first, product in term.products(torch.float64)]
    torch.testing.assert_close(torch.cat([product for _, product in pieces], dim=1), whole)
    assert [first for first, _ in pieces] == np.cumsum([0, *(p.shape[1] for _, p in pieces[:-1])]).tolist()


def test_the_cheaper_form_is_chosen():
    def term(time, inputs, outputs):
        return OuterProducts(torch.zeros(1, time, inputs), torch.zeros(1, time, outputs))

    assert term(128, 576, 1536).prefers_gram()
    assert not term(2048, 576, 192).prefers_gram()
    assert not term(512, 24, 40).prefers_gram()
    # 512 tokens, 576 × 576: not by itself, but together with the keys' and values' layers, which share the inputs.
    assert not term(512, 576, 576).prefers_gram()
    assert term(512, 576, 576).prefers_gram(shared=3)


@pytest.mark.parametrize(("first", "last", "kept"), [(0, 9, 9), (2, 9, 7), (0, 6, 6), (2, 6, 4), (0, 0, 9)])
def test_times_without_a_gradient_are_cut_off_at_both_ends(first, last, kept):
    rng = torch.Generator().manual_seed(0)
    gradients = torch.zeros(2, 9, 4, dtype=torch.float64)
    # The second sequence is shorter, and a time in the middle has no gradient in either.
    gradients[0, first:last] = torch.randn(last - first, 4, generator=rng, dtype=torch.float64)
    gradients[1, first : max(first, last - 1)] = 1.0
    gradients[:, 4:5] = 0.0
    term = OuterProducts(torch.randn(2, 9, 3, generator=rng, dtype=torch.float64), gradients)
    cut = term.without_idle_ends()
    assert cut.inputs.shape[1] == cut.gradients.shape[1] == kept
    torch.testing.assert_close(cut.left.mT @ cut.right, term.left.mT @ term.right)
