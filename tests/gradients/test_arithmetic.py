"""How a device computes: float32 products, sums in one order, and products of 16-bit factors summed in float32."""

import numpy as np
import pytest
import torch
from conftest import tiny_model
from torch.nn import functional

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.gradients import arithmetic
from gradstats.gradients.arithmetic import accumulates_in_float32, float32_is_float32, in_one_order
from gradstats.gradients.attention import own_precision
from gradstats.gradients.engines import reduction
from gradstats.gradients.engines.experts import multiplies_groups
from gradstats.gradients.engines.reduction import OuterProducts, contract, gram_strips
from gradstats.policy.policy import Policy


def settings():
    libraries = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends.cudnn.conv
    return [
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        *(getattr(library, "fp32_precision", None) for library in libraries),
    ]


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_tf32_is_off_inside_and_as_before_afterwards(precision):
    kept = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        before = settings()
        with own_precision(Policy(tiny_model("qwen2"))), float32_is_float32():
            inside = settings()  # all of them can be read
        assert inside[:3] == ["highest", False, False]
        assert {*inside[3:]} <= {"ieee", None}
        assert settings() == before
        with pytest.raises(KeyError), float32_is_float32():
            raise KeyError
        assert settings() == before
    finally:
        torch.set_float32_matmul_precision(kept)


def test_the_newer_settings_of_one_library_are_restored():
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        return
    kept = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        with float32_is_float32():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = kept


def test_a_deterministic_measurement_switches_it_on_for_its_passes_alone(rollouts, monkeypatch):
    seen, found, ghost = [], [], gradients.ENGINES["ghost"]

    def watched(*given):
        seen.append((torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.flash_sdp_enabled()))
        return ghost(*given)

    monkeypatch.setitem(gradients.ENGINES, "ghost", watched)
    for wanted in (True, False):
        options = {"engine": "ghost", "sketch_dim": 32, "deterministic": wanted, "progress": False}
        found.append(gradients.measure(tiny_model("qwen2"), rollouts, **options))
    assert [one.metadata["execution"]["deterministic"] for one in found] == [True, False]
    assert {*seen} == {(True, False), (False, True)}
    np.testing.assert_allclose(found[0].sketches, found[1].sketches, rtol=1e-9, atol=1e-9)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_caller_s_own_choice_of_algorithms_is_restored():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with in_one_order(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def wide_bmm(left, right, *, out=None, out_dtype=None):
    """What a GPU's product of 16-bit factors gives, and whether it was asked for one."""
    if out_dtype is None:
        return BMM(left, right, out=out)
    wide_bmm.dtypes |= {left.dtype, right.dtype}
    return BMM(left.to(out_dtype), right.to(out_dtype))


BMM = torch.bmm


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    accumulates_in_float32.cache_clear()
    wide_bmm.dtypes = set()
    monkeypatch.setattr(torch, "bmm", wide_bmm)
    for module in (arithmetic, reduction):
        monkeypatch.setattr(module, "is_accelerator", lambda device: True)
    yield wide_bmm
    accumulates_in_float32.cache_clear()


@pytest.mark.parametrize(
    ("dtypes", "multiplied"),
    [
        ((torch.bfloat16, torch.bfloat16), {torch.bfloat16}),
        ((torch.float16, torch.float16), {torch.float16}),
        ((torch.float32, torch.bfloat16), set()),  # cast, as on a CPU
    ],
)
def test_factors_of_16_bits_are_multiplied_as_they_are(as_on_a_gpu, dtypes, multiplied):
    rng = torch.Generator().manual_seed(0)
    inputs, outputs = (torch.randn(2, 700, n, generator=rng).to(dtype) for n, dtype in zip((5, 4), dtypes, strict=True))
    term, wide = OuterProducts(inputs, outputs), OuterProducts(inputs.double(), outputs.double())
    ((first, product),), ((_, expected),) = term.products(torch.float32), wide.products(torch.float64)
    assert first == 0
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-4)
    assert as_on_a_gpu.dtypes == multiplied
    norms = contract(gram_strips(outputs, torch.float32), gram_strips(inputs, torch.float32))
    torch.testing.assert_close(norms, expected.square().sum(dim=(1, 2)), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("dtypes", "precision"), [("bb", "bf16"), ("bh", "ieee"), ("hh", "ieee"), ("bf", "ieee")])
def test_a_cpu_rounds_to_bfloat16_only_what_was_that(monkeypatch, dtypes, precision):
    matmul, seen = torch.backends.mkldnn.matmul, set()
    for name in ("bmm", "baddbmm"):
        own = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, own=own, **kw: (seen.add(matmul.fp32_precision), own(*a, **kw))[1])
    kinds = {"b": torch.bfloat16, "h": torch.float16, "f": torch.float32}
    rng = torch.Generator().manual_seed(0)
    inputs, outputs = (torch.randn(2, 300, 64, generator=rng).to(kinds[one]) for one in dtypes)
    term, wide = OuterProducts(inputs, outputs), OuterProducts(inputs.double(), outputs.double())
    with float32_is_float32():
        ((_, product),) = term.products(torch.float32)
        assert seen == {precision}
        grams = gram_strips(inputs, torch.float32), gram_strips(outputs, torch.float32)
        assert matmul.fp32_precision == "ieee"
    ((_, expected),) = wide.products(torch.float64)
    torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(contract(*grams), expected.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (lambda left, right, out_dtype: BMM(left.float(), right.float()), True),
        (lambda left, right, out_dtype: BMM(left, right).float(), False),  # rounded to 16 bits in between
        (lambda left, right, out_dtype: BMM(left, right), False),
        (lambda left, right: BMM(left, right), False),  # an earlier torch, without the argument
    ],
)
def test_a_device_is_tried_before_it_is_trusted(monkeypatch, product, expected):
    accumulates_in_float32.cache_clear()
    monkeypatch.setattr(torch, "bmm", product)
    assert accumulates_in_float32(torch.device("cpu"), torch.bfloat16) is expected
    accumulates_in_float32.cache_clear()


def test_memory_that_runs_out_in_a_trial_is_not_remembered(monkeypatch):
    def no_memory(*given, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")

    device = torch.device("cpu")
    trials = ((torch, "bmm", accumulates_in_float32), (functional, "grouped_mm", multiplies_groups))
    for owner, name, trial in trials:
        trial.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, no_memory, raising=False)
            with pytest.raises(torch.OutOfMemoryError):
                trial(device, torch.bfloat16)
        trial(device, torch.bfloat16)
        assert (trial.cache_info().hits, trial.cache_info().currsize) == (0, 1)  # it was tried again
        trial.cache_clear()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "memory ran out: CUDA out of memory. Tried"),
        (gradients.UnsupportedModuleError("layers share"), "its layers cannot run one at a time: layers share"),
        (None, "the model is being trained"),
    ],
)
def test_a_comparison_with_float32_that_fails_is_left_out_with_its_reason(monkeypatch, rollouts, error, reason):
    def fails(*given):
        raise error

    monkeypatch.setattr("gradstats.gradients.checks.self_check.sq_norm_in_float32", fails)
    given = tiny_model("qwen2", dtype=torch.bfloat16), rollouts, MeasurementSection(engine="ghost", sketch_dim=None)
    check = gradients.MeasuringSession.open(*given, in_training=error is None).metadata["self_check"]
    assert check["deviation_from_float32"] is None
    assert reason in check["without_float32"]
