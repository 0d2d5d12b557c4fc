"""Modules whose output for a sequence depends on the other sequences of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradstats.gradients.engines.recomputed import refuse_interacting_tokens, rows_of
from gradstats.gradients.parameters import UnsupportedModuleError

BATCH, TIME = 3, 200


@pytest.mark.parametrize("shape", [(BATCH, TIME, 2), (BATCH * TIME, 2)])
def test_the_rows_of_a_sequence_with_separate_and_merged_axes(shape):
    values = torch.arange(BATCH * TIME * 2).view(shape)
    expected = torch.arange(TIME * 2, 2 * TIME * 2)
    assert torch.equal(rows_of(values, 1, BATCH, [TIME]).flatten(), expected)
    shared = torch.arange(5)
    assert rows_of(shared, 1, BATCH, [TIME]) is shared


def with_deviations(n, merged):
    """A module whose output deviates at the last tokens of a batch of several sequences."""

    def call(hidden):
        out = hidden.clone()
        rows = out.view(-1, 2)
        if len(rows) > TIME and n:
            rows[-n:] += 1.0
        return out, torch.zeros(len(rows), dtype=torch.long)

    hidden = torch.randn(BATCH, TIME, 2, generator=torch.Generator().manual_seed(0))
    return (hidden.flatten(0, 1) if merged else hidden), call


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("n", "passes"), [(0, True), (2, True), (3, False), (150, False)])
def test_more_than_a_few_tokens_are_refused(n, passes, merged):
    hidden, call = with_deviations(n, merged)

    def check():
        refuse_interacting_tokens("a.b", nn.Identity(), (hidden,), {}, call(hidden), BATCH, [TIME], call)

    if passes:
        check()
    else:
        with pytest.raises(UnsupportedModuleError, match=r"a\.b \(Identity\), which gives a sequence another output"):
            check()


def test_a_shape_that_depends_on_the_batch_is_refused():
    hidden = torch.zeros(BATCH, TIME, 2)

    def call(values):
        return values[:, : 10 * len(values)]

    with pytest.raises(UnsupportedModuleError, match="another output alone"):
        refuse_interacting_tokens("a", nn.Identity(), (hidden,), {}, call(hidden), BATCH, [TIME], call)


def test_one_sequence_has_none_to_interact_with():
    refuse_interacting_tokens("a", nn.Identity(), (), {}, None, 1, [TIME], lambda: pytest.fail("was called"))
