"""Keys and values with room for more, against transformers' concatenation."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer

from gradstats.sampling.transformers_sampler import ROOM, GrowingLayer


def states(generator, rows, tokens):
    return [torch.randn(rows, 3, tokens, 4, dtype=torch.float64, generator=generator) for _ in range(2)]


def agree(layer, concatenated):
    return (
        torch.equal(layer.keys, concatenated.keys)
        and torch.equal(layer.values, concatenated.values)
        and layer.get_seq_length() == concatenated.get_seq_length()
    )


def test_it_holds_what_concatenation_holds_also_after_rows_were_taken_out():
    generator = torch.Generator().manual_seed(0)
    layer, concatenated = GrowingLayer(), DynamicLayer()
    rows = 6
    for stage, tokens in enumerate([5, *[1] * (2 * ROOM), 3, *[1] * 7]):
        if stage in (1, 20, ROOM + 3):  # before, within and after the first renewal of the buffers
            kept = torch.arange(1, rows).flip(0)
            rows -= 1
            layer.reorder_cache(kept)
            concatenated.reorder_cache(kept)
        further = states(generator, rows, tokens)
        returned, expected = layer.update(*further), concatenated.update(*further)
        assert all(torch.equal(one, other) for one, other in zip(returned, expected, strict=True))
        assert agree(layer, concatenated)
    assert layer.get_seq_length() == 5 + 2 * ROOM + 3 + 7


def test_shortened_and_reset_it_goes_on_as_concatenation_does():
    generator = torch.Generator().manual_seed(1)
    layer, concatenated = GrowingLayer(), DynamicLayer()
    for one in (layer, concatenated):
        one.update(*states(torch.Generator().manual_seed(2), 2, 9))
        one.crop(-4)
    further = states(generator, 2, 2)
    layer.update(*further)
    concatenated.update(*further)
    assert agree(layer, concatenated)
    for one in (layer, concatenated):
        one.reset()
        one.update(*further)
    assert agree(layer, concatenated)


def test_within_its_room_a_token_copies_nothing_that_was_there():
    generator = torch.Generator().manual_seed(3)
    layer = GrowingLayer()
    layer.update(*states(generator, 2, 5))
    where = layer.keys.data_ptr(), layer.values.data_ptr()
    for _ in range(ROOM):
        layer.update(*states(generator, 2, 1))
        assert (layer.keys.data_ptr(), layer.values.data_ptr()) == where
    layer.update(*states(generator, 2, 1))
    assert layer.keys.data_ptr() != where[0]
