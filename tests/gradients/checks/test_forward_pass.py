"""Models whose log-probabilities are not those of a policy are refused, and wrappers that change nothing are not."""

import random

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from gradient_models import any_model, lora_model, oracle, randomised
from oracles.naive_estimators import sequence_gradients
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from gradstats.gradients import head, measure
from gradstats.gradients.checks import forward_pass
from gradstats.gradients.checks.forward_pass import refuse_unfit_forward
from gradstats.policy.policy import Policy, as_policy
from gradstats.rollouts.table import Rollouts

# What peft and torch.compile say of themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
ROLLOUTS = Rollouts.from_sequences([[3], [3, 4]], [[5, 6, 7, 8, 9], [8, 9]], [1.0, 0.0], ["a", "b"])
ONE_TOKEN = Rollouts.from_sequences([[3]], [[5]], [1.0], ["a"])
CAUSAL = r"is not causal: changing a later token changes .* an earlier one.*earlier tokens alone"


def encoder(kind: str) -> nn.Module:
    """An encoder of random weights as small as libraries make them, which leak little of later tokens."""
    sizes = {
        "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2},
        "xlnet": {"d_model": 16, "n_layer": 2, "d_inner": 24, "n_head": 2},
    }
    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "masked language model":
            return BertForMaskedLM(BertConfig(vocab_size=41, **common)).eval()
        config = AutoConfig.for_model(kind, vocab_size=41, **sizes.get(kind, common))
        return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm", "xlnet", "masked language model"])
def test_an_encoder_is_refused(kind, dtype):
    policy = as_policy(encoder(kind).to(dtype))
    for rollouts in (ROLLOUTS, ONE_TOKEN):
        with pytest.raises(ValueError, match=CAUSAL):
            refuse_unfit_forward(policy, rollouts)
    with pytest.raises(ValueError, match=CAUSAL):
        measure(policy, ROLLOUTS, sketch_dim=None, progress=False)


@pytest.mark.parametrize("most_logits", [0, 2**24], ids=["hidden states", "logits"])
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_a_model_that_sees_a_few_tokens_ahead_is_refused(ahead, most_logits, monkeypatch):
    """In blocks of ``ahead`` tokens, as of block diffusion, or a window, whose last position alone sees a change."""
    monkeypatch.setattr(head, "MOST_LOGITS", most_logits)
    refuse_unfit_forward(Policy(tiny_model("qwen2")), ROLLOUTS)
    model = tiny_model("qwen2")
    embedding, own = model.model.embed_tokens, model.model.embed_tokens.forward

    def forward(ids):
        embedded = own(ids)
        return embedded + 0.1 * torch.nn.functional.pad(embedded[:, ahead:], (0, 0, 0, ahead))

    embedding.forward = forward
    with pytest.raises(ValueError, match=CAUSAL):
        refuse_unfit_forward(Policy(model), ROLLOUTS)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma", "qwen2_moe"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_causal_model_passes(architecture, dtype):
    model = any_model(architecture).to(dtype)
    for rollouts in (ROLLOUTS, ONE_TOKEN, ragged_rollouts()):
        refuse_unfit_forward(Policy(model), rollouts)


def test_a_prompt_that_is_seen_whole_is_no_fault():
    """A prefix language model conditions on the whole prompt, which is given."""
    model = tiny_model("qwen2")
    own = model.model.embed_tokens.forward
    model.model.embed_tokens.forward = lambda ids: own(ids) + own(ids[:, :2]).mean(dim=1, keepdim=True)
    refuse_unfit_forward(Policy(model), ROLLOUTS.select([1]))
    with pytest.raises(ValueError, match=CAUSAL):
        refuse_unfit_forward(Policy(model), ROLLOUTS.select([0]))  # of one token: the second is the completion's


DRAWS = {
    "torch": lambda: float(torch.rand([])),
    "NumPy": lambda: float(np.random.rand()),  # noqa: NPY002 # as models do
    "Python": random.random,
}


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("draw", DRAWS)
def test_layerdrop_is_refused_whatever_is_drawn(draw, always):
    """In training mode drawing alone is enough: two passes are equal in four of five cases."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    model, draw = tiny_model("qwen2"), DRAWS[draw]
    layer, own = model.model.layers[0], model.model.layers[0].forward

    def forward(hidden, **options):
        left_out = (layer.training and draw() < 0.1) or (always and draw() < 0.5)
        return hidden if left_out else own(hidden, **options)

    layer.forward = forward
    for seed in range(8):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model.train(not always)
            with pytest.raises(ValueError, match=r"different outputs for the same input .*call model\.eval\(\)"):
                refuse_unfit_forward(Policy(model), ROLLOUTS)


def test_training_mode_without_a_random_part_is_measured():
    model = tiny_model("qwen2").train()
    np.testing.assert_allclose(
        measure(model, ROLLOUTS, sketch_dim=None, progress=False).sq_norms,
        sum(oracle(model, ROLLOUTS).values()),
        rtol=1e-9,
    )


def test_a_number_that_is_drawn_and_not_used_in_evaluation_mode_is_no_fault(monkeypatch):
    model, scored, logits = tiny_model("qwen2"), [], forward_pass._logits
    model.register_forward_pre_hook(lambda *_: random.random() and None)
    monkeypatch.setattr(forward_pass, "_logits", lambda *given: scored.append(1) or logits(*given))
    refuse_unfit_forward(Policy(model), ROLLOUTS)
    assert len(scored) == 19  # once, 16 times again, and with other tokens from two on


@pytest.mark.parametrize(
    ("kind", "model", "config"),
    [("t5", T5ForConditionalGeneration, T5Config), ("bart", BartForConditionalGeneration, BartConfig)],
)
def test_an_encoder_beside_a_decoder_is_refused(kind, model, config):
    parts = ("layers", "attention_heads", "ffn_dim")
    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in parts} if kind == "bart" else {}
    sizes |= {"d_ff": 24, "num_layers": 1, "num_heads": 2} if kind == "t5" else {}
    with pytest.raises(ValueError, match=rf"has an encoder beside its decoder \({kind}\).*decoder-only model"):
        measure(model(config(vocab_size=41, d_model=16, **sizes)).eval(), ROLLOUTS, sketch_dim=None, progress=False)


PROMPT_METHODS = {
    "PromptTuningConfig": {"num_virtual_tokens": 3},
    "PromptEncoderConfig": {"num_virtual_tokens": 3, "encoder_hidden_size": 8},
    "CPTConfig": {"cpt_token_ids": [3, 4, 5], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]},
    "MultitaskPromptTuningConfig": {"num_virtual_tokens": 3, "num_tasks": 2},
}


@pytest.mark.parametrize("method", PROMPT_METHODS)
def test_virtual_tokens_before_the_sequence_are_refused(method):
    peft = pytest.importorskip("peft")
    config = getattr(peft, method)(task_type="CAUSAL_LM", **PROMPT_METHODS[method])
    model = peft.get_peft_model(AutoModelForCausalLM.from_config(tiny_config("qwen2")), config).eval()
    with pytest.raises(ValueError, match="puts virtual tokens before the sequence .*such as LoRA or prefix tuning"):
        measure(model, ROLLOUTS, sketch_dim=None, progress=False)


def test_prefix_tuning_is_measured():
    peft = pytest.importorskip("peft")
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = randomised(peft.get_peft_model(AutoModelForCausalLM.from_config(tiny_config("qwen2")), config))
    expected = []
    for gradient in sequence_gradients(model, ROLLOUTS):
        trained = [gradient[name] for name, parameter in model.named_parameters() if parameter.requires_grad]
        expected.append(sum(float(part.square().sum()) for part in trained))
    np.testing.assert_allclose(measure(model, ROLLOUTS, sketch_dim=None, progress=False).sq_norms, expected, rtol=1e-9)


def test_logits_at_other_positions_than_the_tokens_are_refused():
    """Two tokens before the sequence, as peft's prompt tuning has them."""
    model = tiny_model("qwen2")
    own = model.model.embed_tokens.forward
    model.model.embed_tokens.forward = lambda ids: own(torch.nn.functional.pad(ids, (2, 0)))
    with pytest.raises(ValueError, match="gives logits at 5 positions for 3 tokens: measure a model whose logits"):
        refuse_unfit_forward(Policy(model), Rollouts.from_sequences([[3]], [[5, 6]], [1.0], ["a"]))


def in_place(model):
    model.compile(backend="eager")
    return model


def forward_method(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def layer_by_layer(model):
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer, backend="eager")
    return model


@pytest.mark.parametrize(
    "compiled",
    [lambda model: torch.compile(model, backend="eager"), nn.DataParallel, in_place, forward_method, layer_by_layer],
    ids=["whole", "data parallel", "in place", "forward method", "layer by layer"],
)
def test_a_model_that_is_compiled_or_under_data_parallel_is_measured_as_it_was_written(compiled):
    expected = sum(oracle(tiny_model("qwen2"), ROLLOUTS).values())
    model = compiled(tiny_model("qwen2"))
    model(torch.tensor([[3, 4, 5]]), use_cache=False)
    for engine in ("auto", "ghost", "vmap", "loop"):
        found = measure(model, ROLLOUTS, sketch_dim=None, engine=engine, progress=False)
        np.testing.assert_allclose(found.sq_norms, expected, rtol=1e-9, err_msg=engine)
        assert found.metadata["policy"]["architecture"] == "Qwen2ForCausalLM"


def test_a_compiled_adapter_is_measured_under_its_own_names():
    pytest.importorskip("peft")
    adapted, options = lora_model(), {"params": "lora_A", "blocks": "parameter", "sketch_dim": None, "progress": False}
    expected = measure(adapted, ROLLOUTS, **options)
    model = torch.compile(adapted, backend="eager")
    model(torch.tensor([[3, 4, 5]]), use_cache=False)
    found = measure(model, ROLLOUTS, **options)
    assert list(found.sq_norms_by_block) == list(expected.sq_norms_by_block)
    np.testing.assert_allclose(found.sq_norms, expected.sq_norms, rtol=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("engine", ["auto", "ghost", "vmap", "loop"])
def test_sparse_gradients_of_an_embedding_are_the_dense_ones(engine, tied):
    expected = sum(oracle(tiny_model("qwen2", tied), ROLLOUTS).values())
    model = tiny_model("qwen2", tied)
    model.model.embed_tokens.sparse = True
    found = measure(model, ROLLOUTS, sketch_dim=16, engine=engine, progress=False)
    np.testing.assert_allclose(found.sq_norms, expected, rtol=1e-9)
    assert model.model.embed_tokens.sparse


def test_a_model_without_an_output_embedding_is_refused():
    with pytest.raises(ValueError, match="Qwen2Model has no output embedding.*load .* AutoModelForCausalLM"):
        measure(tiny_model("qwen2").model, ROLLOUTS, sketch_dim=None, progress=False)
