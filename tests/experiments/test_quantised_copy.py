"""The copy of a policy with rounded weights."""

import pytest
import torch
from torch import nn

import gradstats as gs


@pytest.mark.parametrize(("kind", "levels"), [("int8", 127), ("int4", 7)])
def test_integers_of_one_step_for_each_channel_or_group(script, kind, levels):
    weight = torch.randn(3, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight[1] = 0.0
    found = script.quantised(weight, kind)
    rows = found.reshape(-1, 256 if kind == "int8" else 128)
    step = weight.reshape(rows.shape).abs().amax(dim=1, keepdim=True) / levels
    assert not found[1].any()
    kept = step[:, 0] > 0
    multiples = rows[kept] / step[kept]
    torch.testing.assert_close(multiples, multiples.round())
    assert multiples.abs().max() == pytest.approx(levels)
    assert ((rows - weight.reshape(rows.shape)).abs() <= step / 2 * (1 + 1e-12)).all()


def test_fp8_keeps_three_bits_of_the_fraction(script):
    weight = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    found = script.quantised(weight, "fp8")
    largest = weight.abs().amax(dim=1, keepdim=True)
    normal = weight.abs() > largest * 2.0**-6 / 448
    assert ((found - weight).abs() <= weight.abs() / 16 * (1 + 1e-5))[normal].all()
    torch.testing.assert_close(script.quantised(found, "fp8"), found)


def test_the_copy_is_loaded_like_any_policy_and_nothing_is_replaced(script, tmp_path):
    script.main("embedded", "int4", tmp_path / "copy")
    copy, original = gs.load_policy(tmp_path / "copy"), gs.load_policy("embedded")
    head = copy.model.get_output_embeddings()
    layers = zip(copy.model.named_modules(), original.model.modules(), strict=True)
    changed = {
        name for (name, one), other in layers if isinstance(one, nn.Linear) and not one.weight.equal(other.weight)
    }
    linear = {name for name, one in copy.model.named_modules() if isinstance(one, nn.Linear) and one is not head}
    assert changed == linear
    assert copy.encode_prompt("1 + 2") == original.encode_prompt("1 + 2")
    with pytest.raises(SystemExit, match="copy exists: remove it, or choose another folder"):
        script.main("embedded", "int8", tmp_path / "copy")
