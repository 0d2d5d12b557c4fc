"""The tokens that end a completion."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from conftest import tiny_model

from gradstats.policy.policy import Policy
from gradstats.sampling.sampler import stop_token_ids


@pytest.mark.parametrize(
    ("of_tokenizer", "of_config", "expected"),
    [
        (1, 1, [1]),
        (7, [5, 2], [2, 5, 7]),
        (None, 3, [3]),
        (0, None, [0]),  # token 0 is a token
        (None, None, []),
    ],
)
def test_those_of_the_tokenizer_and_of_the_generation_config(of_tokenizer, of_config, expected):
    model = tiny_model("qwen2")
    model.generation_config.eos_token_id = of_config
    policy = Policy(model, SimpleNamespace(eos_token_id=of_tokenizer))
    assert stop_token_ids(policy) == expected
