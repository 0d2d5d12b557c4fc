"""The names of modules in the messages of engines."""

from __future__ import annotations

from torch import nn

from gradstats.gradients.parameters import describe


def test_a_module_is_described_by_its_path_and_class():
    assert describe("layers.1.mlp", nn.Linear(1, 1)) == "layers.1.mlp (Linear)"
    assert describe("", nn.Identity()) == "the model itself (Identity)"
