"""Which layer a parameter belongs to."""

from __future__ import annotations

import pytest

from gradstats.measurement.measurement import split_layer


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.11.self_attn.q_proj.weight", (11, "self_attn.q_proj.weight")),
        ("transformer.h.0.ln_1.weight", (0, "ln_1.weight")),
        ("encoder.layer.2.block.7.dense.bias", (2, "block.7.dense.bias")),
        ("layers.3", (3, "")),
        ("model.embed_tokens.weight", None),
        ("layers", None),
    ],
)
def test_the_first_number_after_a_list_of_layers_counts(name, layer):
    assert split_layer(name) == layer
