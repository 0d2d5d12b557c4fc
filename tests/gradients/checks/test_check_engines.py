"""The full check of a model's engines, and the command that prints it."""

import sys
from contextlib import nullcontext

import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, changed, with_own_parameter

import gradstats.gradients as gradients
from gradstats.gradients import check_engines
from gradstats.gradients.engines.ghost import ghost_engine


def test_every_comparison_of_a_sound_model_passes():
    frame = check_engines(tiny_model("qwen2", tied=True, dtype=torch.float32))
    assert frame.attrs["passed"]
    assert set(frame["verdict"]) == {"ok", "not run", "for information"}
    judged = frame[frame["verdict"] == "ok"]
    assert len(judged) == 3 * 4 + 2
    assert (judged["deviation"] <= judged["tolerance"]).all()
    against = frame[frame["check"] == "against float64"].set_index("dtype")["deviation"]
    assert against["float32"] < 1e-4 < against["bfloat16"] < 0.5


def test_engines_that_do_not_know_a_model_are_named_and_do_not_fail():
    frame = check_engines(with_own_parameter(any_model("qwen2_moe")), dtypes=["float64"])
    assert frame.attrs["passed"]
    unsupported = frame[frame["verdict"] == "not supported"].set_index("engine")["note"]
    assert "Qwen2MoeForCausalLM" in unsupported["ghost"]
    assert "batched_mm" in unsupported["vmap"]


def test_the_model_keeps_its_dtype_and_attention():
    model = tiny_model("qwen2", dtype=torch.float32)
    kept = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    attention = model.config._attn_implementation
    check_engines(model, ragged_rollouts(2), dtypes=["float32", "bfloat16"])
    assert model.config._attn_implementation == attention
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.named_parameters())


@pytest.mark.parametrize(
    "error", [TypeError("Cannot convert a MPS Tensor to float64 dtype"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_a_dtype_that_the_device_lacks_or_has_no_room_for_is_passed_over_and_no_other_error(monkeypatch, error):
    def lacking(policy, dtype):
        raise error

    def broken(*_given):
        raise TypeError("an engine was called wrongly")

    with monkeypatch.context() as patched:
        patched.setattr("gradstats.gradients.checks.check_engines.with_dtype", lacking)
        frame = check_engines(tiny_model("qwen2"), dtypes=["float32"])
    assert frame[["verdict", "note"]].to_numpy().tolist() == [["not run", str(error)]]
    assert not frame.attrs["passed"]  # nothing was checked
    monkeypatch.setattr("gradstats.gradients.checks.check_engines.loop_engine", broken)
    with pytest.raises(TypeError, match="an engine was called wrongly"):
        check_engines(tiny_model("qwen2"), dtypes=["float64"])


def test_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match="dtypes holds 'int8': choose from float32, float64"):
        check_engines(tiny_model("qwen2"), dtypes=["int8"])


@pytest.mark.parametrize("wrong", [False, True])
def test_the_command_prints_the_table_and_exits_by_the_verdict(wrong, policy_folder, monkeypatch, capsys):
    from gradstats.cli.commands import main

    engine = changed(ghost_engine, lambda norms, chunk: norms / (1 + wrong))
    monkeypatch.setitem(gradients.ENGINES, "ghost", engine)
    monkeypatch.setattr(sys, "argv", ["gradstats", "check", policy_folder, "--dtypes", "float64", "float32"])
    with pytest.raises(SystemExit) if wrong else nullcontext() as end:
        main()
    printed = capsys.readouterr()
    assert not wrong or end.value.code == 1
    assert "alone against" in printed.out
    assert ("All engines agree with autograd" in printed.out) == (not wrong)
    assert ("the check fails (ghost)" in printed.err) == wrong
    frame = check_engines(tiny_model("llama"), ragged_rollouts(3), dtypes=["float64"])
    assert frame.attrs["passed"] == (not wrong)
    failed = frame[frame["verdict"] == "fails"][["engine", "check", "deviation"]].to_numpy().tolist()
    assert failed == ([["ghost", "against loop", pytest.approx(0.5)]] if wrong else [])
