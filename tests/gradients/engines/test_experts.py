"""Mixtures of experts in the ghost engine: every architecture and implementation against autograd."""

import numpy as np
import pytest
import torch
from architectures import KINDS_OF_EXPERTS, OLDEST_TRANSFORMERS, small_model
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_exact, oracle, random_weightings
from torch import nn
from torch.nn import functional

import gradstats.gradients as gradients
from gradstats.gradients.engines import experts as routed_products
from gradstats.gradients.engines.experts import ExpertsLayer, GroupedLinear, RoutedProducts, multiplies_groups
from gradstats.gradients.engines.recomputed import Recomputation
from gradstats.gradients.engines.reduction import Reduction, reduce_gradients
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import CountSketch


@pytest.fixture(autouse=True)
def no_mixture_is_run_again(monkeypatch):
    """Routers and experts are not left to the rule for modules of any kind."""
    record = Recomputation.record

    def of_others(self, *args):
        assert "mlp" not in self._other.path
        return record(self, *args)

    monkeypatch.setattr(Recomputation, "record", of_others)


@pytest.mark.parametrize("experts", ["eager", "batched_mm"])
@pytest.mark.parametrize("architecture", KINDS_OF_EXPERTS)
def test_mixtures_of_experts_equal_autograd(architecture, experts):
    model = small_model(architecture, experts=experts)
    measured, _ = assert_exact(model, ragged_rollouts(4, masked=True))
    assert set(measured.sq_norms_by_block) == {name for name, _ in model.named_parameters()}
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("architecture", KINDS_OF_EXPERTS)
def test_the_grouped_implementation_which_has_no_float64(architecture):
    model, rollouts = small_model(architecture, experts="eager"), ragged_rollouts(4)
    exact = oracle(model, rollouts)
    model.float().set_experts_implementation("grouped_mm")
    measured = gradients.measure(model, rollouts, engine="ghost", blocks="parameter", sketch_dim=128, progress=False)
    for name, values in measured.sq_norms_by_block.items():
        np.testing.assert_allclose(values, exact[name], rtol=2e-3, atol=1e-7, err_msg=name)


def test_auto_takes_ghost_for_a_mixture_records_it_and_weightings_share_the_forward_pass(rollouts):
    model, weightings = small_model("qwen3_moe", experts="eager"), random_weightings(rollouts)
    found, loop = (
        gradients.measure(model, rollouts, engine=engine, sketch_dim=64, token_weights=weightings, progress=False)
        for engine in ("auto", "loop")
    )
    dense = gradients.measure(tiny_model("llama"), rollouts, sketch_dim=None, progress=False)
    computed = [one.metadata["experts_implementation"] for one in (found, loop, dense)]
    assert computed == ["ghost, in place of eager", "eager", None]
    for name in weightings:
        np.testing.assert_allclose(found.weighted[name].sq_norms, loop.weighted[name].sq_norms, rtol=1e-5)
        np.testing.assert_allclose(found.weighted[name].sketches, loop.weighted[name].sketches, rtol=1e-4, atol=1e-6)


def test_experts_that_two_layers_share_are_one_gradient():
    model = small_model("gpt_oss", experts="eager")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    assert_exact(model, ragged_rollouts(4))


@pytest.mark.parametrize("params", [r"down_proj$", r"gate_up_proj_bias", r"router"])
def test_some_parameters_alone(params):
    model, rollouts = small_model("gpt_oss", experts="eager"), ragged_rollouts(4)
    expected = oracle(model, rollouts)
    measured = gradients.measure(
        model, rollouts, engine="ghost", params=params, blocks="parameter", sketch_dim=None, progress=False
    )
    assert len(measured.sq_norms_by_block.columns) in (2, 4)
    for name, values in measured.sq_norms_by_block.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-12, err_msg=name)


def test_an_index_beyond_the_last_expert_stands_for_none():
    model, rollouts = small_model("qwen3_moe", experts="eager"), ragged_rollouts(4)
    router = model.model.layers[0].mlp.gate

    def skip(_module, _inputs, output):
        logits, scores, chosen = output
        return logits, scores, chosen.masked_fill(scores < 0.5, 4)

    router.register_forward_hook(skip)
    if OLDEST_TRANSFORMERS:  # which refuses such an index itself
        with pytest.raises(RuntimeError, match="must be smaller than num_classes"):
            gradients.measure(model, rollouts, progress=False)
        return
    assert_exact(model, rollouts)


def test_experts_that_cannot_be_computed_here_are_left_to_the_general_rule():
    experts = small_model("qwen3_moe").model.layers[0].mlp.experts
    assert ExpertsLayer.handles(experts)
    for change in (
        lambda: setattr(experts, "_is_expert_parallel", True),
        lambda: experts.register_parameter("scale", nn.Parameter(torch.ones(1))),
        lambda: setattr(experts, "forward", experts.forward),
        lambda: setattr(experts, "has_post_expert_norm", True),
        lambda: setattr(experts, "_hf_tp_plan", "moe_tp_experts"),
    ):
        change()
        assert not ExpertsLayer.handles(experts)
        experts._is_expert_parallel = experts.has_post_expert_norm = False
        experts._parameters.pop("scale", None)
        vars(experts).pop("forward", None)
        vars(experts).pop("_hf_tp_plan", None)
        assert ExpertsLayer.handles(experts)


def limited(block, rows):
    """The first tokens of the batch take an expert's places, so that later sequences get another output alone."""
    _, scores, chosen = block.gate(rows)
    places = nn.functional.one_hot(chosen, 4).sum(dim=1).cumsum(dim=0).gather(1, chosen)
    return block.experts(rows, chosen, scores * (places <= 6))


def without_the_first(block, rows):
    _, scores, chosen = block.gate(rows[1:])
    out = block.experts(rows[1:], chosen, scores)
    return torch.cat([out[:1], out])


@pytest.mark.parametrize(
    ("forward", "params", "message"),
    [
        (limited, None, r"layers\.0\.mlp \(Block\), which gives a sequence another output alone than in the batch"),
        (without_the_first, "experts", r"mlp\.experts \(Qwen3MoeExperts\), which gets a tensor"),
    ],
)
def test_tokens_of_which_an_expert_depends_on_the_batch_are_refused(forward, params, message, rollouts):
    model = small_model("qwen3_moe", experts="eager")
    block = model.model.layers[0].mlp

    class Block(type(block)):
        def forward(self, hidden):
            return forward(self, hidden.flatten(0, 1)).view_as(hidden)

    block.__class__ = Block
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, engine="ghost", params=params, progress=False)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_and_gradients_equal_those_row_by_row(transposed):
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([3, 0, 4])
    rows = torch.randn(7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    matrices = torch.randn(3, *((5, 2) if transposed else (2, 5)), dtype=torch.float64, generator=generator)
    of_row = matrices.repeat_interleave(counts, dim=0)
    expected = torch.einsum("ni,nio->no" if transposed else "ni,noi->no", rows, of_row)
    found = GroupedLinear.apply(rows, matrices, counts, transposed)
    torch.testing.assert_close(found, expected)
    start = torch.randn(7, 2, dtype=torch.float64, generator=generator)
    for left, right in zip(
        torch.autograd.grad(found, rows, start), torch.autograd.grad(expected, rows, start), strict=True
    ):
        torch.testing.assert_close(left, right)


BATCH, EXPERTS, INPUTS, OUTPUTS = 3, 5, 6, 4


def routed(n_pairs, transposed, seed=0):
    """Random pairs, of which expert 0 gets half and the last expert none."""
    rng = np.random.default_rng(seed)
    experts = np.sort(np.where(rng.random(n_pairs) < 0.5, 0, rng.integers(0, EXPERTS - 1, size=n_pairs)))
    owners, places = rng.integers(0, BATCH, size=n_pairs), rng.integers(0, 9, size=n_pairs)
    inputs, gradients = rng.normal(size=(9, INPUTS)), rng.normal(size=(n_pairs, OUTPUTS))
    tensors = (torch.from_numpy(one) for one in (owners, experts, inputs, places, gradients))
    return RoutedProducts(*tensors, transposed)


def dense(term):
    shape = (INPUTS, OUTPUTS) if term.transposed else (OUTPUTS, INPUTS)
    total = torch.zeros(BATCH, EXPERTS, *shape, dtype=torch.float64)
    for owner, expert, place, gradient in zip(term.owners, term.experts, term.places, term.gradients, strict=True):
        left, right = (term.inputs[place], gradient) if term.transposed else (gradient, term.inputs[place])
        total[owner, expert] += torch.outer(left, right)
    return total


@pytest.mark.parametrize("sketch", [None, CountSketch(16, 0)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("n_pairs", "elements"), [(1, 2**22), (40, 2**22), (400, 2**22), (400, 64)])
def test_norms_and_sketches_equal_those_of_the_dense_gradient(sketch, transposed, n_pairs, elements, monkeypatch):
    monkeypatch.setattr(routed_products, "_ELEMENTS", elements)
    terms = [routed(n_pairs, transposed), routed(7, transposed, seed=1)]
    expected = dense(terms[0]) + dense(terms[1])
    selection = ParameterSelection({"w": expected[0]}, ("all",), {"w": 0})
    reduction = Reduction(selection, sketch, BATCH, torch.float64, torch.device("cpu"))
    RoutedProducts.join(terms).add_to(reduction, "w")
    norms, sketches = reduction.result()
    exact, exact_sketches = reduce_gradients({"w": expected}, selection, sketch)
    np.testing.assert_allclose(norms, exact, rtol=1e-12)
    if sketch is not None:
        np.testing.assert_allclose(sketches, exact_sketches, rtol=1e-11, atol=1e-12)


def test_a_gradient_that_is_not_finite_stays_in_its_sequence():
    term = routed(60, False)
    term.gradients[term.owners == 1] = torch.nan
    selection = ParameterSelection({"w": torch.zeros(EXPERTS, OUTPUTS, INPUTS)}, ("all",), {"w": 0})
    reduction = Reduction(selection, CountSketch(16, 0), BATCH, torch.float64, torch.device("cpu"))
    term.add_to(reduction, "w")
    norms, sketches = reduction.result()
    assert np.isfinite(norms[:, 0]).tolist() == [True, False, True]
    assert np.isfinite(sketches).all(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (lambda rows, matrices, offs: torch.cat([rows[:4] @ matrices[0], rows[4:] @ matrices[1]]), True),
        (lambda rows, matrices, offs: rows @ matrices[0], False),
        (lambda rows, matrices: rows @ matrices[0], False),
        (None, False),
    ],
)
def test_a_grouped_product_is_tried_before_it_is_trusted(monkeypatch, product, expected):
    multiplies_groups.cache_clear()
    if product is None:
        monkeypatch.delattr(functional, "grouped_mm", raising=False)
    else:
        monkeypatch.setattr(functional, "grouped_mm", product, raising=False)
    assert multiplies_groups(torch.device("cpu"), torch.bfloat16) is expected
    multiplies_groups.cache_clear()
