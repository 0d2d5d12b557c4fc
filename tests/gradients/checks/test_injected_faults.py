"""The self-check refuses an engine with any of these faults; without a fault it passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, ragged_rollouts, tiny_model
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

#: Kind of layer and attribute → model, class of the layer, and a part of the parameter's name.
LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], type[Layer], str]] = {
    "attention": (lambda: tiny_model("qwen2", dtype=torch.float32), layers.LinearLayer, "layers.1.self_attn.k_proj.w"),
    "mlp": (lambda: tiny_model("qwen2", dtype=torch.float32), layers.LinearLayer, "layers.0.mlp.down_proj.weight"),
    "bias": (lambda: tiny_model("qwen2", dtype=torch.float32), layers.LinearLayer, "layers.0.self_attn.q_proj.bias"),
    "head": (lambda: tiny_model("qwen2", dtype=torch.float32), layers.LinearLayer, "lm_head.weight"),
    "tied head": (lambda: tiny_model("qwen2", True, torch.float32), layers.LinearLayer, "embed_tokens.weight"),
    "embedding": (lambda: tiny_model("qwen2", dtype=torch.float32), layers.EmbeddingLayer, "embed_tokens.weight"),
    "RMSNorm": (lambda: tiny_model("qwen2", dtype=torch.float32), layers.BroadcastLayer, "layers.1.input_layernorm"),
    "Gemma's RMSNorm": (lambda: any_model("gemma", dtype=torch.float32), layers.BroadcastLayer, "model.norm.weight"),
    "RMSNorm of torch": (lambda: with_torch_norm(), layers.TorchRMSNormLayer, "model.norm.weight"),
    "Conv1D": (lambda: tiny_model("gpt2", dtype=torch.float32), layers.TransposedLinearLayer, "h.0.mlp.c_fc.weight"),
    "Conv1D bias": (lambda: tiny_model("gpt2", dtype=torch.float32), layers.TransposedLinearLayer, "h.1.attn.c_proj.b"),
    "positions": (lambda: tiny_model("gpt2", dtype=torch.float32), layers.EmbeddingLayer, "wpe.weight"),
    "LayerNorm": (lambda: tiny_model("gpt2", dtype=torch.float32), layers.LayerNormLayer, "h.1.ln_2.weight"),
    "LayerNorm bias": (lambda: tiny_model("gpt2", dtype=torch.float32), layers.LayerNormLayer, "h.0.ln_1.bias"),
}


def with_torch_norm() -> torch.nn.Module:
    """A Llama whose last norm is torch's own class."""
    model = tiny_model("llama", dtype=torch.float32)
    norm = torch.nn.RMSNorm(model.config.hidden_size, eps=1e-6)
    norm.weight.data = model.model.norm.weight.data.clone()
    model.model.norm = norm
    return model


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
    if isinstance(term, OuterProducts):
        both = change(torch.cat([term.gradients, term.inputs], dim=2)) if _moves(change) else None
        if both is None:
            return OuterProducts(term.inputs, change(term.gradients), term.transposed)
        width = term.gradients.shape[2]
        return OuterProducts(both[..., width:], both[..., :width], term.transposed)
    if isinstance(term, EmbeddingRows):
        ids = change(term.ids) if _moves(change) else term.ids
        return EmbeddingRows(ids, change(term.values))
    return change(term)


def _moves(change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a change moves values from one sequence to another, as it has to for both factors of a product."""
    return change is CHANGES["of another sequence"]


#: What becomes of a chunk's result: sketches, quantities of tokens, norms of some chunks or weightings only.
RESULTS = {
    "sketches zero": lambda result: replace(result, sketches=result.sketches * 0),
    "sketches of other sequences": lambda result: replace(result, sketches=result.sketches[:, ::-1]),
    "sketches with permuted coordinates": lambda result: replace(result, sketches=result.sketches[:, :, ::-1]),
    "sketches 2 % too large": lambda result: replace(result, sketches=result.sketches * 1.02),
    "sketches negative": lambda result: replace(result, sketches=-result.sketches),
    "sketches NaN": lambda result: replace(result, sketches=result.sketches * float("nan")),
    "one NaN in the sketches": lambda result: replace(result, sketches=_with_nan(result.sketches)),
    "norms NaN when padded": lambda result: _norms(result, float("nan") if len(result.chunk.rows) > 1 else 1.0),
    "norms doubled in long chunks": lambda result: _norms(result, 2.0 if result.chunk.input_ids.shape[1] > 20 else 1.0),
    "norms of the first of several": lambda result: _norms(result, result.sq_norms_by_parameter[:, :1]),
    "norms doubled in large chunks": lambda result: _norms(result, 2.0 if len(result.chunk.rows) > 2 else 1.0),
    "sketches doubled in large chunks": lambda result: replace(
        result, sketches=result.sketches * (2.0 if len(result.chunk.rows) > 2 else 1.0)
    ),
    "one NaN in the sketches of large chunks": lambda result: replace(
        result, sketches=_with_nan(result.sketches) if len(result.chunk.rows) > 2 else result.sketches
    ),
    "norms of further weightings 2 % too large": lambda result: _weightings(result, "sq_norms_by_parameter", 1.02),
    "sketches of further weightings zero": lambda result: _weightings(result, "sketches", 0.0),
    "blocks exchanged": lambda result: replace(
        result, sq_norms_by_parameter=result.sq_norms_by_parameter[:, :, ::-1].copy()
    ),
}

QUANTITIES = ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")
OF_TOKENS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "2 % too large": lambda values: values * 1.02,
    "zero": torch.zeros_like,
    "one position late": lambda values: values.roll(1, dims=1),
    "of another sequence": lambda values: values.flip(0),
    "NaN when padded": lambda values: _only_padded(values, torch.nan),
    "one infinity in large chunks": lambda values: _with_infinity(values) if len(values) > 2 else values,
}


def of_tokens(name: str, change: Callable[[torch.Tensor], torch.Tensor]):
    """A change of one recorded quantity."""

    def changed(result):
        statistics = result.statistics._replace(**{name: change(getattr(result.statistics, name))})
        return replace(result, statistics=statistics)

    return changed


def _norms(result, factor):
    return replace(result, sq_norms_by_parameter=result.sq_norms_by_parameter * 0 + factor * _same(result, factor))


def _same(result, factor):
    return result.sq_norms_by_parameter if isinstance(factor, float) else 1.0


def _weightings(result, field: str, factor: float):
    values = getattr(result, field).copy()
    values[1:] *= factor
    return replace(result, **{field: values})


def _with_infinity(values):
    values = values.clone()
    values[1] = torch.inf
    return values


def _with_nan(sketches):
    sketches = sketches.copy()
    sketches[0, 0, 3] = float("nan")
    return sketches


def rollouts_of_a_run():
    """Completions of 1 to 30 tokens: a few of each length, and most in one chunk of equal length."""
    return Rollouts.concatenate([ragged_rollouts(12, longest=30), equally_long(24)])


def equally_long(n):
    rng = np.random.default_rng(2)
    prompts = [rng.integers(2, VOCABULARY, size=4).tolist() for _ in range(n)]
    completions = [rng.integers(2, VOCABULARY, size=12).tolist() for _ in range(n)]
    return Rollouts.from_sequences(prompts, completions, rng.normal(size=n), [f"q{row // 2}" for row in range(n)])


def measured(model, *, sketch_dim=512, weighted=False, reference=None):
    rollouts = rollouts_of_a_run()
    weights = random_weightings(rollouts, 1) if weighted else None
    return gradients.measure(
        model,
        rollouts,
        engine="ghost",
        sketch_dim=sketch_dim,
        token_weights=weights,
        reference_policy=reference,
        progress=False,
    )


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


@pytest.mark.parametrize("fault", RESULTS)
def test_a_fault_of_results(fault, monkeypatch):
    def wrong(policy, chunk, selection, sketch):
        return RESULTS[fault](ghost_engine(policy, chunk, selection, sketch))

    monkeypatch.setitem(gradients.ENGINES, "ghost", wrong)
    with pytest.raises(gradients.SelfCheckError, match="fails its self-check|is not finite, although its gradient is"):
        measured(tiny_model("qwen2", dtype=torch.float32), weighted=True)


@pytest.mark.parametrize(("name", "change"), pairs(QUANTITIES, OF_TOKENS))
def test_a_fault_of_a_recorded_quantity(name, change, monkeypatch):
    def wrong(policy, chunk, selection, sketch):
        return of_tokens(name, OF_TOKENS[change])(ghost_engine(policy, chunk, selection, sketch))

    monkeypatch.setitem(gradients.ENGINES, "ghost", wrong)
    refused = f"the recorded {name} of (its tokens deviates|the sequence .* is not finite, although its gradient is)"
    with pytest.raises(gradients.SelfCheckError, match=refused):
        measured(tiny_model("qwen2", dtype=torch.float32))


def test_a_fault_of_the_references_log_probabilities(monkeypatch):
    sound = session.reference_logprobs
    monkeypatch.setattr(session, "reference_logprobs", lambda reference, chunk: sound(reference, chunk) * 1.02)
    model = tiny_model("qwen2", dtype=torch.float32)
    with pytest.raises(gradients.SelfCheckError, match="the recorded ref_logprobs of its tokens deviates"):
        measured(model, reference=tiny_model("llama", dtype=torch.float32))


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
        measured(tiny_model("qwen2", dtype=torch.float32), sketch_dim=16384)
