"""A measuring session: one call, shard after shard, and what memory allows."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from gradient_models import any_model, assert_same, changed, random_weightings
from token_gradients import token_gradients
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.batch import Batch
from gradstats.gradients import head
from gradstats.gradients.checks.self_check import check_result
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.measure import mean_square_gradients
from gradstats.gradients.memory import (
    LIBRARIES_GIB,
    SELF_CHECK,
    ActivationSize,
    activation_size,
    peak_memory,
    tokens_that_fit,
)
from gradstats.gradients.parameters import select_parameters
from gradstats.gradients.session import token_statistics
from gradstats.measurement.disk_size import GIB
from gradstats.policy.memory import is_out_of_memory
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts


def opened(rollouts, model=None, **settings):
    """A session of the ghost engine, without sketches unless they are asked for."""
    section = MeasurementSection(**{"engine": "ghost", "sketch_dim": None} | settings)
    return gradients.MeasuringSession.open(model or tiny_model("qwen2"), rollouts, section)


@pytest.mark.parametrize("bare", [True, False])
def test_reference_logprobs_equal_a_direct_computation(bare):
    policy, reference, rollouts = Policy(tiny_model("qwen2"), temperature=0.7), tiny_model("llama"), ragged_rollouts(5)
    given, temperature = (reference, 0.7) if bare else (Policy(reference, temperature=1.6), 1.6)
    measured = gradients.measure(policy, rollouts, reference_policy=given, sketch_dim=None, progress=False)
    for row, found in enumerate(measured.ref_logprobs):
        prompt, completion = (list(rollouts.frame[name].iloc[row]) for name in ("prompt_tokens", "completion_tokens"))
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / temperature).log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        np.testing.assert_allclose(Batch.from_measurement(measured).ref_logprobs[row, : len(found)], found)


def test_what_is_no_policy_and_a_reference_of_another_vocabulary_are_refused(rollouts):
    config = tiny_config("llama")
    config.vocab_size = 50
    other = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="has a vocabulary of 50, but Qwen2ForCausalLM one of 41"):
        gradients.measure(tiny_model("qwen2"), rollouts, reference_policy=other, progress=False)
    for given in (("gpt2", None), (tiny_model("qwen2"), "embedded")):
        with pytest.raises(TypeError, match="policy is a str"):
            gradients.measure(given[0], rollouts, reference_policy=given[1], progress=False)


def test_sequences_without_a_finite_gradient_are_named_and_left_out(monkeypatch):
    rollouts = ragged_rollouts(5)
    # Not one of the sequences that the self-check passes over.
    poisoned = changed(ghost_engine, lambda norms, chunk: np.where((chunk.rows == 2)[:, None], np.nan, norms))
    weights = [np.full(len(mask), float(row)) for row, mask in enumerate(rollouts.masks)]
    settings = {"sketch_dim": 32, "token_weights": weights, "progress": False}
    clean = gradients.measure(tiny_model("qwen2"), rollouts, **settings)
    monkeypatch.setitem(gradients.ENGINES, "ghost", poisoned)
    with pytest.warns(RuntimeWarning, match=r"1 of 5 sequences have a gradient that is not finite \(p1/0\)"):
        measured = gradients.measure(tiny_model("qwen2"), rollouts, **settings)
    kept = [0, 1, 3, 4]
    np.testing.assert_allclose(measured.sq_norms, clean.sq_norms[kept])
    np.testing.assert_allclose(measured.sketches, clean.sketches[kept])
    assert measured.metadata["not_finite"] == [["p1", 0]]
    np.testing.assert_allclose(measured.weighted["weighted"].sketches, clean.weighted["weighted"].sketches[kept])
    assert [row.max() for row in measured.weighted["weighted"].weights] == kept
    assert [len(values) for values in measured.logprobs] == [len(clean.logprobs[row]) for row in kept]


@pytest.mark.parametrize(
    ("long", "message"),
    [
        ([99], "completion_tokens hold the token id 99, but .* a vocabulary of 41"),
        ([6] * 70, r"sequence b/0 has 71 tokens, and GPT2LMHeadModel has positions for 64 "),
    ],
)
def test_tokens_beyond_the_vocabulary_or_the_positions_are_refused(long, message):
    rollouts = Rollouts.from_sequences([[5], [5]], [[6], long], [0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("gpt2"), rollouts, progress=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_said_to_be_so(value):
    model = tiny_model("qwen2")
    model.model.layers[1].mlp.up_proj.weight.data[3, 2] = value
    sentence = r"the weights of .* hold NaN or infinity \(model\.layers\.1\.mlp\.up_proj\.weight\): load an intact"
    with pytest.raises(ValueError, match=sentence):
        gradients.measure(model, ragged_rollouts(2), progress=False)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_memory_that_runs_out_halves_the_chunks(monkeypatch, error):
    """Of gradients, and where tokens are scored by a forward pass alone."""
    refused = []

    def small(function):
        def run(policy, chunk, *others):
            assert not refused or chunk.n_tokens <= session.token_budget == refused[-1] // 2
            if chunk.n_tokens > 60:
                refused.append(chunk.n_tokens)
                raise error
            return function(policy, chunk, *others)

        return run

    rollouts = ragged_rollouts(12, longest=6)
    whole = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    monkeypatch.setattr("gradstats.gradients.objective.MOST_PADDING", 1.0)
    halved = r"memory ran out on \d+ sequences of \d+ tokens together: continuing with"
    session = opened(rollouts, sketch_dim=32)
    session.engine, session.results = small(ghost_engine), []
    with pytest.warns(RuntimeWarning, match=halved):
        measured = session.measure(rollouts)
    assert_same(replace(measured, ref_logprobs=measured.logprobs), replace(whole, ref_logprobs=whole.logprobs))
    monkeypatch.setattr("gradstats.gradients.session.token_statistics", small(token_statistics))
    session.token_budget = 4096
    refused.clear()
    with pytest.warns(RuntimeWarning, match=halved):
        scored = session.token_statistics(rollouts)
    for name, rows in scored.items():
        np.testing.assert_allclose(np.concatenate(rows), np.concatenate(getattr(whole, name)), rtol=1e-9)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("full"), r"memory ran out on a single sequence of \d+ tokens \(full\): measure"),
        (MemoryError(), r"on a single sequence of \d+ tokens \(MemoryError\): measure"),
        (RuntimeError("shapes do not match"), "^shapes do not match"),
    ],
)
def test_memory_that_runs_out_on_one_sequence_and_other_errors_end_the_run(rollouts, error, message):
    session = opened(rollouts)

    def never(*_):
        raise error

    session.engine, session.results = never, []
    with pytest.raises(RuntimeError, match=message):
        session.measure(rollouts.select([1]))


def test_what_the_self_check_measured_is_not_measured_again_until_weights_may_have_changed(monkeypatch):
    calls = []

    def counted(policy, chunk, selection, sketch):
        calls.append(chunk.rows.tolist())
        return ghost_engine(policy, chunk, selection, sketch)

    monkeypatch.setitem(gradients.ENGINES, "ghost", counted)
    rollouts, model = ragged_rollouts(3).select([2]), tiny_model("qwen2")
    settings = {"model": model, "sketch_dim": 32, "block_sketches": True}
    session = opened(rollouts, **settings)
    first = session.measure(rollouts)
    assert calls == [[0]]
    again = session.measure(rollouts)
    assert calls == [[0], [0]]
    pd.testing.assert_frame_equal(first.sq_norms_by_block, again.sq_norms_by_block, check_exact=True)
    np.testing.assert_array_equal(first.sketches_by_block, again.sketches_by_block)
    # Other tokens, other weights of tokens or another way through the layers are another measurement.
    mask = [[False, *[True] * (rollouts.lengths[0] - 1)]]
    masked = replace(rollouts, frame=rollouts.frame.assign(completion_mask=mask))
    for given, weights, recompute in (
        (rollouts, random_weightings(rollouts, 1), "auto"),
        (rollouts, None, "on"),
        (masked, None, "auto"),
    ):
        session = opened(rollouts, **settings)
        session.recompute = replace(session.recompute, wanted=recompute)
        calls.clear()
        found = session.measure(given, token_weights=weights)
        assert calls == [[0]]
        assert (found.sq_norms[0] != first.sq_norms[0]) == (given is masked)


def test_progress_counts_every_sequence_and_token():
    rollouts = ragged_rollouts(6)
    session = opened(rollouts, token_budget=40)
    assert session.metadata["execution"]["token_budget"] == 40
    counted = np.zeros(2, dtype=int)
    session.measure(rollouts, lambda n_sequences, n_tokens: counted.__iadd__([n_sequences, n_tokens]))
    assert counted[0] == 6
    assert counted[1] >= sum(len(c) for c in rollouts.tokens("completion_tokens"))


@pytest.fixture
def scarce(monkeypatch):
    """Memory has room for no chunk but those of one sequence whose layers run again, or for none at all."""
    fits = {"one": True}

    def ghost(policy, chunk, selection, sketch):
        if not (fits["one"] and chunk.recompute and len(chunk.rows) == 1):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return ghost_engine(policy, chunk, selection, sketch)

    monkeypatch.setitem(gradients.ENGINES, "ghost", ghost)
    return fits


def test_memory_that_runs_out_in_the_self_check_is_saved(scarce):
    rollouts = ragged_rollouts(5)
    with pytest.warns(RuntimeWarning, match="memory ran out in the self-check: repeating it with each sequence alone"):
        session = opened(rollouts)
    assert session.recompute(1, 3)
    assert session.metadata["self_check"]["recomputed"]
    with pytest.warns(RuntimeWarning, match="memory ran out on"):
        measured = session.measure(rollouts)
    whole = gradients.measure(tiny_model("qwen2"), rollouts, engine="loop", sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, whole.sq_norms, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:memory ran out")
@pytest.mark.parametrize(("recompute", "remedy"), [("auto", "measure fewer"), ("off", 'measure with recompute="on"')])
def test_memory_that_never_suffices_for_the_self_check_is_an_error_with_a_remedy(scarce, recompute, remedy):
    scarce["one"] = False
    with pytest.raises(RuntimeError, match=rf"memory ran out in the self-check \(CUDA out of memory.*\): {remedy}"):
        opened(ragged_rollouts(3), recompute=recompute)


def test_memory_that_runs_out_in_the_later_check_loses_no_measurement(monkeypatch):
    rollouts, ran = ragged_rollouts(9), []

    def check(policy, rollouts, result, *others):
        ran.append(result.chunk.recompute)
        if not result.chunk.recompute:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return check_result(policy, rollouts, result, *others)

    monkeypatch.setattr("gradstats.gradients.session.check_result", check)
    with pytest.warns(RuntimeWarning, match=r"in the check of a later sequence \(CUDA out of .*\): repeating it with"):
        assert len(opened(rollouts).measure(rollouts)) == 9
    assert ran == [False, True]
    left_out = "it is measured, and not compared with a plain pass"
    with pytest.warns(RuntimeWarning, match="repeating it"), pytest.warns(RuntimeWarning, match=left_out):
        assert len(opened(rollouts, recompute="off").measure(rollouts)) == 9


@pytest.mark.parametrize(("token_budget", "most_rows"), [(4096, 9), (30, 9), (4096, 1)])
def test_mean_squares_equal_those_of_token_gradients(token_budget, most_rows, monkeypatch):
    """In one chunk or several, also where memory has room for one sequence alone."""
    model, rollouts, counted = any_model("gpt2", True), ragged_rollouts(6, masked=True), []
    (weights,) = random_weightings(rollouts, 1).values()
    scores = token_gradients(model, rollouts, 0.7)

    def few(_module, args):
        if len(args[0]) > most_rows:
            raise torch.OutOfMemoryError("out of memory")

    model.register_forward_pre_hook(few)
    monkeypatch.setattr("gradstats.gradients.objective.MOST_PADDING", 1.0)
    batches = [np.array([0, 3, 1]), np.array([5, 2])]
    with pytest.warns(RuntimeWarning, match="memory ran out on") if most_rows == 1 else nullcontext():
        found = mean_square_gradients(
            Policy(model, temperature=0.7),
            rollouts,
            gradients.select_parameters(model, r"h\."),
            weights,
            batches,
            token_budget=token_budget,
            finished=lambda *sizes: counted.append(sizes[0]),
        )
    assert sum(counted) == 5
    for name, values in found.items():
        of_batches = [
            sum(weight * score[name] for row in rows for weight, score in zip(weights[row], scores[row], strict=True))
            for rows in batches
        ]
        expected = torch.stack(of_batches).square().mean(dim=0)
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-20, err_msg=name)
    assert len(found) == 24


def test_a_gradient_that_is_not_finite_is_named():
    model, rollouts = any_model("qwen2"), ragged_rollouts(3)
    weights = [np.full(len(tokens), 1e308) for tokens in rollouts.tokens("completion_tokens")]
    with pytest.raises(ValueError, match=r"gradient of .* in batch 0 of the estimate of second moments is not finite"):
        mean_square_gradients(Policy(model), rollouts, gradients.select_parameters(model), weights, [np.arange(3)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "ghosts"}, "engine is 'ghosts': choose one of auto, ghost, vmap, loop"),
        ({"params": "nothing"}, r"matches no trainable parameter; some that exist: model\.embed_tokens\.weight"),
        ({"params": "("}, "is not a regular expression"),
        ({"blocks": "rows"}, "blocks is 'rows'"),
        ({"token_budget": 0}, "token_budget is 0"),
        ({"memory_gib": 0.0}, "memory_gib is 0.0"),
    ],
)
def test_bad_settings_are_refused(options, message, rollouts):
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False, **options)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("the caller ran out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_allocators_are_recognised_by_their_errors(error, expected):
    assert is_out_of_memory(error) is expected
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)  # more than any machine has
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("n_sequences", "time", "recompute", "counted"),
    [(4, 256, False, 0.893), (8, 256, True, 0.684), (8, 512, True, 0.883)],  # GiB, by an accelerator's allocator
)
def test_on_an_accelerator_the_estimate_is_near_what_its_allocator_counts(
    monkeypatch, n_sequences, time, recompute, counted
):
    shape = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 12}
    config = Qwen2Config(**shape, num_key_value_heads=2, vocab_size=8192)
    policy = Policy(AutoModelForCausalLM.from_config(config))
    sizes = ActivationSize(329_275, 192.0)  # of its attention, which is not fused
    given = (select_parameters(policy.model), n_sequences, time, 16384, sizes, recompute)
    on_cpu = peak_memory(policy, "ghost", *given)
    monkeypatch.setattr("gradstats.gradients.memory.is_accelerator", lambda device: True)
    monkeypatch.setattr("gradstats.gradients.memory.sliced_head", lambda *given: None)  # so few logits are held
    found, loop = (peak_memory(policy, engine, *given) for engine in ("ghost", "loop"))
    assert 0.9 < found.total / counted < 1.1
    assert (found.libraries, found.weights, on_cpu.slices) == (0.0, on_cpu.weights, 0.0)
    assert loop.gradients * GIB == pytest.approx(4 * given[0].n_parameters)


PARTS = ["libraries", "weights", "activations", "logits", "gradients", "sketches"]


def tiny(attention: str = "sdpa", layers: int = 2) -> Policy:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=101, attn_implementation=attention)
    torch.manual_seed(0)
    return Policy(AutoModelForCausalLM.from_config(config).eval(), None, "tiny")


def test_the_parts_of_the_estimate():
    policy = tiny()
    selection = select_parameters(policy.model)
    n = sum(parameter.numel() for parameter in policy.model.parameters())
    sizes = ActivationSize(1000.0, 2.0)

    def parts(engine, sketch_dim=None):
        return peak_memory(policy, engine, selection, 3, 10, sketch_dim, sizes)

    ghost, loop, vmap = (parts(engine) for engine in ("ghost", "loop", "vmap"))
    assert ghost.libraries == LIBRARIES_GIB
    assert ghost.weights * GIB == pytest.approx(4 * n)
    assert ghost.activations * GIB == pytest.approx(1.2 * 3 * (1000 * 10 + 2 * 100))
    assert ghost.logits * GIB == pytest.approx(2 * 3 * 10 * 4 * 101)
    assert (ghost.gradients, ghost.sketches) == (0, 0)
    assert loop.activations == pytest.approx(ghost.activations / 3)
    assert (loop.gradients * GIB, vmap.gradients * GIB) == pytest.approx((2.4 * 4 * n, 1.5 * 3 * 4 * n))
    assert parts("ghost", 50).sketches * GIB == pytest.approx(4 * 3 * 50 + selection.n_parameters / 8)
    ones = {name: torch.ones_like(tensor) for name, tensor in selection.parameters.items()}
    scaled = peak_memory(policy, "ghost", replace(selection, preconditioner=ones), 3, 10, None, sizes)
    assert (ghost.preconditioner, scaled.preconditioner * GIB) == (0, pytest.approx(4 * n))
    assert scaled.total == pytest.approx(ghost.total + scaled.preconditioner)
    assert vmap.total == pytest.approx(sum(getattr(vmap, name) for name in PARTS))


def test_what_a_long_trace_takes(monkeypatch):
    policy = tiny()
    selection, sizes = select_parameters(policy.model), ActivationSize(1000.0, 0.0)
    held, again = (peak_memory(policy, "ghost", selection, 1, 400, None, sizes, wanted) for wanted in (False, True))
    config = policy.model.config
    inputs = 4 * 400 * config.hidden_size * config.num_hidden_layers
    assert again.activations * GIB == pytest.approx(1.2 * (1000 * 400 / config.num_hidden_layers + inputs))
    monkeypatch.setattr("gradstats.gradients.head.MOST_LOGITS", 0)
    monkeypatch.setitem(head._SLICE, "cpu", 1010)
    sliced = peak_memory(policy, "ghost", selection, 1, 400, None, sizes)
    width = config.hidden_size
    assert sliced.logits * GIB == pytest.approx(4 * (1.2 * 1010 + 101 * width + 2 * 400 * width))
    assert sliced.logits < held.logits
    options = (policy, "ghost", selection, None, sizes, True)
    room = peak_memory(policy, SELF_CHECK, selection, 1, 400, None, sizes, True).total
    assert tokens_that_fit(*options, room) == 400
    assert tokens_that_fit(*options, 0.9 * room) < 400


def test_activations_grow_with_layers_and_with_the_square_of_time_under_eager_attention():
    few, many = activation_size(tiny(layers=1)), activation_size(tiny(layers=3))
    assert few.quadratic == pytest.approx(0, abs=0.1)
    assert many(500) > 2 * few(500) > 0
    eager = activation_size(tiny("eager", layers=1))
    # Probabilities of two heads, in float32, are kept at least once.
    assert eager.quadratic >= 2 * 4
