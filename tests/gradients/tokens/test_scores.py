"""Token scores against one autograd pass per token, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, lora_model
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.gradients.tokens import projections
from gradstats.gradients.tokens.tangents import Tangents
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.policy.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

N_PROBES = 960
MODELS = [("qwen2", False), ("qwen2", True), ("llama", True), ("gpt2", False), ("gpt2", True)]


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch):
    """The norms of transformers compute in float32 whatever the dtype, an error that would dominate at 1e-9."""

    def forward(self, inputs):
        return self.weight * inputs * torch.rsqrt(inputs.square().mean(-1, keepdim=True) + self.variance_epsilon)

    for kind in (LlamaRMSNorm, Qwen2RMSNorm):
        monkeypatch.setattr(kind, "forward", forward)


def token_gradients(model, rollouts, temperature=1.0, names=None) -> list[list[dict[str, torch.Tensor]]]:
    """For each sequence and completion token, parameter name → gradient of its log-probability; zero where masked."""
    parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    parameters = {name: tensor for name, tensor in parameters.items() if names is None or name in names}
    found = []
    for prompt, completion, mask in zip(
        rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), rollouts.masks, strict=True
    ):
        logits = model(torch.tensor([[*prompt.tolist(), *completion.tolist()]]), use_cache=False).logits[0]
        rows = []
        for place, token in enumerate(completion):
            value = float(mask[place]) * (logits[len(prompt) + place - 1] / temperature).log_softmax(0)[int(token)]
            parts = torch.autograd.grad(value, list(parameters.values()), retain_graph=True, materialize_grads=True)
            rows.append(dict(zip(parameters, parts, strict=True)))
        found.append(rows)
    return found


def flat(rows: list[dict[str, torch.Tensor]]) -> np.ndarray:
    """(T, parameters)."""
    return np.stack([torch.cat([part.flatten() for part in row.values()]).numpy() for row in rows])


def directions(parameters: dict[str, torch.Tensor], n: int, seed: int) -> np.ndarray:
    """(n, parameters), in the order of ``parameters``."""
    tangents = Tangents(seed, n)
    parts = [tangents.dense(name, part.shape, range(n), part).flatten(1) for name, part in parameters.items()]
    return torch.cat(parts, dim=1).numpy()


@pytest.mark.parametrize("rank", [2, 16])
@pytest.mark.parametrize(("architecture", "tied"), MODELS)
def test_projections_are_inner_products_with_token_gradients(monkeypatch, architecture, tied, rank):
    monkeypatch.setattr(Tangents.__init__, "__defaults__", (rank,))
    model, rollouts = any_model(architecture, tied), ragged_rollouts(4, masked=True)
    measured = gradients.measure(
        Policy(model, temperature=0.7), rollouts, token_probes=5, token_seed=3, sketch_dim=None, progress=False
    )
    for row, rows in enumerate(token_gradients(model, rollouts, 0.7)):
        expected = flat(rows) @ directions(rows[0], 5, 3).T
        np.testing.assert_allclose(measured.token_projections[row], expected, rtol=1e-9, atol=1e-9)
    assert measured.metadata["token_self_check"] < 1e-10


@pytest.mark.parametrize("kind", ["a subset", "adapters", "adapters on the head", "padding token"])
def test_projections_of_subsets_and_adapters(kind):
    params = r"layers\.1\.(mlp|input_layernorm)|embed" if kind == "a subset" else None
    if kind == "adapters on the head":
        model = lora_model(target_modules=["q_proj", "lm_head"])
    elif kind == "padding token":
        model = any_model("qwen2")
        model.get_input_embeddings().padding_idx = 5
    else:
        model = lora_model() if kind == "adapters" else any_model("qwen2", True)
    rollouts = ragged_rollouts(3)
    measured = gradients.measure(
        model, rollouts, engine="loop", params=params, token_probes=4, sketch_dim=None, progress=False
    )
    names = set(gradients.select_parameters(model, params).parameters)
    for row, rows in enumerate(token_gradients(model, rollouts, names=names)):
        expected = flat(rows) @ directions(rows[0], 4, 0).T
        np.testing.assert_allclose(measured.token_projections[row], expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module", params=["qwen2", "llama", "gpt2"])
def many_probes(request):
    """A measurement with many directions, and the exact token gradients."""
    model, rollouts = any_model(request.param), ragged_rollouts(4, masked=True)
    measured = gradients.measure(model, rollouts, token_probes=N_PROBES, token_exact=2, sketch_dim=None, progress=False)
    return measured, [flat(rows) for rows in token_gradients(model, rollouts)]


def test_energies_are_unbiased_and_their_errors_are_as_predicted(many_probes):
    measured, exact = many_probes
    for projected, tokens, mask in zip(measured.token_projections, exact, measured.rollouts.masks, strict=True):
        energies = np.square(tokens[mask]).sum(axis=1)
        squares = np.square(projected[mask])
        errors = (squares.mean(axis=1) - energies) / (energies * np.sqrt(2 / N_PROBES))
        assert np.abs(errors).max() < 4
        variances = squares.var(axis=1) / (2 * np.square(energies))
        assert 0.7 < np.median(variances) < 1.25
        assert variances.max() < 1 + 3 / 16 + 0.8


def test_cumulative_energies_and_the_norm_of_the_sum_lie_within_their_standard_errors(many_probes):
    measured, exact = many_probes
    n_probes, errors, norm_errors = 64, [], []  # in units of their standard errors
    for row, tokens in enumerate(exact):
        whole = measured.token_scores()[row]
        if not whole.light.any():
            continue
        places = np.flatnonzero(whole.light)[[0, -1]]
        cumulative = np.cumsum(np.square(tokens).sum(axis=1))
        sq_norm = np.square(tokens.sum(axis=0)).sum()
        for first in range(0, N_PROBES, n_probes):
            part = replace(whole, projections=whole.projections[:, first : first + n_probes])
            off = (part.cumulative_energy() - cumulative)[places]
            errors.append(off / part.cumulative_energy_stderr()[places])
            squares = np.square(part.projections.sum(axis=0))
            norm_errors.append((squares.mean() - sq_norm) / (squares.std(ddof=1) / np.sqrt(n_probes)))
    for found in (np.array(errors), np.array(norm_errors)):
        # Nominally 95 % and 1; the mean of 64 squares is skewed still, and there are 15 of them a sequence.
        assert np.mean(np.abs(found) <= 1.96) > 0.85
        assert 0.7 < np.sqrt(np.mean(np.square(found))) < 1.45


def test_inner_products_with_the_sum_are_unbiased(many_probes):
    measured, exact = many_probes
    for cross, tokens in zip(measured.token_cross, exact, strict=True):
        total = tokens.sum(axis=0)
        scale = np.linalg.norm(tokens, axis=1) * np.linalg.norm(total)
        assert (np.abs(cross - tokens @ total) <= 5 * np.sqrt(2 / N_PROBES) * scale).all()


def test_directions_are_isotropic():
    tangents = Tangents(0, 4000)
    drawn = tangents.dense("w", (3, 4), range(4000), torch.zeros((), dtype=torch.float64)).flatten(1).numpy()
    assert np.abs(drawn.T @ drawn / 4000 - np.eye(12)).max() < 5 * np.sqrt(2 / 4000)
    assert np.abs(drawn.mean(axis=0)).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_the_heaviest_tokens_are_measured_exactly(engine):
    model, rollouts = any_model("llama", True), ragged_rollouts(4, masked=True)
    measured = gradients.measure(model, rollouts, engine=engine, token_exact=3, sketch_dim=64, progress=False)
    sketch = gradients.CountSketch(64)
    for row, rows in enumerate(token_gradients(model, rollouts)):
        proxy = 1 - 2 * np.exp(measured.logprobs[row]) + measured.sum_pi_squared[row]
        counted = np.flatnonzero(rollouts.masks[row])
        expected = np.sort(counted[np.argsort(-proxy[counted])][:3])
        positions = measured.heavy_positions[row]
        np.testing.assert_array_equal(positions, expected)
        energies = np.square(flat(rows)).sum(axis=1)
        np.testing.assert_allclose(measured.heavy_sq_norms[row], energies[positions], rtol=1e-9)
        for place, position in enumerate(positions):
            projected = torch.zeros(1, 64, dtype=torch.float64)
            for name, part in rows[position].items():
                sketch.add(projected, name, part[None])
            np.testing.assert_allclose(measured.heavy_sketches[row][place], projected[0], rtol=1e-8, atol=1e-9)
    assert measured.token_projections is None


def test_all_tokens_measured_exactly_give_exact_energies():
    model, rollouts = any_model("gpt2"), ragged_rollouts(3, masked=True)
    measured = gradients.measure(model, rollouts, token_exact=10_000, sketch_dim=2**14, progress=False)
    for row, rows in enumerate(token_gradients(model, rollouts)):
        tokens = flat(rows)
        energies = np.square(tokens).sum(axis=1)
        np.testing.assert_allclose(measured.token_energy[row], energies, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(measured.cumulative_energy[row], np.cumsum(energies), rtol=1e-9)
        np.testing.assert_array_equal(measured.token_energy_stderr[row], 0)
        np.testing.assert_array_equal(measured.cumulative_energy_stderr[row], 0)
        total = tokens.sum(axis=0)
        within = 5 * np.sqrt(energies) * np.linalg.norm(total) * np.sqrt(2 / 2**14)
        assert (np.abs(measured.token_cross[row] - tokens @ total) <= within).all()


def test_a_share_takes_as_many_tokens_as_hold_it():
    rollouts = ragged_rollouts(5, masked=True)
    measured = gradients.measure(tiny_model("gpt2"), rollouts, token_exact=0.5, sketch_dim=None, progress=False)
    for row in range(5):
        proxy = (1 - 2 * np.exp(measured.logprobs[row]) + measured.sum_pi_squared[row]) * rollouts.masks[row]
        heavy = measured.heavy_positions[row]
        assert proxy[heavy].sum() >= 0.5 * proxy.sum()
        assert proxy[heavy].sum() - proxy[heavy].min() < 0.5 * proxy.sum()


def test_projections_depend_neither_on_chunks_nor_on_shards_nor_on_directions_at_once(monkeypatch):
    rollouts = ragged_rollouts(6)
    options = {"token_probes": 7, "token_exact": 2, "sketch_dim": 32}
    whole = gradients.measure(tiny_model("gpt2"), rollouts, progress=False, **options)
    monkeypatch.setattr(projections, "_ENOUGH_DIRECTIONS", 3)
    monkeypatch.setattr(projections, "_ENOUGH_TOKENS", 0)
    monkeypatch.setattr(projections, "_HEAD_ELEMENTS", 1000)
    session = gradients.MeasuringSession.open(
        tiny_model("gpt2"), rollouts, MeasurementSection(token_budget=30, **options)
    )
    parts = Measurement.concatenate(session.measure(rollouts.select(rows)) for rows in ([0, 1], [2, 3, 4], [5]))
    for row in range(6):
        np.testing.assert_allclose(parts.token_projections[row], whole.token_projections[row], rtol=1e-9, atol=1e-10)
        np.testing.assert_array_equal(parts.heavy_positions[row], whole.heavy_positions[row])
        np.testing.assert_allclose(parts.heavy_sketches[row], whole.heavy_sketches[row], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_token_scores_read_back(tmp_path, dtype):
    rollouts = ragged_rollouts(4, masked=True)
    measured = gradients.measure(
        tiny_model("gpt2"), rollouts, token_probes=6, token_exact=2, sketch_dim=32, progress=False
    )
    measured.save(tmp_path / "m", token_dtype=dtype)
    read = read_measurement(tmp_path / "m")
    accuracy = {"rtol": 2 * np.finfo(dtype).eps, "atol": 1e-6}
    for row in range(4):
        assert read.token_projections[row].dtype == dtype
        np.testing.assert_allclose(read.token_projections[row], measured.token_projections[row], **accuracy)
        np.testing.assert_array_equal(read.heavy_positions[row], measured.heavy_positions[row])
        np.testing.assert_array_equal(read.heavy_sq_norms[row], measured.heavy_sq_norms[row])
        np.testing.assert_allclose(read.heavy_sketches[row], measured.heavy_sketches[row], **accuracy)
    some = read.select([2, 0])
    np.testing.assert_array_equal(some.token_projections[0], read.token_projections[2])
    np.testing.assert_array_equal(some.sketches[1], read.sketches[0])
    assert some.rollouts.sample_id.tolist() == read.rollouts.sample_id[[2, 0]].tolist()
    with pytest.raises(ValueError, match='token_dtype is \'float64\': choose "float32" or "float16"'):
        measured.save(tmp_path / "other", token_dtype="float64")
    if dtype == "float16":
        measured.token_projections[1][0] = 1e5
        with pytest.raises(ValueError, match=r"token_projections reach 1e\+05, too large for float16"):
            measured.save(tmp_path / "other", token_dtype=dtype)


def test_measurements_of_other_directions_are_not_joined():
    rollouts = ragged_rollouts(2)
    parts = [
        gradients.measure(
            tiny_model("gpt2"), rollouts, token_probes=2, token_seed=seed, sketch_dim=None, progress=False
        )
        for seed in (0, 1)
    ]
    assert not np.allclose(parts[0].token_projections[1], parts[1].token_projections[1])
    with pytest.raises(ValueError, match="measurements differ in token_seed"):
        Measurement.concatenate(parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_probes": -1}, "token_probes is -1: it must be an integer of at least 0 .random directions"),
        (
            {"token_exact": -2},
            "token_exact is -2: it must be an integer of at least 0, or a number of at least 0 .tokens of each",
        ),
        ({"token_exact": 1.5}, r"token_exact is 1\.5: give a number of tokens, or a share"),
        ({"token_exact": 1.0}, r"token_exact is 1\.0, neither a share below 1 nor a whole number"),
        (
            {"token_probes": 2, "token_seed": -1},
            "token_seed is -1: it must be an integer of at least 0 .seed of the random directions",
        ),
    ],
)
def test_bad_token_settings_are_refused(options, message, rollouts):
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("gpt2"), rollouts, progress=False, **options)


def test_too_few_probes_give_nan_and_say_so(rollouts):
    options = {"sketch_dim": None, "progress": False}
    none = gradients.measure(tiny_model("gpt2"), rollouts, token_exact=1, **options)
    with pytest.warns(RuntimeWarning, match="token energies are NaN .* measure with token_probes=32"):
        energy = none.token_energy
    assert [int(np.isfinite(values).sum()) for values in energy] == [1] * 5
    one = gradients.measure(tiny_model("gpt2"), rollouts, token_probes=1, **options)
    assert all(np.isfinite(values).all() for values in one.token_energy)
    with pytest.warns(RuntimeWarning, match="standard errors of cumulative energies are NaN"):
        assert all(np.isnan(values).all() for values in one.cumulative_energy_stderr)


def test_eager_attention_is_switched_on_said_and_switched_back(rollouts):
    model = tiny_model("qwen2", dtype=torch.float32)
    assert model.config._attn_implementation == "sdpa"
    with pytest.warns(UserWarning, match=r"measured with eager attention, since the model's own \(sdpa\)"):
        measured = gradients.measure(model, rollouts, token_probes=3, sketch_dim=None, progress=False)
    assert model.config._attn_implementation == "sdpa"
    assert measured.token_projections[1].dtype == np.float32
    assert measured.metadata["token_self_check"] < 1e-3


def test_a_weight_read_outside_its_module_is_refused_by_the_self_check(rollouts):
    model = tiny_model("gpt2")
    mlp, other = model.transformer.h[0].mlp, model.transformer.h[1].mlp
    forward = mlp.forward
    mlp.forward = lambda states: forward(states) + states @ other.c_fc.weight @ other.c_proj.weight
    with pytest.raises(gradients.SelfCheckError, match="token_probes fail their self-check"):
        gradients.measure(model, rollouts, engine="loop", token_probes=2, sketch_dim=None, progress=False)


def test_running_out_of_memory_takes_fewer_directions_then_fewer_sequences(monkeypatch, rollouts):
    projector = projections._Projector
    whole = gradients.measure(tiny_model("gpt2"), rollouts, token_probes=8, sketch_dim=None, progress=False)
    call = projector.__call__

    def scarce(self, which):
        if len(which) * len(self._chunk.rows) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return call(self, which)

    monkeypatch.setattr(projector, "__call__", scarce)
    session = gradients.MeasuringSession.open(
        tiny_model("gpt2"), rollouts, MeasurementSection(token_probes=8, sketch_dim=None)
    )
    session.token_budget = 4096
    monkeypatch.setattr("gradstats.gradients.chunking.MOST_PADDING", 0.99)
    with pytest.warns(RuntimeWarning) as caught:
        measured = session.measure(rollouts)
    told = [str(item.message) for item in caught]
    assert told[0] == "memory ran out with 8 directions at once: continuing with 4"
    assert any(sentence.startswith("memory ran out on 5 sequences of") for sentence in told)
    for row in range(5):
        np.testing.assert_allclose(measured.token_projections[row], whole.token_projections[row], rtol=1e-9, atol=1e-9)
