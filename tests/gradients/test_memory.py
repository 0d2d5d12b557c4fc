"""The estimate of memory: its parts from their definition, and against measured peaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from gradstats.gradients import head
from gradstats.gradients.memory import (
    LIBRARIES_GIB,
    SELF_CHECK,
    ActivationSize,
    activation_size,
    is_out_of_memory,
    peak_memory,
    tokens_that_fit,
)
from gradstats.gradients.parameters import select_parameters
from gradstats.measurement.disk_size import GIB
from gradstats.policy.policy import Policy


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


def test_an_allocation_larger_than_any_memory_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


TABLE = Path(__file__).parents[2] / "figures" / "memory" / "memory.csv"


def tiny(attention: str = "sdpa", layers: int = 2) -> Policy:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=101,
        attn_implementation=attention,
    )
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
    assert vmap.total == pytest.approx(
        vmap.libraries + vmap.weights + vmap.activations + vmap.logits + vmap.gradients + vmap.sketches
    )


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


def test_measured_peaks_are_estimated_within_30_percent():
    table = pd.read_csv(TABLE)
    assert set(table["engine"]) == {"ghost", "ghost+sketch", "vmap", "loop"}
    assert table["estimated_over_measured"].between(0.7, 1.3).all()
    parts = ["libraries", "weights", "activations", "logits", "gradients", "sketches"]
    assert table[parts].sum(axis=1).to_numpy() == pytest.approx(table["estimated_gib"].to_numpy(), abs=0.004)
