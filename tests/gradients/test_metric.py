"""The metric of Adam: against autograd on every engine, and what is refused."""

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


def a_layer_used_twice():
    model = any_model("qwen3", tied=True)
    model.model.layers[1] = model.model.layers[0]
    return model


#: Model → how it is made, and how it is compared.
FURTHER = {
    "every engine": (lambda: any_model("gpt2", True), {"engines": ("ghost", "vmap", "loop")}),
    "adapters": (lambda: lora_model(target_modules=["q_proj", "down_proj"]), {"engines": ("ghost", "loop")}),
    "adapters of gpt2": (lambda: lora_model("gpt2", target_modules=["c_attn"], fan_in_fan_out=True), {}),
    "a layer used twice, in part": (a_layer_used_twice, {"params": r"q_proj|norm|embed"}),
    # Softmax of routers, norms and scans compute in float32 inside.
    "experts": (lambda: small_model("qwen3_moe", experts="eager"), {"rtol": 1e-5, "temperature": 1.0}),
    "experts of gpt_oss": (lambda: small_model("gpt_oss", experts="eager"), {"rtol": 1e-5, "temperature": 1.0}),
    "modules that are run again": (
        lambda: small_model("mamba", {"state_size": 4, "time_step_rank": 4, "num_hidden_layers": 1}),
        {"rtol": 1e-4, "temperature": 1.0},
    ),
}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", FURTHER)
def test_further_models_and_engines(kind):
    if kind.startswith("adapters"):
        pytest.importorskip("peft")
    build, options = FURTHER[kind]
    model = build()
    assert_exact(model, ragged_rollouts(4), random_metric(model, power=0.3), **options)


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


NORM = "model.norm.weight"
# A row by row: second moments that are added, or are left out, and the sentence.
BAD = [
    (None, r"there are no second moments of model\.norm\.weight, which is measured"),
    ({NORM: torch.ones(3)}, r"of model\.norm\.weight have the shape \(3,\), and the parameter \(24,\): they belong"),
    ({NORM: torch.full((24,), math.nan)}, r"the second moments of model\.norm\.weight are not finite"),
    ({NORM: torch.full((24,), -1e-3)}, r"second moments of model\.norm\.weight are negative \(down to -0\.001\)"),
    ({NORM: torch.zeros(24)}, r"infinite at 24 coordinates of model\.norm\.weight.*give the metric an eps"),
    ({NORM: torch.ones(24, dtype=torch.int64)}, r"of model\.norm\.weight have the type torch\.int64"),
    ({"layers.2.up": torch.ones(2)}, r"another model: 1 of \d+ names are not parameters of this one \(layers\.2\.up"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_wrong_moments_are_named_before_anything_is_computed(change, message, rollouts, monkeypatch):
    model = tiny_model("qwen2")
    monkeypatch.setattr(model, "forward", None)
    moments = {**random_metric(model).second_moments} | (change or {})
    if change is None:
        del moments[NORM]
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
        ({"second_moments": {}}, "second_moments are empty"),
        (
            {"second_moments": "a.pt"},
            r"a str: give parameter name → tensor; a file is read by AdamMetric\.read\(path",
        ),
        ({"second_moments": [1.0]}, r"second_moments of the metric are a list: give parameter name → tensor"),
        ({"second_moments": {"w": None}}, r"the second moments of w are no tensor: "),
        ({"second_moments": {"w": [1.0, "a"]}}, r"the second moments of w are no tensor: "),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_settings_out_of_range_and_what_is_no_mapping_of_tensors(settings, message):
    wrong_type = "tensor" in message
    with pytest.raises(TypeError if wrong_type else ValueError, match=message):
        gs.AdamMetric(**{"second_moments": {"w": torch.ones(1)}} | settings)


@pytest.mark.parametrize("metric", [{"w": torch.ones(1)}, gs.AdamMetric])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_metric_is_not_taken_for_the_euclidean_one(metric, rollouts):
    with pytest.raises(TypeError, match=r"metric is .*: give the label of one, such as 'adam', or a gradstats\.Adam"):
        gradients.measure(tiny_model("qwen2"), rollouts, metric=metric, progress=False)


def test_moments_beyond_float32_and_of_steps():
    wide, beyond = (torch.tensor([size], dtype=torch.float64) for size in (1e60, 1e100))
    np.testing.assert_allclose(gs.AdamMetric({"w": wide}, eps=0.0).of_parameter("w", torch.ones(1)), 1e-30, rtol=1e-6)
    with pytest.raises(ValueError, match=r"is 0 at 1 coordinates of w, whose second moments are too large"):
        gs.AdamMetric({"w": beyond}).of_parameter("w", torch.ones(1))
    raw = torch.tensor([4e-3, 1e-3], dtype=torch.float64)
    corrected = gs.AdamMetric({"w": raw}, eps=0.1, step=10, beta2=0.9).of_parameter("w")
    np.testing.assert_allclose(corrected, 1 / (np.sqrt(raw.numpy() / (1 - 0.9**10)) + 0.1), rtol=1e-15)


def test_gradients_that_overflow_in_a_metric_and_moments_of_the_measured_prompts_are_refused(rollouts):
    model = tiny_model("qwen2").float()
    moments = {name: torch.zeros(tensor.shape) for name, tensor in model.named_parameters()}
    prompts = frozenset(gradients.metric.prompt_digests(rollouts.select([2])))
    for options, message in (
        ({}, r"not finite in this metric.*: none is left to measure; give it a larger eps"),
        ({"prompts": prompts}, r"estimated from 1 of the prompts that are to be measured \(p1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            gradients.measure(model, rollouts, metric=gs.AdamMetric(moments, eps=1e-30, **options), progress=False)


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


def test_the_moments_of_an_optimizer_in_use_and_of_a_compiled_model_have_the_names_of_the_model(tmp_path):
    model = any_model("gpt2", tied=True)
    optimizer, expected = trained(model, decay_groups(model))
    compiled, path = torch.compile(model, backend="eager"), tmp_path / "moments.safetensors"
    metric = gs.AdamMetric.of_optimizer(optimizer, model)
    assert (metric.eps, metric.source) == (EPS, "AdamW after 3 steps")
    for found in (metric, gs.AdamMetric.of_optimizer(optimizer, compiled)):
        assert_moments(found, expected)
    path.write_bytes(b"weights")
    with pytest.raises(FileExistsError, match="exists and is not a file of second moments that gradstats wrote"):
        metric.save(path)
    path.unlink()
    for _ in range(2):
        metric.save(path)
    assert gs.AdamMetric.read(path, compiled).digest() == metric.digest()
    measured, same = (
        gradients.measure(one, ragged_rollouts(3), metric=metric, sketch_dim=None, progress=False)
        for one in (compiled, model)
    )
    assert measured.metadata["metric"]["source"] == "AdamW after 3 steps"
    np.testing.assert_array_equal(measured.sq_norms, same.sq_norms)


def test_amsgrad_divides_by_the_largest_moments():
    model = any_model("qwen2")
    optimizer, expected = trained(model, amsgrad=True)
    name, tensor = next(iter(model.named_parameters()))
    optimizer.state[tensor]["max_exp_avg_sq"].mul_(4)
    found = gs.AdamMetric.of_optimizer(optimizer, model).second_moments[name]
    assert bool((found >= 4 * expected[name] * (1 - 1e-12)).all())


def test_tensors_of_the_users(tmp_path):
    model, rollouts, path = any_model("qwen2"), ragged_rollouts(3), tmp_path / "moments.safetensors"
    metric = random_metric(model, eps=1e-5, source="the mean of 100 batches")
    metric.save(path)
    assert gs.AdamMetric.read(path, model).describe() == metric.describe()
    options = {"sketch_dim": None, "progress": False}
    read = gradients.measure(model, rollouts, metric="adam", second_moments=str(path), **options)
    given = gradients.measure(model, rollouts, metric=metric, **options)
    np.testing.assert_allclose(read.sq_norms, given.sq_norms, rtol=1e-5)  # read in float32
    plain = {f"{name}.exp_avg_sq": values.contiguous() for name, values in metric.second_moments.items()}
    save_file(plain | {name.removesuffix("_sq"): -values for name, values in plain.items()}, path)
    of_state = gs.AdamMetric.read(path, model, step=7, beta2=0.9, power=0.25)
    assert of_state.digest() == metric.digest()
    assert (of_state.eps, of_state.step, of_state.beta2, of_state.power) == (1e-8, 7, 0.9, 0.25)


def test_the_embedded_policy_has_the_second_moments_of_its_training():
    policy = gs.load_policy("embedded")
    metric = read_metric("adam", "embedded", policy.model)
    assert (metric.step, metric.beta2, metric.eps) == (5500, 0.99, 1e-8)
    assert set(metric.preconditioner(policy.model, gradients.select_parameters(policy.model)))
    assert read_metric("adam(eps=1e-4, power=1.0)", "embedded", policy.model).eps == 1e-4


WRONG = [
    (
        lambda saved: saved["state"][0].update(exp_avg_sq=torch.ones(2, 2)),
        r"does not fit the model: model\.embed_tokens\.weight has the shape \(41, 24\), and the state \(2, 2\)",
    ),
    (lambda saved: saved["param_groups"][0]["params"].pop(), r"has 26 parameters, and the model 27"),
    (
        lambda saved: [one.pop("exp_avg_sq") for one in saved["state"].values()],
        r"state of model\.embed_tokens\.weight holds step, exp_avg and no second moments",
    ),
    (lambda saved: [one.pop("step") for one in saved["state"].values()], r"records no step"),
    (lambda saved: saved.pop("state"), r"holds no optimizer's state_dict"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_states_that_do_not_fit(change, message, tmp_path):
    model = any_model("qwen2")
    saved = trained(model)[0].state_dict()
    change(saved)
    torch.save(saved, tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match=message):
        gs.AdamMetric.read(tmp_path / "optimizer.pt", model)


@pytest.mark.parametrize(("setting", "value"), [("step", 5), ("beta2", 0.5)])
def test_a_state_corrects_by_its_own_steps(setting, value, tmp_path):
    model = any_model("qwen2")
    torch.save(trained(model)[0].state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match=f"{setting} is {value}, but .* records its own .*: leave {setting} out"):
        gs.AdamMetric.read(tmp_path / "optimizer.pt", model, **{setting: value})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.pt", b"PK", r"cut\.pt .*: save"),
        ("other.pt", b"", r"other\.pt cannot be read \(.+\): save it again"),
        ("other.pt", b"hello", r"other\.pt cannot be read \(.+\): save it again"),
        ("cut.safetensors", b"\x08", r"cut\.safetensors cannot be read as safetensors"),
        ("zero_pp_rank_0.pt", None, "DeepSpeed optimizer"),
        ("x.distcp", None, "dcp_to_torch"),
        ("y", None, "holds none of"),
    ],
)
def test_files_and_folders_that_are_not_read(name, content, message, tmp_path):
    path = tmp_path if content is None else tmp_path / name
    (tmp_path / name).write_bytes(content or b"")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        gs.AdamMetric.read(path, any_model("qwen2"))


def test_a_file_of_code_and_none_are_not_read(tmp_path):
    model = any_model("qwen2")
    torch.save({"state": model, "param_groups": []}, tmp_path / "code.pt")
    with pytest.raises(ValueError, match=r"code\.pt holds more than tensors and numbers, and is not read"):
        gs.AdamMetric.read(tmp_path / "code.pt", model)
    with pytest.raises(FileNotFoundError, match=r"second_moments is .*none\.pt', and there is no such file"):
        gs.AdamMetric.read(tmp_path / "none.pt", model)


def test_other_optimizers_and_models_are_refused():
    model = any_model("qwen2")
    for optimizer, of in ((torch.optim.AdamW(model.parameters()), model), (trained(model)[0], any_model("qwen2"))):
        with pytest.raises(ValueError, match="the optimizer has no state for a parameter of the model"):
            gs.AdamMetric.of_optimizer(optimizer, of)
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
