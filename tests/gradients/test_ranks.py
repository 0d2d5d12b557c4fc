"""Ranks deal chunks in rounds; one rank alone is the ordinary case."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from torch import distributed
from torch.distributed.fsdp import fully_shard

from gradstats.gradients.distributed import GroupMemoryError, Ranks


def test_chunks_are_dealt_in_turn_and_ranks_without_one_repeat_the_last():
    plan = list("abcde")
    dealt = [[Ranks(rank, 3).own(plan[first:]) for rank in range(3)] for first in range(0, len(plan), 3)]
    assert dealt == [["a", "b", "c"], ["d", "e", "e"]]


def test_a_whole_model_is_measured_by_one_rank_which_takes_every_chunk():
    ranks = Ranks.of(tiny_model("qwen2"))
    plan = [np.array([0, 1]), np.array([2])]
    assert (ranks.rank, ranks.size, ranks.own(plan) is plan[0], ranks.exchange("x")) == (0, 1, True, ["x"])
    assert ranks.common_plan(plan, ragged_rollouts(3)) is plan


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_group_of_one_rank_and_replicated_weights_are_not_dealt():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        for names in (("shards",), ("replicas", "shards")):
            mesh = distributed.device_mesh.init_device_mesh("cpu", (1,) * len(names), mesh_dim_names=names)
            assert Ranks.of(fully_shard(tiny_model("qwen2"), mesh=mesh)) == Ranks()
    finally:
        distributed.destroy_process_group()


def test_an_exhausted_memory_is_the_same_error_in_another_process():
    error = pickle.loads(pickle.dumps(GroupMemoryError(4, 200, 100)))
    assert error.token_budget == 100
    assert str(error) == (
        "memory ran out on one rank, on 4 sequences of 200 tokens together: all ranks have to begin again, with at "
        "most 100 tokens at once (token_budget=100)"
    )


def test_results_of_ranks_come_in_their_order_and_lie_in_the_memory_of_the_cpu(monkeypatch):
    def gather(every: list[bytes], own: bytes, group: object) -> None:
        assert group is None
        every[:] = [own] * len(every)

    monkeypatch.setattr(distributed, "all_gather_object", gather)
    first, second = Ranks(1, 2).exchange({"values": torch.arange(3)})
    assert first["values"].tolist() == second["values"].tolist() == [0, 1, 2]
