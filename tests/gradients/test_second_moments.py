"""Second moments from optimizers, their files, and tensor files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model
from metrics import random_metric
from optimizers import EPS, assert_moments, decay_groups, trained
from safetensors.torch import save_file

import gradstats as gs
import gradstats.gradients as gradients
from gradstats.gradients.metric import read_metric


def test_live_from_an_optimizer_in_use():
    model = any_model("gpt2", tied=True)
    optimizer, expected = trained(model, decay_groups(model))
    metric = gs.AdamMetric.of_optimizer(optimizer, model)
    assert_moments(metric, expected)
    assert (metric.eps, metric.source) == (EPS, "AdamW after 3 steps")
    measured = gradients.measure(model, ragged_rollouts(3), metric=metric, sketch_dim=None, progress=False)
    assert measured.metadata["metric"]["source"] == "AdamW after 3 steps"


def test_amsgrad_divides_by_the_largest_moments():
    model = any_model("qwen2")
    optimizer, expected = trained(model, amsgrad=True)
    name, tensor = next(iter(model.named_parameters()))
    optimizer.state[tensor]["max_exp_avg_sq"].mul_(4)
    found = gs.AdamMetric.of_optimizer(optimizer, model).second_moments[name]
    assert bool((found >= 4 * expected[name] * (1 - 1e-12)).all())


def test_tensors_of_the_users(tmp_path):
    model = any_model("qwen2")
    metric = random_metric(model, eps=1e-5, source="the mean of 100 batches")
    metric.save(tmp_path / "moments.safetensors")
    again = gs.AdamMetric.read(tmp_path / "moments.safetensors", model)
    assert again.describe() == metric.describe()
    plain = {f"{name}.exp_avg_sq": values.contiguous() for name, values in metric.second_moments.items()}
    save_file(
        plain | {f"{name}.exp_avg": -values for name, values in metric.second_moments.items()},
        tmp_path / "a.safetensors",
    )
    of_state = gs.AdamMetric.read(tmp_path / "a.safetensors", model, step=7, beta2=0.9, power=0.25)
    assert of_state.digest() == metric.digest()
    assert (of_state.eps, of_state.step, of_state.beta2, of_state.power) == (1e-8, 7, 0.9, 0.25)


def test_the_embedded_policy_has_the_second_moments_of_its_training():
    policy = gs.load_policy("embedded")
    metric = read_metric("adam", "embedded", policy.model)
    assert (metric.step, metric.beta2, metric.eps) == (5500, 0.99, 1e-8)
    assert set(metric.preconditioner(policy.model, gradients.select_parameters(policy.model)))
    assert read_metric("adam(eps=1e-4, power=1.0)", "embedded", policy.model).eps == 1e-4


def test_a_measurement_names_its_file(tmp_path):
    model, rollouts = tiny_model("qwen2"), ragged_rollouts(3)
    metric = random_metric(model)
    metric.save(tmp_path / "moments.safetensors")
    options = {"sketch_dim": None, "progress": False}
    read = gradients.measure(
        model, rollouts, metric="adam", second_moments=str(tmp_path / "moments.safetensors"), **options
    )
    given = gradients.measure(model, rollouts, metric=metric, **options)
    np.testing.assert_allclose(read.sq_norms, given.sq_norms, rtol=1e-5)  # read in float32


def bad_state(model, change):
    saved = trained(model)[0].state_dict()
    change(saved)
    return saved


def no_moments(saved):
    for state in saved["state"].values():
        del state["exp_avg_sq"]


WRONG = {
    "a mismatch": (
        lambda saved: saved["state"][0].update(exp_avg_sq=torch.ones(2, 2)),
        r"does not fit the model: model\.embed_tokens\.weight has the shape \(41, 24\), and the state \(2, 2\)",
    ),
    "another number": (lambda saved: saved["param_groups"][0]["params"].pop(), r"has 26 parameters, and the model 27"),
    "no second moments": (
        no_moments,
        r"state of model\.embed_tokens\.weight holds step, exp_avg and no second moments",
    ),
    "no step": (lambda saved: [one.pop("step") for one in saved["state"].values()], r"records no step"),
    "no state": (lambda saved: saved.pop("state"), r"holds no optimizer's state_dict"),
}


@pytest.mark.parametrize("what", WRONG)
def test_states_that_do_not_fit(what, tmp_path):
    model = any_model("qwen2")
    change, message = WRONG[what]
    torch.save(bad_state(model, change), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match=message):
        gs.AdamMetric.read(tmp_path / "optimizer.pt", model)


@pytest.mark.parametrize(("setting", "value"), [("step", 5), ("beta2", 0.5)])
def test_a_state_corrects_by_its_own_steps(setting, value, tmp_path):
    model = any_model("qwen2")
    torch.save(trained(model)[0].state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match=f"{setting} is {value}, but .* records its own .*: leave {setting} out"):
        gs.AdamMetric.read(tmp_path / "optimizer.pt", model, **{setting: value})


def test_files_that_are_not_read(tmp_path):
    model = any_model("qwen2")
    torch.save({"state": model, "param_groups": []}, tmp_path / "code.pt")
    with pytest.raises(ValueError, match=r"code\.pt holds more than tensors and numbers, and is not read"):
        gs.AdamMetric.read(tmp_path / "code.pt", model)
    (tmp_path / "cut.pt").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"cut\.pt .*: save"):
        gs.AdamMetric.read(tmp_path / "cut.pt", model)
    for content in (b"", b"hello"):
        (tmp_path / "other.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"other\.pt cannot be read \(.+\): save it again"):
            gs.AdamMetric.read(tmp_path / "other.pt", model)
    (tmp_path / "cut.safetensors").write_bytes(b"\x08")
    with pytest.raises(ValueError, match=r"cut\.safetensors cannot be read as safetensors"):
        gs.AdamMetric.read(tmp_path / "cut.safetensors", model)
    with pytest.raises(FileNotFoundError, match=r"second_moments is .*none\.pt', and there is no such file"):
        gs.AdamMetric.read(tmp_path / "none.pt", model)
    for inside, message in (
        ("zero_pp_rank_0.pt", "DeepSpeed optimizer"),
        ("x.distcp", "dcp_to_torch"),
        ("y", "holds none of"),
    ):
        folder = tmp_path / f"folder {inside}"
        folder.mkdir()
        (folder / inside).touch()
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            gs.AdamMetric.read(folder, model)


def test_other_optimizers_and_models_are_refused():
    model = any_model("qwen2")
    with pytest.raises(ValueError, match="the optimizer has no state for a parameter of the model"):
        gs.AdamMetric.of_optimizer(torch.optim.AdamW(model.parameters()), model)
    optimizer, _ = trained(model)
    with pytest.raises(ValueError, match="the optimizer has no state for a parameter of the model"):
        gs.AdamMetric.of_optimizer(optimizer, any_model("qwen2"))
    sgd = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    sgd.step()
    with pytest.raises(ValueError, match="holds momentum_buffer and no second moments"):
        gs.AdamMetric.of_optimizer(sgd, model)


@pytest.mark.parametrize(
    ("metric", "second_moments", "message"),
    [
        ("adam", "estimate", r"second_moments is 'estimate': an estimate needs other prompts"),
        ("adam", None, r"metric is 'adam' without second_moments"),
    ],
)
def test_metrics_by_name(metric, second_moments, message):
    assert read_metric(None, None, any_model("qwen2")) is read_metric("euclidean", None, any_model("qwen2")) is None
    with pytest.raises(ValueError, match=message):
        read_metric(metric, second_moments, any_model("qwen2"))
