"""How far an adapter moves the last hidden state of each token, against two plain forward passes."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats as gs
from gradstats.estimators import Batch, get

peft = pytest.importorskip("peft")
# peft asks transformers for an attribute that is about to be renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def with_adapter(wrapped: bool) -> torch.nn.Module:
    """A model with random LoRA factors on its queries, wrapped by peft or with the adapter added by transformers."""
    model, config = tiny_model("qwen2"), peft.LoraConfig(r=2, target_modules=["q_proj"])
    if wrapped:
        model = peft.get_peft_model(model, config)
    else:
        model.add_adapter(config)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    return model.double().eval()


@pytest.mark.parametrize("wrapped", [True, False], ids=["peft", "transformers"])
def test_the_residual_is_a_column_that_arca_weighs_tokens_by(wrapped, tmp_path):
    model, rollouts = with_adapter(wrapped), ragged_rollouts(6)
    trained = [parameter.requires_grad for parameter in model.parameters()]
    gs.measure(model, rollouts, adapter_residual=True, sketch_dim=8, progress=False).save(tmp_path / "measured")
    measured = gs.read_measurement(tmp_path / "measured")
    assert [parameter.requires_grad for parameter in model.parameters()] == trained

    def hidden(ids):
        with torch.no_grad():
            return model(ids, output_hidden_states=True).hidden_states[-1][0]

    adapted, base, spans = [], [], []
    for prompt, completion in zip(rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), strict=True):
        ids = torch.tensor([[*prompt, *completion]])
        adapted.append(hidden(ids))
        with model.disable_adapter() if wrapped else torch.no_grad():
            if not wrapped:
                model.disable_adapters()
            base.append(hidden(ids))
        if not wrapped:
            model.enable_adapters()
        spans.append(slice(len(prompt) - 1, ids.shape[1] - 1))
    for residual, one, other, span in zip(
        measured.rollouts.frame["adapter_residual"], adapted, base, spans, strict=True
    ):
        np.testing.assert_allclose(residual, (one - other)[span].norm(dim=-1), rtol=1e-9)
    assert get("arca").weights(Batch.from_measurement(measured)).any()


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="Qwen2ForCausalLM has none: name one as policy.adapter"):
        gs.measure(tiny_model("qwen2"), ragged_rollouts(2), adapter_residual=True, progress=False)
    with pytest.raises(ValueError, match="arca needs column:adapter_residual.*--set measurement.adapter_residual=true"):
        get("arca").weights(Batch([1, 0], [1, 2], ["a", "a"]))
