"""The self-check refuses an engine with any of these faults; without a fault it passes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, ragged_rollouts
from gradient_models import any_model, random_weightings

import gradstats.gradients as gradients
from gradstats.gradients import session, sketches
from gradstats.gradients.checks import self_check as deviations
from gradstats.gradients.engines import layers
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.engines.layers import EmbeddingRows, Layer, Term
from gradstats.gradients.engines.reduction import OuterProducts
from gradstats.gradients.sketches import StoredSigns
from gradstats.rollouts.table import Rollouts


def float32(architecture: str, tied: bool = False) -> torch.nn.Module:
    return any_model(architecture, tied, torch.float32)


def with_torch_norm(architecture: str) -> torch.nn.Module:
    """A model whose last norm is torch's own class."""
    model = float32(architecture)
    norm = torch.nn.RMSNorm(model.config.hidden_size, eps=1e-6)
    norm.weight.data = model.model.norm.weight.data.clone()
    model.model.norm = norm
    return model


#: Kind of layer and attribute → model, class of the layer, and a part of the parameter's name.
LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], type[Layer], str]] = {
    "attention": (lambda: float32("qwen2"), layers.LinearLayer, "layers.1.self_attn.k_proj.w"),
    "mlp": (lambda: float32("qwen2"), layers.LinearLayer, "layers.0.mlp.down_proj.weight"),
    "bias": (lambda: float32("qwen2"), layers.LinearLayer, "layers.0.self_attn.q_proj.bias"),
    "head": (lambda: float32("qwen2"), layers.LinearLayer, "lm_head.weight"),
    "tied head": (lambda: float32("qwen2", True), layers.LinearLayer, "embed_tokens.weight"),
    "embedding": (lambda: float32("qwen2"), layers.EmbeddingLayer, "embed_tokens.weight"),
    "RMSNorm": (lambda: float32("qwen2"), layers.BroadcastLayer, "layers.1.input_layernorm"),
    "Gemma's RMSNorm": (lambda: float32("gemma"), layers.BroadcastLayer, "model.norm.weight"),
    "RMSNorm of torch": (lambda: with_torch_norm("llama"), layers.TorchRMSNormLayer, "model.norm.weight"),
    "Conv1D": (lambda: float32("gpt2"), layers.TransposedLinearLayer, "h.0.mlp.c_fc.weight"),
    "Conv1D bias": (lambda: float32("gpt2"), layers.TransposedLinearLayer, "h.1.attn.c_proj.b"),
    "positions": (lambda: float32("gpt2"), layers.EmbeddingLayer, "wpe.weight"),
    "LayerNorm": (lambda: float32("gpt2"), layers.LayerNormLayer, "h.1.ln_2.weight"),
    "LayerNorm bias": (lambda: float32("gpt2"), layers.LayerNormLayer, "h.0.ln_1.bias"),
}


def _only_padded(values: torch.Tensor, factor: float) -> torch.Tensor:
    return values * factor if len(values) > 1 else values


#: What becomes of the gradients of one parameter, (batch, …).
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "2 % too large": lambda values: values * 1.01,  # of the squared norm
    "zeroed": torch.zeros_like,
    "of another sequence": lambda values: values.roll(1, dims=0),
    "NaN": lambda values: values * torch.nan,
    "NaN when padded": lambda values: _only_padded(values, torch.nan),
    "2 % too large when padded": lambda values: _only_padded(values, 1.01),
}


def break_layer(monkeypatch, kind: type[Layer], name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the gradients of the parameters whose name contains ``name``, in layers of one kind."""
    sound = kind.terms

    def terms(self, inputs, gradient):
        for parameter, term in sound(self, inputs, gradient):
            yield parameter, _changed(term, change) if name in parameter else term

    monkeypatch.setattr(kind, "terms", terms)


def _changed(term: Term, change: Callable[[torch.Tensor], torch.Tensor]) -> Term:
    # What moves values to another sequence has to move both factors of a product.
    of_both = change if change is CHANGES["of another sequence"] else lambda values: values
    if isinstance(term, OuterProducts):
        return OuterProducts(of_both(term.inputs), change(term.gradients), term.transposed)
    if isinstance(term, EmbeddingRows):
        return EmbeddingRows(of_both(term.ids), change(term.values))
    return change(term)


def _with(value: float, places: tuple[int, ...], values):
    """A copy of an array or a tensor with one other value."""
    values = values * 1.0
    values[places] = value
    return values


def _further(values, factor: float):
    """Multiply what belongs to further weightings."""
    return np.concatenate([values[:1], factor * values[1:]])


#: Field of a chunk's result → what becomes of it, given the values and the shape of the chunk.
RESULTS = {
    "sketches": {
        "zero": lambda values, n, time: values * 0,
        "of other sequences": lambda values, n, time: values[:, ::-1],
        "with permuted coordinates": lambda values, n, time: values[:, :, ::-1],
        "2 % too large": lambda values, n, time: values * 1.02,
        "negative": lambda values, n, time: -values,
        "NaN": lambda values, n, time: values * np.nan,
        "one NaN": lambda values, n, time: _with(np.nan, (0, 0, 3), values),
        "doubled in large chunks": lambda values, n, time: values * (2.0 if n > 2 else 1.0),
        "one NaN in large chunks": lambda values, n, time: _with(np.nan, (0, 0, 3), values) if n > 2 else values,
        "zero of further weightings": lambda values, n, time: _further(values, 0.0),
    },
    "sq_norms_by_parameter": {
        "NaN when padded": lambda values, n, time: values * (np.nan if n > 1 else 1.0),
        "doubled in long chunks": lambda values, n, time: values * (2.0 if time > 20 else 1.0),
        "doubled in large chunks": lambda values, n, time: values * (2.0 if n > 2 else 1.0),
        "of the first of several": lambda values, n, time: values[:, :1] + 0 * values,
        "2 % too large of further weightings": lambda values, n, time: _further(values, 1.02),
        "exchanged": lambda values, n, time: values[:, :, ::-1].copy(),
    },
}
QUANTITIES = ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")
OF_TOKENS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "2 % too large": lambda values: values * 1.02,
    "zero": torch.zeros_like,
    "one position late": lambda values: values.roll(1, dims=1),
    "of another sequence": lambda values: values.flip(0),
    "NaN when padded": lambda values: _only_padded(values, torch.nan),
    "one infinity in large chunks": lambda values: _with(torch.inf, (1,), values) if len(values) > 2 else values,
}


def measured(model, *, sketch_dim=512, weighted=False, reference=None):
    """Completions of 1 to 30 tokens: a few of each length, and most in one chunk of equal length."""
    rng, n = np.random.default_rng(2), 24
    prompts, completions = (rng.integers(2, VOCABULARY, size=(n, length)).tolist() for length in (4, 12))
    equal = Rollouts.from_sequences(prompts, completions, rng.normal(size=n), [f"q{row // 2}" for row in range(n)])
    rollouts = Rollouts.concatenate([ragged_rollouts(12, longest=30), equal])
    options = {"token_weights": random_weightings(rollouts, 1) if weighted else None, "reference_policy": reference}
    return gradients.measure(model, rollouts, engine="ghost", sketch_dim=sketch_dim, progress=False, **options)


def pairs(things, changes):
    """Every change in the first thing and every thing with the first change; the other pairs take a while."""
    first, most = next(iter(things)), next(iter(changes))
    return [
        pytest.param(thing, change, marks=() if thing == first or change == most else pytest.mark.slow)
        for thing in things
        for change in changes
    ]


@pytest.mark.parametrize(("layer", "change"), pairs(LAYERS, CHANGES))
def test_a_fault_of_one_parameter(layer, change, monkeypatch):
    model, kind, name = LAYERS[layer]
    break_layer(monkeypatch, kind, name, CHANGES[change])
    with pytest.raises(gradients.SelfCheckError, match=f'"ghost" fails its self-check .*squared norm of .*{name}'):
        measured(model(), sketch_dim=None)


@pytest.mark.parametrize(("field", "fault"), [(field, fault) for field, faults in RESULTS.items() for fault in faults])
def test_a_fault_of_results(field, fault, monkeypatch):
    def wrong(policy, chunk, selection, sketch):
        result = ghost_engine(policy, chunk, selection, sketch)
        return replace(result, **{field: RESULTS[field][fault](getattr(result, field), *chunk.input_ids.shape)})

    monkeypatch.setitem(gradients.ENGINES, "ghost", wrong)
    with pytest.raises(gradients.SelfCheckError, match="fails its self-check|is not finite, although its gradient is"):
        measured(float32("qwen2"), weighted=True)


@pytest.mark.parametrize(("name", "change"), pairs(QUANTITIES, OF_TOKENS))
def test_a_fault_of_a_recorded_quantity(name, change, monkeypatch):
    def wrong(policy, chunk, selection, sketch):
        result = ghost_engine(policy, chunk, selection, sketch)
        changed = {name: OF_TOKENS[change](getattr(result.statistics, name))}
        return replace(result, statistics=result.statistics._replace(**changed))

    monkeypatch.setitem(gradients.ENGINES, "ghost", wrong)
    refused = f"the recorded {name} of (its tokens deviates|the sequence .* is not finite, although its gradient is)"
    with pytest.raises(gradients.SelfCheckError, match=refused):
        measured(float32("qwen2"))


def test_a_fault_of_the_references_log_probabilities(monkeypatch):
    sound = session.reference_logprobs
    monkeypatch.setattr(session, "reference_logprobs", lambda reference, chunk: sound(reference, chunk) * 1.02)
    model = float32("qwen2")
    with pytest.raises(gradients.SelfCheckError, match="the recorded ref_logprobs of its tokens deviates"):
        measured(model, reference=float32("llama"))


@pytest.mark.parametrize("fault", ["zero", "2 % too large", "without signs", "too large by its definition"])
def test_a_fault_of_the_projection_that_every_engine_shares(fault, monkeypatch):
    sound, defined = sketches.CountSketch.add_slice, deviations.plain_sketch
    factor = {"zero": 0.0, "2 % too large": 1.02, "too large by its definition": 2.0}.get(fault, 1.0)

    def add_slice(self, total, name, size, first, values):
        sound(self, total, name, size, first, values * factor)

    monkeypatch.setattr(sketches.CountSketch, "add_slice", add_slice)
    if fault == "too large by its definition":  # then only the inner products show it
        monkeypatch.setattr(deviations, "plain_sketch", lambda *given: 2.0 * defined(*given))
    if fault == "without signs":
        monkeypatch.setattr(StoredSigns, "between", lambda self, first, last, like: like.new_ones(last - first))
    with pytest.raises(gradients.SelfCheckError, match="the projection fails its self-check"):
        measured(float32("qwen2"), sketch_dim=16384)
