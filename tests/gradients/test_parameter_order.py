"""The names of the entries of an optimizer's state: by recorded names, and by the order of a trainer's groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradient_models import any_model
from optimizers import BETAS, EPS, assert_moments, decay_groups, trained

import gradstats as gs


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "qwen3"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_state_of_a_trainer_is_named_by_the_order_of_its_parameters(architecture, grouped, tmp_path):
    model = any_model(architecture)
    optimizer, expected = trained(model, decay_groups(model) if grouped else None)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    metric = gs.AdamMetric.read(tmp_path / "optimizer.pt", model)
    assert_moments(metric, expected)
    assert (metric.eps, metric.power, metric.step, metric.source) == (EPS, 0.5, None, "optimizer.pt after 3 steps")
    assert gs.AdamMetric.read(tmp_path, model).digest() == metric.digest()  # its folder


@pytest.mark.parametrize("grouped", [False, True])
def test_the_trainer_of_transformers_writes_such_a_file(grouped, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = any_model("qwen2")
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], weight_decay=0.1 * grouped, adam_beta2=BETAS[1], adam_epsilon=EPS
    )
    optimizer = transformers.Trainer(model, arguments).create_optimizer()
    assert len(optimizer.param_groups) == 2
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for number, (_, tensor) in enumerate(model.named_parameters()):
        tensor.grad = torch.full_like(tensor, number + 1.0)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    metric = gs.AdamMetric.read(tmp_path, model)
    expected = {name: torch.full_like(t, (n + 1.0) ** 2) for n, (name, t) in enumerate(model.named_parameters())}
    assert_moments(metric, expected, rtol=1e-6)


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
    model = torch.nn.ModuleDict(
        {"norm_bias": torch.nn.Linear(1, 2, bias=False), "bias_a": torch.nn.Linear(1, 2, bias=False)}
    )
    model["RMSNorm"] = torch.nn.Linear(1, 2, bias=False)
    model["other"] = torch.nn.Linear(1, 2, bias=False)
    parameters = list(model.parameters())
    optimizer, _ = trained(model, [{"params": parameters[:2]}, {"params": parameters[2:]}])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(
        ValueError, match=r"fits the model in 2 ways: its entry 0 could be .* or .*; give second moments"
    ):
        gs.AdamMetric.read(tmp_path / "optimizer.pt", model)
