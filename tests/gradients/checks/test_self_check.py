"""The self-check against a plain pass."""

import contextlib
import functools
import json
import re
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from gradient_models import any_model, changed, oracle
from transformers import AutoModelForCausalLM

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.gradients import measure
from gradstats.gradients.checks.plain_pass import plain_pass, plain_tokens, sq_norm_in_float32
from gradstats.gradients.checks.self_check import Deviation, longest_row, of_tokens, two_rows, with_dtype
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.parameters import select_parameters
from gradstats.gradients.recompute import _layers as recompute_layers
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts
from gradstats.system.files import to_json


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_norms_and_token_quantities(architecture, masked):
    model, rollouts = tiny_model(architecture), ragged_rollouts(4, masked=masked)
    policy = Policy(model, temperature=0.7)
    expected = oracle(model, rollouts, 0.7)
    selection = select_parameters(model)
    for row, doubled in enumerate(2 * np.ones(len(tokens)) for tokens in rollouts.tokens("completion_tokens")):
        found = plain_pass(policy, rollouts, row, selection, None, [doubled])
        plain, twice = (gradient.sq_norms for gradient in found.gradients)  # weightings multiply the mask
        for name, value in plain.items():
            assert (value, twice[name]) == pytest.approx((expected[name][row], 4 * value), rel=1e-9)
        prompt, drawn = (list(rollouts.frame[name][row]) for name in ("prompt_tokens", "completion_tokens"))
        out, span = model(torch.tensor([[*prompt, *drawn]]), output_hidden_states=True), slice(len(prompt) - 1, -1)
        pi = torch.softmax(out.logits[0, span] / 0.7, dim=-1).detach().numpy()
        sizes = out.hidden_states[-1][0, span].square().sum(dim=-1).detach()
        np.testing.assert_allclose(found.tokens["hidden_sq_norms"], sizes, rtol=1e-9)
        np.testing.assert_allclose(found.tokens["logprobs"], np.log(pi[np.arange(len(pi)), drawn]), rtol=1e-9)
        np.testing.assert_allclose(found.tokens["entropy"], -(pi * np.log(pi)).sum(axis=1), rtol=1e-9)
        np.testing.assert_allclose(found.tokens["sum_pi_squared"], (pi**2).sum(axis=1), rtol=1e-9)
        assert plain_tokens(policy, rollouts, row).keys() == found.tokens.keys()


def test_a_large_gradient_in_float32_has_the_norm_of_float64():
    config, name = tiny_config("qwen2"), "model.layers.0.mlp.up_proj.weight"
    config.num_hidden_layers, config.layer_types, config.intermediate_size = 1, ["full_attention"], 2**17
    model = AutoModelForCausalLM.from_config(config).eval().double()
    rollouts = ragged_rollouts(2)
    expected = oracle(model, rollouts)[name]
    policy = Policy(model.float())
    selection = select_parameters(model, params="up_proj")
    assert selection.n_parameters > 2e6
    found = plain_pass(policy, rollouts, 1, selection, None)
    assert found.gradients[0].sq_norms[name] == pytest.approx(expected[1], rel=1e-5)
    measured = measure(policy, rollouts, engine="loop", params="up_proj", sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, expected, rtol=1e-5)


def test_parameters_are_cast_in_a_copy_and_buffers_keep_their_dtype():
    policy = Policy(tiny_model("qwen2", tied=True, dtype=torch.float32), temperature=0.7, name="tiny")
    assert with_dtype(policy, torch.float32) is policy
    cast = with_dtype(policy, torch.bfloat16)
    assert (cast.dtype, cast.temperature, cast.name) == (torch.bfloat16, 0.7, "tiny")
    assert cast.model.lm_head.weight is cast.model.model.embed_tokens.weight
    parameters = dict(cast.model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameters[name], parameter.bfloat16())
    frequencies = cast.model.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    assert torch.equal(frequencies, policy.model.model.rotary_emb.inv_freq)


def test_a_copy_runs_its_own_weights_although_a_forward_method_is_bound_to_the_model():
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    ids = torch.arange(5)[None]
    expected = with_dtype(policy, torch.float64).model(ids).logits
    layer = policy.model.model.layers[0].mlp
    for module in (policy.model, layer):
        for _ in range(2):  # a wrapper around a wrapper
            inner = functools.partial(module.forward)
            module.forward = functools.wraps(inner)(lambda *args, inner=inner, **kwargs: inner(*args, **kwargs))
    norm = policy.model.model.norm  # a method that is copied with the model
    norm.forward = types.MethodType(lambda self, *given: type(self).forward(self, *given), norm)
    cast = with_dtype(policy, torch.float64)
    assert not {"forward"} & (vars(cast.model).keys() | vars(cast.model.model.layers[0].mlp).keys())
    assert vars(cast.model.model.norm)["forward"].__self__ is cast.model.model.norm
    assert torch.equal(cast.model(ids).logits, expected)
    assert "forward" in vars(policy.model)
    with torch.no_grad():
        for parameter in cast.model.parameters():
            parameter.zero_()
    assert not cast.model(ids).logits.any()


def test_a_forward_method_that_computes_something_else_is_refused():
    policy = Policy(tiny_model("gpt2", dtype=torch.float32), name="tiny")
    layer = policy.model.transformer.h[1].mlp
    forward = layer.forward
    layer.forward = lambda *args: 2 * forward(*args)
    with pytest.raises(ValueError, match=r"tiny cannot be copied .* bound to transformer\.h\.1\.mlp \(GPT2MLP\)"):
        with_dtype(policy, torch.float64)


def test_tokens_are_relative_to_the_largest_of_the_sequence_and_nan_does_not_pass():
    exact = {"entropy": np.array([0.5, 2.0])}
    (found,) = of_tokens({"entropy": np.array([0.5, 2.1])}, exact, torch.float32)
    np.testing.assert_allclose(found.value, 0.05)
    (shorter,) = of_tokens({"entropy": np.array([0.5])}, exact, torch.float32)
    assert not shorter.passes
    assert [Deviation(value, 0.1, "x").passes for value in (0.1, 0.11, float("nan"))] == [True, False, False]


def test_for_an_engine_that_fails_the_self_check_auto_takes_the_next(monkeypatch, rollouts):
    monkeypatch.setitem(gradients.ENGINES, "ghost", changed(ghost_engine, lambda norms, chunk: norms * 1.001))
    message = r'engine "ghost" fails its self-check .* the squared norm of .* deviates by 1\.00e-03'
    with pytest.warns(UserWarning, match='measuring with engine "vmap": the ' + message):
        measured = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=None, progress=False)
    assert measured.metadata["engine"] == "vmap"
    assert "self-check" in measured.metadata["engines_passed_over"]["ghost"]


@pytest.mark.parametrize(
    ("engine", "dtype", "remedies"),
    [
        ("vmap", torch.float32, ["measurement.engine=loop", "policy.dtype=float64"]),
        ("loop", torch.float32, ["policy.dtype=float64"]),
        ("loop", torch.bfloat16, ["policy.dtype=float32"]),
        ("vmap", torch.float64, ["measurement.engine=loop"]),
    ],
)
@pytest.mark.filterwarnings("ignore:in torch.bfloat16 squared norms")
def test_the_remedy_is_something_else_than_what_failed(monkeypatch, rollouts, engine, dtype, remedies):
    monkeypatch.setitem(gradients.ENGINES, engine, changed(gradients.ENGINES[engine], lambda norms, chunk: norms * 2.0))
    with pytest.raises(gradients.SelfCheckError, match="is allowed: use --set ") as raised:
        gradients.measure(tiny_model("qwen2", dtype=dtype), rollouts, engine=engine, progress=False)
    assert re.findall(r"--set (\S+)", str(raised.value)) == remedies


@pytest.mark.parametrize(("factor", "passes"), [(1.004, True), (1.02**2, False)])
def test_in_float32_one_parameter_may_be_off_by_rounding_and_no_more(monkeypatch, rollouts, factor, passes):
    def smallest_scaled(norms, chunk):
        factors = np.ones(norms.shape[2])
        factors[norms.sum(axis=(0, 1)).argmin()] = factor
        return norms * factors

    monkeypatch.setitem(gradients.ENGINES, "ghost", changed(ghost_engine, smallest_scaled))
    refused = pytest.raises(gradients.SelfCheckError, match=r"deviates by 4\.0\de-02 .*, where 1e-02 is allowed")
    with contextlib.nullcontext() if passes else refused:
        model = tiny_model("qwen2", dtype=torch.float32)
        check = gradients.measure(model, rollouts, engine="ghost", progress=False).metadata["self_check"]
        assert 0.003 < check["parameters"] < check["tolerance_of_parts"]
        assert check["squared_norms"] < check["tolerance"]


@pytest.mark.parametrize(("share", "passes"), [(0.0012, True), (0.004, False)])
@pytest.mark.filterwarnings("ignore:in torch.bfloat16 squared norms")
def test_in_bfloat16_a_small_parameter_may_be_off_by_a_thousandth_of_the_whole(monkeypatch, rollouts, share, passes):
    def smallest_raised(norms, chunk):
        raised = np.zeros(norms.shape)
        raised[:, :, norms.sum(axis=(0, 1)).argmin()] = share * norms.sum(axis=2)
        return norms + raised

    monkeypatch.setitem(gradients.ENGINES, "ghost", changed(ghost_engine, smallest_raised))
    with contextlib.nullcontext() if passes else pytest.raises(gradients.SelfCheckError, match="the squared norm of"):
        gradients.measure(tiny_model("qwen2", dtype=torch.bfloat16), rollouts, engine="ghost", progress=False)


def test_the_self_check_is_recorded(rollouts):
    check = gradients.measure(tiny_model("gpt2"), rollouts, progress=False).metadata["self_check"]
    assert (check["tolerance"], check["tolerance_of_parts"]) == (1e-5, 1e-5)
    assert all(0 <= check[name] < 1e-9 for name in ("squared_norms", "parameters", "sketches", "token_quantities"))


def test_bfloat16_reports_its_deviation_from_float32(rollouts):
    model = tiny_model("qwen2", dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match=r"in torch\.bfloat16 squared norms deviate by up to \d+\.\d% from those in"):
        measured = gradients.measure(model, rollouts, engine="ghost", sketch_dim=32, progress=False)
    check = measured.metadata["self_check"]
    assert 1e-4 < check["deviation_from_float32"] < 0.5
    wide = gradients.measure(model.float(), rollouts, engine="loop", sketch_dim=32, progress=False)
    assert wide.metadata["self_check"]["deviation_from_float32"] is None
    rows = two_rows(rollouts)
    off = np.abs(measured.sq_norms / wide.sq_norms - 1)[rows].max()
    assert off < 2 * check["deviation_from_float32"] + 0.02
    assert measured.sketches.dtype == np.float32


@pytest.mark.parametrize("in_slices", [False, True])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma", "qwen2_moe"])
def test_a_layer_at_a_time_has_the_norm_of_a_copy_in_float32(monkeypatch, rollouts, architecture, in_slices):
    policy = Policy(any_model(architecture, tied=True, dtype=torch.bfloat16))
    parameters = dict(policy.model.named_parameters())
    before = {name: (one, one.data_ptr()) for name, one in parameters.items()}
    wide = with_dtype(policy, torch.float32)
    selection, of_copy = (select_parameters(one.model, "(layers|h)|embed|wte") for one in (policy, wide))
    if in_slices:
        monkeypatch.setattr("gradstats.gradients.checks.plain_pass._SLICE", 100)
    # P of a metric, which multiplies gradients
    factors = {name: torch.full_like(one, 3.0, dtype=torch.float32) for name, one in of_copy.parameters.items()}
    selection, of_copy = (replace(one, preconditioner=factors) for one in (selection, of_copy))
    layers, at_once = [module for _, module in recompute_layers(policy.model)], []

    def count(*given):
        at_once.append(sum(next(layer.parameters()).dtype == torch.float32 for layer in layers))

    for layer in layers:
        next(layer.children()).register_forward_pre_hook(count)
    found = sq_norm_in_float32(policy, rollouts, 1, selection)
    assert at_once[-4:] == [1] * 4  # forward and backward passes of two layers
    assert {name: (one, one.data_ptr()) for name, one in policy.model.named_parameters()} == before
    plain = plain_pass(wide, rollouts, 1, of_copy, None).gradients[0].sq_norms
    assert found == pytest.approx(sum(plain.values()), rel=1e-5)


def test_the_checked_rows_are_the_shortest_the_one_of_median_length_and_the_longest():
    completions = [[2] * length for length in (9, 2, 30, 5, 4)]
    rollouts = Rollouts.from_sequences([[3]] * 5, completions, [0.0] * 5, list("abcde"))
    assert two_rows(rollouts) == [1, 3]
    assert longest_row(rollouts) == 2
    assert two_rows(rollouts.select([2])) == [0, 0]


def test_the_sequence_that_is_checked_later_is_one_of_those_still_to_be_measured(rollouts):
    session = opened(rollouts)
    session.schedule_recheck(rollouts.select([3]))
    assert session.checked_later == (rollouts.prompt_id[3], rollouts.sample_id[3])
    session.measure(rollouts.select([0, 1]))
    assert session.checked_later is not None
    session.measure(rollouts.select([2, 3]))
    assert session.checked_later is None


@pytest.fixture
def plain_rows(monkeypatch):
    """Rows of the plain passes that the self-check makes, as they are made."""
    rows = []

    def counted(policy, rollouts, row, *given, **options):
        rows.append(row)
        return plain_pass(policy, rollouts, row, *given, **options)

    monkeypatch.setattr("gradstats.gradients.checks.self_check.plain_pass", counted)
    return rows


def opened(rollouts: Rollouts, model="gpt2", earlier=None, **settings) -> gradients.MeasuringSession:
    model = tiny_model(model) if isinstance(model, str) else model
    return gradients.MeasuringSession.open(model, rollouts, MeasurementSection(**settings), earlier=earlier)


def begun(rollouts: Rollouts, **settings) -> dict:
    """The metadata of a measurement, as they are read from a file."""
    return json.loads(to_json(opened(rollouts, **settings).measure(rollouts).metadata))


def test_of_a_session_that_goes_on_one_sequence_of_its_first_chunk_is_compared(plain_rows):
    rng = np.random.default_rng(0)
    completions = [rng.integers(2, 20, length).tolist() for length in (6, 6, 6, 15, 15, 15)]
    rollouts = Rollouts.from_sequences([[3, 4]] * 6, completions, [0.0] * 6, list("aabbcc"))
    settings = {"engine": "ghost", "sketch_dim": 32}
    earlier = begun(rollouts, **settings)
    plain_rows.clear()
    session = opened(rollouts, earlier=earlier, **settings)
    assert plain_rows == []
    assert session.metadata["self_check"] == earlier["self_check"]
    session.checked_later = None
    chunks = []
    session.measure(rollouts, lambda n_sequences, n_tokens: chunks.append((n_sequences, len(plain_rows))))
    assert len(chunks) > 1
    assert chunks[0][0] > 1
    assert {n for _, n in chunks} == {1}
    session.schedule_recheck(rollouts)  # a random sequence is compared whenever its chunk comes
    session.measure(rollouts)
    assert len(plain_rows) == 2
    session = opened(rollouts, earlier=earlier, **settings)
    session.engine, session.checked_later = changed(ghost_engine, lambda norms, chunk: 1.1 * norms), None
    with pytest.raises(gradients.SelfCheckError, match=r"a later chunk \(sequence .* deviates by 1\.00e-01"):
        session.measure(rollouts)


def test_of_a_session_that_goes_on_the_next_chunk_is_compared_where_a_gradient_is_not_finite(monkeypatch, plain_rows):
    rollouts = ragged_rollouts(4)
    settings = {"engine": "ghost", "sketch_dim": None, "token_budget": 1}
    earlier = begun(rollouts, **settings)
    plain_rows.clear()
    monkeypatch.setattr(
        "gradstats.gradients.checks.self_check._is_finite", lambda plain: plain.row != int(np.argmin(rollouts.times))
    )
    session = opened(rollouts, earlier=earlier, **settings)
    session.checked_later = None
    session.measure(rollouts)
    assert plain_rows == np.argsort(rollouts.times)[:2].tolist()


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({"sketch_dim": 64}, {}),
        ({"engine": "loop"}, {}),
        ({"recompute": "on"}, {}),
        ({}, {"versions": {"gradstats": "0.0.1"}}),
        ({}, {"policy": {"name": "another"}}),
        ({}, {"self_check": {"hardware": "another"}}),
        ({}, {"self_check": {"longest": 21}}),
        ({}, {"self_check": None}),
        ({}, {}),
    ],
)
def test_the_self_check_of_something_else_does_not_serve(rollouts, plain_rows, monkeypatch, settings, recorded):
    options = {"engine": "ghost", "sketch_dim": 32}
    earlier = begun(rollouts, **options)
    assert earlier["self_check"]["longest"] == 22
    for name, value in recorded.items():
        earlier[name] = earlier[name] | value if name == "self_check" and value else value
    if not settings and not recorded:  # of ranks that hold a model together one would wait for another that checks
        monkeypatch.setattr("gradstats.gradients.checks.self_check.is_sharded", lambda model: True)
    plain_rows.clear()
    opened(rollouts, earlier=earlier, **options | settings)
    assert len(plain_rows) == 3


def test_an_engine_that_was_passed_over_is_not_tried_again(rollouts, plain_rows, monkeypatch):
    def broken(*given):
        raise gradients.UnsupportedModuleError("no such layer")

    monkeypatch.setitem(gradients.ENGINES, "ghost", broken)
    with pytest.warns(UserWarning, match='measuring with engine "vmap": no such layer'):
        earlier = begun(rollouts, sketch_dim=32)
    plain_rows.clear()
    with pytest.warns(UserWarning, match='measuring with engine "vmap": no such layer'):
        session = opened(rollouts, earlier=earlier, sketch_dim=32)
    assert plain_rows == []
    assert session.engine is gradients.ENGINES["vmap"]


def test_what_low_precision_loses_is_said_again(rollouts, plain_rows):
    model, earlier = tiny_model("qwen2", dtype=torch.bfloat16), None
    for _ in range(2):
        plain_rows.clear()
        with pytest.warns(UserWarning, match="squared norms deviate by up to"):
            earlier = opened(rollouts, model, earlier, sketch_dim=None).metadata
    assert plain_rows == []


@pytest.mark.parametrize("where", ["sketch", "recorded entropy", "gradient and sketch"])
def test_what_is_not_finite_in_a_chunk_that_is_not_checked_is_named_or_left_out(rollouts, where):
    session = opened(rollouts, sketch_dim=32)
    session.checked_later = None

    def wrong(*given):
        result = ghost_engine(*given)
        if 2 not in result.chunk.rows:
            return result
        place, entropy = result.chunk.rows.tolist().index(2), result.statistics.entropy.clone()
        if "sketch" in where:
            result.sketches[0, place, 3] = np.nan
        if "gradient" in where:
            result.sq_norms_by_parameter[0, place] = np.inf
        if "entropy" in where:
            entropy[place] = np.inf
        return replace(result, statistics=result.statistics._replace(entropy=entropy))

    session.engine, session.results = wrong, []
    named = f"{rollouts.prompt_id[2]}/{rollouts.sample_id[2]}"
    if "gradient" in where:
        with pytest.warns(RuntimeWarning, match="1 of 5 sequences have a gradient that is not finite"):
            assert len(session.measure(rollouts)) == 4
        return
    with pytest.raises(gradients.SelfCheckError, match=f"the {where} of the sequence {named} is not finite, although"):
        session.measure(rollouts)
