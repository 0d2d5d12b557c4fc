"""Parameters are found by name: models that replace their parameters are measured exactly, or refused."""

import contextlib

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, oracle
from optimizers import BETAS, EPS, assert_moments, trained
from oracles.naive_estimators import sequence_gradients
from torch import nn

import gradstats as gs
import gradstats.gradients as gradients
from gradstats.gradients.engines.ghost import without_weight_gradients
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.parameters import held_parameters, owners, select_parameters
from gradstats.gradients.tokens.projections import FactoredLayers, Tangents
from gradstats.policy.policy import Policy


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_blocks_and_parameter_subsets(engine, rollouts):
    model = tiny_model("qwen2")
    oracle = sequence_gradients(model, rollouts)
    everything = gradients.measure(model, rollouts, engine=engine, blocks="parameter", sketch_dim=None, progress=False)
    for name in everything.sq_norms_by_block:
        expected = [per_sequence[name].square().sum().item() for per_sequence in oracle]
        np.testing.assert_allclose(everything.sq_norms_by_block[name], expected, rtol=1e-9, atol=1e-20)
    some = gradients.measure(model, rollouts, engine=engine, params=r"mlp\.", sketch_dim=None, progress=False)
    assert list(some.sq_norms_by_block) == ["layers.0", "layers.1"]
    mlp = [name for name in everything.sq_norms_by_block if "mlp." in name]
    np.testing.assert_allclose(some.sq_norms, everything.sq_norms_by_block[mlp].sum(axis=1), rtol=1e-9)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
@pytest.mark.parametrize("tied", [False, True])
def test_proxies_equal_those_of_autograd(engine, tied):
    model, rollouts = tiny_model("qwen2", tied), ragged_rollouts(masked=True)
    policy = Policy(model, temperature=0.7)
    found = gradients.measure(policy, rollouts, engine=engine, sketch_dim=None, progress=False).proxies
    expected = {name: np.zeros(len(rollouts)) for name in ("logit", "surprisal", "entropy", "norm_layers", "head")}
    for row, gradient in enumerate(sequence_gradients(model, rollouts, 0.7)):
        for name, values in gradient.items():
            part = "norm_layers" if "norm" in name else "head" if name == "lm_head.weight" else None
            if part:
                expected[part][row] += values.square().sum().item()
        prompt, drawn = rollouts.tokens("prompt_tokens")[row], rollouts.tokens("completion_tokens")[row]
        logits = model(torch.tensor([[*prompt, *drawn]])).logits[0, len(prompt) - 1 : -1].detach() / 0.7
        for token, at, counts in zip(drawn, logits, rollouts.masks[row], strict=True):
            at = at.requires_grad_()
            logs = torch.log_softmax(at, dim=0)
            (of_logits,) = torch.autograd.grad(logs[token], at)
            sums = of_logits.square().sum(), -logs[token], -(logs.exp() * logs).sum()
            for name, value in zip(("logit", "surprisal", "entropy"), sums, strict=True):
                expected[name][row] += value.item() * counts
    assert set(found) == set(expected) - ({"head"} if tied else set())
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9)


def test_frozen_parameters_are_not_measured(rollouts):
    model = tiny_model("qwen2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    measured = gradients.measure(model, rollouts, progress=False)
    assert list(measured.sq_norms_by_block) == ["layers.1"]
    assert set(measured.proxies) == {"logit", "surprisal", "entropy", "norm_layers"}  # the head is not among them


NAMES = (
    *("transformer.wte.weight", "transformer.h.0.ln_1.weight", "transformer.h.0.attn.c_attn.weight"),
    *("transformer.h.11.mlp.c_fc.weight", "transformer.ln_f.weight", "lm_head.weight", "gpt_neox.embed_out.weight"),
    "value.scale",
)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ("layer", ["embedding", "layers.0", "layers.0", "layers.11", "final norm", "head", "head", "other"]),
        ("kind", ["embedding", "norm", "attention", "mlp", "norm", "head", "head", "other"]),
        ("parameter", list(NAMES)),
        # The first pattern that matches counts.
        (
            {r"attn|h\.0\.": "first", r"ln_": "norms"},
            ["other", "first", "first", "other", "norms", "other", "other", "other"],
        ),
    ],
)
def test_parameters_are_put_into_blocks_by_their_names(blocks, expected):
    model = nn.Module()
    model._parameters = {name: nn.Parameter(torch.zeros(2)) for name in NAMES}
    selection = select_parameters(model, blocks=blocks)
    assert list(selection.parameters) == list(NAMES)
    assert [selection.block_names[selection.block_index[name]] for name in NAMES] == expected
    assert list(selection.block_names) == list(dict.fromkeys(expected))
    assert selection.n_parameters == 2 * len(NAMES)


@pytest.mark.parametrize("options", [{"params": r"(\w+\.?)*!$"}, {"blocks": {r"(\w+\.?)*!$": "never"}}])
def test_a_regular_expression_that_never_ends_is_refused(options, monkeypatch):
    monkeypatch.setattr("gradstats.system.patterns.SECONDS", 1.0)
    with pytest.raises(ValueError, match=rf"{next(iter(options))} is .* does not end within 1 s"):
        select_parameters(tiny_model("qwen2"), **options)


def test_a_model_without_trainable_parameters_is_named_as_such():
    with pytest.raises(ValueError, match=r"some that exist: none: every parameter is frozen \(requires_grad=False\)"):
        select_parameters(tiny_model("gpt2").requires_grad_(False))


def replaced(model: nn.Module, recurse: bool = True) -> None:
    """Replace every parameter by an equal one, as an interrupted forward pass of a sharded model leaves some."""
    for module in model.modules() if recurse else [model]:
        for name, tensor in module._parameters.items():
            if tensor is not None:
                module._parameters[name] = nn.Parameter(tensor.detach().clone(), tensor.requires_grad)


def swapping(model: nn.Module) -> nn.Module:
    """Make each module compute with a copy of its parameters, made before and discarded after its forward pass."""
    for module in model.modules():
        own = dict(module._parameters)
        module.register_forward_pre_hook(lambda module, _: replaced(module, recurse=False))
        module.register_forward_hook(lambda module, *_, own=own: module._parameters.update(own))
    return model


def by_parameter(model, rollouts, selection, engine="ghost"):
    """Squared norms by parameter, by an engine alone."""
    chunk = make_chunk(rollouts, range(len(rollouts)), torch.device("cpu"), torch.float64)
    found = gradients.ENGINES[engine](Policy(model), chunk, selection, None).sq_norms_by_parameter[0]
    return dict(zip(selection.parameters, found.T, strict=True))


def assert_exact(found, expected):
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-18, err_msg=name)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_selection_holds_after_its_parameters_were_replaced(engine, tied, rollouts):
    model = tiny_model("llama", tied)
    expected = oracle(model, rollouts)
    selection = select_parameters(model, blocks="parameter")
    replaced(model)
    if tied and engine != "ghost":
        model.lm_head.weight = model.model.embed_tokens.weight
    assert_exact(by_parameter(model, rollouts, selection, engine), expected)


def test_ghost_is_exact_where_modules_compute_with_copies_and_the_other_engines_refuse(rollouts):
    expected = oracle(tiny_model("gpt2"), rollouts)
    model = swapping(tiny_model("gpt2"))
    selection = select_parameters(model, blocks="parameter")
    assert_exact(by_parameter(model, rollouts, selection), expected)
    message = r"replaces the parameter transformer\.wte\.weight of transformer\.wte \(Embedding\) by another tensor"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        by_parameter(model, rollouts, selection, "loop")
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, progress=False)


def test_a_selected_parameter_without_a_layer_is_named(rollouts):
    model = tiny_model("qwen2")
    selection = select_parameters(model)
    model.model.layers[1].mlp.up_proj = nn.Identity()
    message = (
        r"model\.layers\.1\.mlp\.up_proj\.weight belongs to no layer of the model, since .*\(Identity\) has no weight"
    )
    for find in (
        lambda: list(owners(model, selection)),
        lambda: held_parameters(model, selection),
        lambda: by_parameter(model, rollouts, selection),
        lambda: FactoredLayers(model, selection, Tangents(0, 1)),
    ):
        with pytest.raises(gradients.UnsupportedModuleError, match=message):
            find()
    model.model.layers = model.model.layers[:1]
    with pytest.raises(gradients.UnsupportedModuleError, match=r"since the model has no module model\.layers\.1\."):
        held_parameters(model, selection)


def test_parameters_that_were_replaced_while_frozen_are_released_by_name():
    model = tiny_model("qwen2", tied=True)
    model.model.norm.weight.requires_grad_(False)
    before = set(select_parameters(model).parameters)
    old = list(model.parameters())
    with contextlib.suppress(KeyError), without_weight_gradients(model):
        assert not any(tensor.requires_grad for tensor in model.parameters())
        replaced(model)
        raise KeyError
    assert set(select_parameters(model).parameters) - {"lm_head.weight"} == before
    assert sum(tensor.requires_grad for tensor in old) == len(before)


@pytest.mark.parametrize("engine", ["auto", "ghost", "vmap", "loop"])
def test_offloaded_models_are_refused(engine, rollouts):
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(tiny_model("llama"), torch.device("cpu"))
    message = (
        r"model\.embed_tokens\.weight of model\.embed_tokens \(Embedding\) is offloaded \(on the meta device, by "
        r"device_map or cpu_offload\), .*: load the model on one device, .* by ranks_per_worker"
    )
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, engine=engine, progress=False)
    if engine != "auto":
        with pytest.raises(gradients.UnsupportedModuleError, match=message):
            by_parameter(model, rollouts, select_parameters(model), engine)


def test_models_on_several_devices_are_refused(rollouts):
    model = tiny_model("llama")
    model.hf_device_map = {"model.embed_tokens": "cuda:0", "model.layers": "cuda:1"}
    message = r"the weights are on several devices \(cuda:0, cuda:1, by device_map\), and an engine works on one: load"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, progress=False)
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(tiny_model("llama"), rollouts, reference_policy=model, progress=False)
    model.hf_device_map = {"": "cpu"}
    held_parameters(model, select_parameters(model))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("tied", [False, True])
def test_a_sharded_model_is_measured_exactly_after_an_error_in_the_middle_of_its_forward_pass(one_rank, tied):
    from torch.distributed.fsdp import fully_shard

    model, rollouts = tiny_model("qwen2", tied), ragged_rollouts(4)
    expected = oracle(model, rollouts)
    for layer in model.model.layers:
        fully_shard(layer, mesh=one_rank)
    fully_shard(model, mesh=one_rank)
    selection = select_parameters(model, blocks="parameter")
    assert_exact(by_parameter(model, rollouts, selection), expected)

    def fails(*_):
        raise MemoryError

    handle = model.model.layers[1].mlp.register_forward_pre_hook(fails)
    with pytest.raises(MemoryError):
        by_parameter(model, rollouts, selection)
    handle.remove()
    assert_exact(by_parameter(model, rollouts, selection), expected)
    assert set(select_parameters(model).parameters) == set(selection.parameters)
    with pytest.raises(gradients.UnsupportedModuleError, match=r"the parameter .* of .* is sharded, and only engine"):
        by_parameter(model, rollouts, selection, "loop")


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "qwen3"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_state_of_transformers_trainer_is_named_by_the_order_of_its_parameters(architecture, grouped, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = any_model(architecture)
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], weight_decay=0.1, adam_beta2=BETAS[1], adam_epsilon=EPS
    )
    groups = transformers.Trainer(model, arguments).create_optimizer().param_groups if grouped else None
    assert not grouped or len(groups) == 2
    optimizer, expected = trained(model, [{"params": group["params"]} for group in groups] if grouped else None)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    metric = gs.AdamMetric.read(tmp_path, model)  # its folder
    assert_moments(metric, expected)
    assert (metric.eps, metric.power, metric.step, metric.source) == (EPS, 0.5, None, "optimizer.pt after 3 steps")


def test_named_states_of_wrapped_models(tmp_path):
    model = any_model("qwen2")
    optimizer, expected = trained(model)
    saved = optimizer.state_dict()
    names = [f"module._orig_mod.{name}" for name, _ in model.named_parameters()]
    state = {name: saved["state"][number] for number, name in enumerate(names)}
    torch.save(
        {"optimizer": {"state": state, "param_groups": [saved["param_groups"][0] | {"params": names}]}},
        tmp_path / "a.pt",
    )
    assert_moments(gs.AdamMetric.read(tmp_path / "a.pt", model), expected)
    saved["param_groups"][0]["param_names"] = [name for name, _ in model.named_parameters()][::-1]
    torch.save(saved, tmp_path / "b.pt")
    found = gs.AdamMetric.read(tmp_path / "b.pt", model).second_moments  # recorded names come before the order
    np.testing.assert_allclose(found["lm_head.weight"], expected["model.embed_tokens.weight"])


def test_an_order_that_shapes_do_not_decide_is_refused(tmp_path):
    names = ("norm_bias", "bias_a", "RMSNorm", "other")
    model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 2, bias=False) for name in names})
    parameters = list(model.parameters())
    optimizer, _ = trained(model, [{"params": parameters[:2]}, {"params": parameters[2:]}])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    message = r"fits the model in 2 ways: its entry 0 could be .* or .*; give second moments"
    with pytest.raises(ValueError, match=message):
        gs.AdamMetric.read(tmp_path / "optimizer.pt", model)
