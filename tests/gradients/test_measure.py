"""Settings that measure refuses."""

from __future__ import annotations

import pytest
from conftest import tiny_model

import gradstats.gradients as gradients


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "ghosts"}, "engine is 'ghosts': choose one of auto, ghost, vmap, loop"),
        (
            {"params": "nothing_like_it"},
            r"matches no trainable parameter; some that exist: model\.embed_tokens\.weight",
        ),
        ({"params": "("}, "is not a regular expression"),
        ({"blocks": "rows"}, "blocks is 'rows'"),
        ({"token_budget": 0}, "token_budget is 0"),
        ({"memory_gib": 0.0}, "memory_gib is 0.0"),
    ],
)
def test_bad_settings_are_refused(options, message, rollouts):
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False, **options)


def test_a_model_of_no_kind_is_refused(rollouts):
    with pytest.raises(TypeError, match="policy is a str: pass a Policy"):
        gradients.measure("gpt2", rollouts, progress=False)
