"""The sizes that a model's embeddings give."""

from __future__ import annotations

import pytest
import torch
from conftest import VOCABULARY, tiny_model

from gradstats.gradients.checks.self_check import TOLERANCES
from gradstats.policy.model import DTYPES, dtype_name, n_logits, output_embedding, vocabulary_size


def test_every_type_has_its_name_and_a_tolerance():
    assert DTYPES["bfloat16"] is torch.bfloat16
    assert {dtype_name(dtype): dtype for dtype in DTYPES.values()} == DTYPES
    assert set(TOLERANCES) == set(DTYPES.values())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_sizes_are_those_of_the_embeddings(architecture, tied):
    model = tiny_model(architecture, tied)
    assert (vocabulary_size(model), n_logits(model)) == (VOCABULARY, VOCABULARY)
    assert output_embedding(model) is model.lm_head
    assert model(torch.tensor([[3]])).logits.shape[-1] == n_logits(model)


def test_padding_of_the_vocabulary_counts():
    model = tiny_model("qwen2")
    model.resize_token_embeddings(64)
    assert (vocabulary_size(model), n_logits(model)) == (64, 64)


def test_input_and_output_may_have_different_sizes():
    model = tiny_model("llama")
    model.set_output_embeddings(torch.nn.Linear(24, 50, bias=False))
    assert (vocabulary_size(model), n_logits(model)) == (VOCABULARY, 50)
