"""The metric of Adam: against autograd on every engine, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from architectures import small_model
from conftest import ragged_rollouts, tiny_model
from gradient_models import ARCHITECTURES, any_model, lora_model
from metrics import metric_oracle, random_metric, scaled_gradients
from optimizers import EPS, assert_moments, decay_groups, trained
from safetensors.torch import save_file

import gradstats as gs
import gradstats.gradients as gradients
from gradstats.gradients.metric import read_metric
from gradstats.gradients.sketches import CountSketch
from gradstats.measurement.measurement import Measurement
from gradstats.policy.policy import Policy

DIM = 64


def assert_exact(model, rollouts, metric, engines=("ghost",), rtol=1e-8, temperature=0.7, **options):
    """Norms of P·S for every parameter, with sketches and without, and the sketches themselves, by parameter too."""
    expected = metric_oracle(model, rollouts, metric, temperature)
    chosen = gradients.select_parameters(model, options.get("params")).parameters
    sketch = CountSketch(DIM, 0, 1)
    parts = torch.zeros(len(rollouts), len(chosen), DIM, dtype=torch.float64)
    for row, gradient in enumerate(scaled_gradients(model, rollouts, metric, temperature)):
        for number, name in enumerate(chosen):
            sketch.add(parts[row, number][None], name, gradient[name][None])
    common = {"blocks": "parameter", "metric": metric, "progress": False} | options
    for engine in engines:
        for sketch_dim in (None, DIM) if engine == "ghost" else (DIM,):
            measured = gradients.measure(
                Policy(model, temperature=temperature),
                rollouts,
                engine=engine,
                sketch_dim=sketch_dim,
                block_sketches=sketch_dim is not None,
                **common,
            )
            for name, values in measured.sq_norms_by_block.items():
                np.testing.assert_allclose(values, expected[name], rtol=rtol, atol=1e-18, err_msg=f"{engine} {name}")
        sketches, atol = parts.sum(dim=1).numpy(), max(rtol, 1e-8) * parts.abs().max()
        np.testing.assert_allclose(measured.sketches, sketches, rtol=rtol, atol=atol)
        assert list(measured.sq_norms_by_block) == list(chosen)
        np.testing.assert_allclose(measured.sketches_by_block, parts.numpy(), rtol=rtol, atol=atol)
    return measured


@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES[::3])
def test_ghost_equals_autograd_for_every_parameter(architecture, tied):
    model = any_model(architecture, tied)
    measured = assert_exact(model, ragged_rollouts(5, masked=True), random_metric(model, eps=0.1))
    assert set(measured.sq_norms_by_block) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(("architecture", "tied"), [("gpt2", True)])
def test_explicit_gradients_are_scaled(architecture, tied):
    model = any_model(architecture, tied)
    assert_exact(model, ragged_rollouts(4), random_metric(model, power=0.3), ("vmap", "loop"))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_adapters(architecture):
    pytest.importorskip("peft")
    targets = {"qwen2": ["q_proj", "down_proj"], "gpt2": ["c_attn"]}[architecture]
    model = lora_model(architecture, target_modules=targets, fan_in_fan_out=architecture == "gpt2")
    assert_exact(model, ragged_rollouts(4), random_metric(model), ("ghost", "loop"))


@pytest.mark.parametrize("architecture", ["qwen3_moe", "gpt_oss"])
def test_experts(architecture):
    model = small_model(architecture, experts="eager")
    # Softmax of routers and norms compute in float32 inside.
    assert_exact(model, ragged_rollouts(4), random_metric(model), rtol=1e-5, temperature=1.0)


def test_a_module_used_twice_and_a_subset_of_parameters():
    model = any_model("qwen3", tied=True)
    model.model.layers[1] = model.model.layers[0]
    assert_exact(model, ragged_rollouts(4), random_metric(model), params=r"q_proj|norm|embed")


def test_modules_that_are_run_again():
    model = small_model("mamba", {"state_size": 4, "time_step_rank": 4, "num_hidden_layers": 1})
    # Scans compute in float32 inside.
    assert_exact(model, ragged_rollouts(3), random_metric(model), rtol=1e-4, temperature=1.0)


def test_weighted_gradients_and_inner_products_are_those_of_scaled_gradients():
    model, rollouts = any_model("llama", True), ragged_rollouts(4)
    metric = random_metric(model)
    weightings = {"ones": [np.ones(len(tokens)) * 2 for tokens in rollouts.tokens("completion_tokens")]}
    measured = gradients.measure(model, rollouts, metric=metric, token_weights=weightings, progress=False)
    vectors = torch.stack(
        [torch.cat([values.flatten() for values in one.values()]) for one in scaled_gradients(model, rollouts, metric)]
    )
    exact = (vectors @ vectors.T).numpy()
    size = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    np.testing.assert_allclose(measured.gram() / size, exact / size, atol=10 * math.sqrt(2 / 16384))
    np.testing.assert_allclose(measured.weighted["ones"].sq_norms, 4 * np.diag(exact), rtol=1e-8)


def test_steps_correct_the_moments():
    raw = torch.tensor([4e-3, 1e-3], dtype=torch.float64)
    corrected = gs.AdamMetric({"w": raw}, eps=0.1, step=10, beta2=0.9).of_parameter("w")
    np.testing.assert_allclose(corrected, 1 / (np.sqrt(raw.numpy() / (1 - 0.9**10)) + 0.1), rtol=1e-15)


# A row by row: what makes the metric wrong, and the sentence.
BAD = {
    "a missing parameter": (
        lambda moments: {name: moments[name] for name in list(moments)[1:]},
        r"there are no second moments of model\.embed_tokens\.weight, which is measured",
    ),
    "another shape": (
        lambda moments: moments | {"model.norm.weight": torch.ones(3)},
        r"second moments of model\.norm\.weight have the shape \(3,\), and the parameter \(24,\): they belong",
    ),
    "not finite": (
        lambda moments: moments | {"model.norm.weight": torch.full((24,), math.nan)},
        r"the second moments of model\.norm\.weight are not finite",
    ),
    "negative": (
        lambda moments: moments | {"model.norm.weight": torch.full((24,), -1e-3)},
        r"second moments of model\.norm\.weight are negative \(down to -0\.001\)",
    ),
    "zero without an eps": (
        lambda moments: moments | {"model.norm.weight": torch.zeros(24)},
        r"infinite at 24 coordinates of model\.norm\.weight.*give the metric an eps",
    ),
    "integers": (
        lambda moments: moments | {"model.norm.weight": torch.ones(24, dtype=torch.int64)},
        r"second moments of model\.norm\.weight have the type torch\.int64",
    ),
    "another model": (
        lambda moments: moments | {"model.layers.2.mlp.up_proj.weight": torch.ones(2)},
        r"belong to another model: 1 of \d+ names are not parameters of this one \(model\.layers\.2\.mlp",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_wrong_moments_are_named_before_anything_is_computed(what, rollouts, monkeypatch):
    model = tiny_model("qwen2")
    change, message = BAD[what]
    monkeypatch.setattr(model, "forward", None)
    moments = change(dict(random_metric(model).second_moments))
    with pytest.raises(ValueError, match=message):
        gradients.measure(model, rollouts, metric=gs.AdamMetric(moments, eps=0.0), progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": -1.0}, r"eps of the metric is -1\.0"),
        ({"eps": math.nan}, r"eps of the metric is nan"),
        ({"power": -0.5}, r"power of the metric is -0\.5"),
        ({"step": 0}, r"step of the metric is 0"),
        ({"beta2": 1.0}, r"beta2 of the metric is 1\.0"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        gs.AdamMetric({"w": torch.ones(1)}, **settings)
    with pytest.raises(ValueError, match="second_moments are empty"):
        gs.AdamMetric({})


@pytest.mark.parametrize(
    ("second_moments", "message"),
    [
        ("optimizer.pt", r"a str: give parameter name → tensor; a file is read by AdamMetric\.read\(path, model\)"),
        ([torch.ones(1)], r"second_moments of the metric are a list: give parameter name → tensor"),
        ({"w": None}, r"the second moments of w are no tensor: "),
        ({"w": [1.0, "a"]}, r"the second moments of w are no tensor: "),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_mapping_of_tensors_is_refused(second_moments, message):
    with pytest.raises(TypeError, match=message):
        gs.AdamMetric(second_moments)


@pytest.mark.parametrize("metric", [{"w": torch.ones(1)}, gs.AdamMetric])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_metric_is_not_taken_for_the_euclidean_one(metric, rollouts):
    with pytest.raises(TypeError, match=r"metric is .*: give the label of one, such as 'adam', or a gradstats\.Adam"):
        gradients.measure(tiny_model("qwen2"), rollouts, metric=metric, progress=False)


def test_a_metric_prints_in_one_line():
    metric = gs.AdamMetric({"w": torch.ones(4, 4), "b": torch.ones(4)}, eps=1e-5, source="optimizer.pt")
    expected = f"eps=1e-05, power=0.5, step=None, beta2=0.999, source='optimizer.pt', moments={metric.digest()!r})"
    assert repr(metric) == f"AdamMetric(second_moments of 2 parameters, {expected}"


def test_moments_beyond_float32():
    like = torch.ones(1)
    wide = gs.AdamMetric({"w": torch.tensor([1e60], dtype=torch.float64)}, eps=0.0)
    np.testing.assert_allclose(wide.of_parameter("w", like), 1e-30, rtol=1e-6)
    with pytest.raises(ValueError, match=r"is 0 at 1 coordinates of w, whose second moments are too large"):
        gs.AdamMetric({"w": torch.tensor([1e100], dtype=torch.float64)}).of_parameter("w", like)


def test_gradients_that_overflow_in_a_metric_say_so(rollouts):
    model = tiny_model("qwen2").float()
    moments = {name: torch.zeros(tensor.shape) for name, tensor in model.named_parameters()}
    with pytest.raises(ValueError, match=r"not finite in this metric.*: none is left to measure; give it a larger eps"):
        gradients.measure(model, rollouts, metric=gs.AdamMetric(moments, eps=1e-30), progress=False)


def test_moments_of_the_measured_prompts_are_refused(rollouts):
    model = tiny_model("qwen2")
    estimated = gs.AdamMetric(
        random_metric(model).second_moments, prompts=frozenset(gradients.metric.prompt_digests(rollouts.select([2])))
    )
    with pytest.raises(ValueError, match=r"estimated from 1 of the prompts that are to be measured \(p1\)"):
        gradients.measure(model, rollouts, metric=estimated, progress=False)


def test_measurements_in_different_metrics_are_not_joined(rollouts):
    model = tiny_model("qwen2")
    metrics = (None, random_metric(model), random_metric(model, seed=6), random_metric(model, eps=1e-6))
    one, *others = [
        gradients.measure(model, rollouts, metric=metric, sketch_dim=DIM, progress=False) for metric in metrics
    ]
    for left, right in [(one, others[0]), (others[0], others[1]), (others[0], others[2])]:
        with pytest.raises(ValueError, match=r"measurements differ in metric \(adam\(eps=.*moments="):
            Measurement.concatenate([left, right])
    assert len(Measurement.concatenate([others[0].select([0, 1]), others[0].select([2, 3])])) == 4


def test_a_tied_parameter_may_go_by_its_other_name(rollouts):
    model = tiny_model("qwen2", tied=True)
    moments = dict(random_metric(model).second_moments)
    expected = gradients.measure(model, rollouts, metric=gs.AdamMetric(moments), sketch_dim=None, progress=False)
    moments["lm_head.weight"] = moments.pop("model.embed_tokens.weight")
    renamed = gradients.measure(model, rollouts, metric=gs.AdamMetric(moments), sketch_dim=None, progress=False)
    np.testing.assert_array_equal(renamed.sq_norms, expected.sq_norms)


def test_the_digest_depends_on_values_and_names_alone():
    first = {"a": torch.ones(2), "b": torch.zeros(1)}
    same = gs.AdamMetric({"b": torch.zeros(1).double(), "a": torch.ones(2).double()})
    assert gs.AdamMetric(first).digest() == same.digest()
    assert gs.AdamMetric(first).digest() != gs.AdamMetric(first | {"b": torch.ones(1)}).digest()


def test_live_from_an_optimizer_in_use():
    model = any_model("gpt2", tied=True)
    optimizer, expected = trained(model, decay_groups(model))
    metric = gs.AdamMetric.of_optimizer(optimizer, model)
    assert_moments(metric, expected)
    assert (metric.eps, metric.source) == (EPS, "AdamW after 3 steps")
    measured = gradients.measure(model, ragged_rollouts(3), metric=metric, sketch_dim=None, progress=False)
    assert measured.metadata["metric"]["source"] == "AdamW after 3 steps"


def test_the_moments_of_a_compiled_model_have_the_names_of_the_model(tmp_path):
    model = any_model("gpt2")
    optimizer, expected = trained(model)
    compiled = torch.compile(model, backend="eager")
    metric = gs.AdamMetric.of_optimizer(optimizer, compiled)
    assert_moments(metric, expected)
    (tmp_path / "moments.safetensors").write_bytes(b"weights")
    with pytest.raises(FileExistsError, match="exists and is not a file of second moments that gradstats wrote"):
        metric.save(tmp_path / "moments.safetensors")
    (tmp_path / "moments.safetensors").unlink()
    for _ in range(2):
        metric.save(tmp_path / "moments.safetensors")
    assert gs.AdamMetric.read(tmp_path / "moments.safetensors", compiled).digest() == metric.digest()
    measured = gradients.measure(compiled, ragged_rollouts(3), metric=metric, sketch_dim=None, progress=False)
    same = gradients.measure(model, ragged_rollouts(3), metric=metric, sketch_dim=None, progress=False)
    np.testing.assert_array_equal(measured.sq_norms, same.sq_norms)


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
