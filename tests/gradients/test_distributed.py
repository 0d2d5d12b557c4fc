"""Models that are sharded over ranks are measured exactly: the self-check gathers gradients from all of them."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import oracle
from sharded_ranks import measured_from
from torch import distributed
from torch.distributed.fsdp import fully_shard

import gradstats.gradients as gradients
from gradstats.gradients.distributed import GroupMemoryError, Ranks, gathered_gradients
from gradstats.gradients.parameters import select_parameters
from gradstats.policy.sharding import is_sharded


def test_chunks_are_dealt_in_turn_and_ranks_without_one_repeat_the_last():
    plan = list("abcde")
    dealt = [[Ranks(rank, 3).own(plan[first:]) for rank in range(3)] for first in range(0, len(plan), 3)]
    assert dealt == [["a", "b", "c"], ["d", "e", "e"]]
    whole = Ranks.of(tiny_model("qwen2"))  # of a model that is not sharded
    assert (whole.rank, whole.size, whole.own(plan), whole.exchange("x")) == (0, 1, "a", ["x"])
    assert whole.common_plan(plan, ragged_rollouts(3)) is plan


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_group_of_one_rank_and_replicated_weights_are_not_dealt(one_rank):
    for names in (("shards",), ("replicas", "shards")):
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,) * len(names), mesh_dim_names=names)
        assert Ranks.of(fully_shard(tiny_model("qwen2"), mesh=mesh)) == Ranks()


def test_an_exhausted_memory_is_the_same_error_in_another_process():
    error = pickle.loads(pickle.dumps(GroupMemoryError(4, 200, 100)))
    assert error.token_budget == 100
    assert str(error).startswith("memory ran out on one rank, on 4 sequences of 200 tokens together: all ranks have")


def test_results_of_ranks_come_in_their_order_and_lie_in_the_memory_of_the_cpu(monkeypatch):
    def gather(every: list[bytes], own: bytes, group: object) -> None:
        assert group is None
        every[:] = [own] * len(every)

    monkeypatch.setattr(distributed, "all_gather_object", gather)
    first, second = Ranks(1, 2).exchange({"values": torch.arange(3)})
    assert first["values"].tolist() == second["values"].tolist() == [0, 1, 2]


FOLDER = Path(__file__).parent


def sharded_model(mesh, tied: bool = False) -> torch.nn.Module:
    model = tiny_model("qwen2", tied)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("tied", [False, True])
def test_gathered_gradients_equal_autograd_and_leave_the_gradients_of_the_model(one_rank, tied):
    whole, model = tiny_model("qwen2", tied), sharded_model(one_rank, tied)
    assert is_sharded(model)
    assert not is_sharded(whole)
    for tensor in model.parameters():
        tensor.grad = torch.full_like(tensor, 3.0)
    ids = torch.arange(8)[None]
    start = torch.randn(1, 8, 41, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = gathered_gradients(model, select_parameters(model), model(ids).logits, start)
    expected = torch.autograd.grad(whole(ids).logits, list(whole.parameters()), start)
    for (name, _), values in zip(whole.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], values)
    assert all((tensor.grad.full_tensor() == 3).all() for tensor in model.parameters())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_sharded_model_passes_the_self_check_and_its_result_is_exact(one_rank, rollouts):
    expected = oracle(tiny_model("qwen2", tied=True), rollouts)
    model = sharded_model(one_rank, tied=True)
    measured = gradients.measure(model, rollouts, blocks="parameter", sketch_dim=64, progress=False)
    assert measured.metadata["engine"] == "ghost"
    assert measured.metadata["self_check"]["parameters"] < 1e-9
    for name, values in measured.sq_norms_by_block.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9, atol=1e-18)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("options", [{"engine": "loop"}, {"engine": "vmap"}, {"token_probes": 1}])
def test_what_needs_whole_parameters_is_refused(one_rank, rollouts, options):
    message = r'the parameter .* of .* is sharded, and only engine="ghost" without token_probes works without whole'
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(sharded_model(one_rank), rollouts, progress=False, **options)


def start_rank(rank: int, *arguments: object) -> subprocess.Popen[str]:
    paths = f"{FOLDER}:{FOLDER.parent}:{FOLDER.parents[1]}"
    command = [sys.executable, "-W", "ignore", str(FOLDER / "sharded_ranks.py"), str(rank), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def assert_ends(rank: subprocess.Popen[str]) -> None:
    _, errors = rank.communicate(timeout=600)
    assert rank.returncode == 0, errors


@pytest.mark.slow
def test_the_files_of_two_ranks_are_those_of_one_process(policy_folder, tmp_path):
    ranks = [start_rank(rank, tmp_path / "store", "files", policy_folder, tmp_path / "out") for rank in range(2)]
    measured_from(policy_folder, divided=False).save(tmp_path / "expected")
    for number, rank in enumerate(ranks):
        assert_ends(rank)
        for name in ("rollouts.parquet", "measurement.json", "tensors.safetensors"):
            expected = (tmp_path / "expected" / name).read_bytes()
            assert (tmp_path / f"out-{number}" / name).read_bytes() == expected, name


@pytest.mark.slow
@pytest.mark.parametrize("case", ["exact", "long", "mixed precision", "different rollouts"])
def test_two_ranks(case, tmp_path):
    for rank in [start_rank(rank, tmp_path / "store", case) for rank in range(2)]:
        assert_ends(rank)


@pytest.mark.slow
def test_memory_that_runs_out_on_one_rank_ends_its_measurement_while_the_other_waits(tmp_path):
    waiting, failing = (start_rank(rank, tmp_path / "store", "memory") for rank in range(2))
    try:
        assert_ends(failing)
    finally:
        waiting.kill()
        waiting.communicate()
