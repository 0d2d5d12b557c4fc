"""Weights are divided over the ranks of a process group, layer by layer."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

import gradstats as gs
from gradstats.gradients.parameters import select_parameters
from gradstats.policy.model import class_name
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import (
    is_sharded,
    layer_lists,
    n_ranks,
    own_device,
    shard,
    sharded_loading,
    shards_while_loading,
)


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_process_without_a_group_cannot_hold_a_part(policy_folder):
    message = r"sharded=True divides the weights over the ranks of a process group, and this process belongs to none"
    with pytest.raises(ValueError, match=message):
        gs.load_policy(policy_folder, sharded=True, progress=False)


def test_one_rank_holds_the_whole_model(one_rank, policy_folder):
    assert n_ranks() == 1
    assert not is_sharded(gs.load_policy(policy_folder, sharded=True, progress=False).model)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_a_model_is_divided_layer_by_layer_and_keeps_its_name(one_rank, architecture):
    model = tiny_model(architecture)
    name, ids = type(model).__name__, torch.arange(6)[None]
    expected = model(ids).logits
    shard(model, "cpu")
    assert is_sharded(model)
    assert type(model).__name__ == f"FSDP{name}"
    assert class_name(model) == name
    ((_, layers),) = layer_lists(model)
    assert all(type(layer).__name__.startswith("FSDP") for layer in layers)
    assert torch.equal(model(ids).logits, expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tied_weights_count_once_after_a_forward_pass_as_well(one_rank):
    model = tiny_model("qwen2", tied=True)
    expected = sum(tensor.numel() for tensor in model.parameters())
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    fully_shard(model.model.embed_tokens, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    model.lm_head.weight = model.model.embed_tokens.weight  # as transformers ties them when it has read the shards
    with torch.no_grad():
        model(torch.arange(6)[None])
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert Policy(model).describe()["n_parameters"] == expected
    with torch.no_grad():
        model(torch.arange(6)[None])
    assert select_parameters(model).n_parameters == expected


def test_only_outermost_lists_of_layers_count():
    block = nn.Module()
    block.experts = nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])
    model = nn.Module()
    model.blocks, model.scales = nn.ModuleList([block, block]), nn.ModuleList([nn.Linear(2, 2)])
    assert [path for path, _ in layer_lists(model)] == ["blocks"]


def test_transformers_reads_the_part_of_a_rank_for_the_accelerator_of_the_machine(one_rank, policy_folder, monkeypatch):
    config = sharded_loading(policy_folder, {})["distributed_config"]
    assert (config.fsdp_size, config.fsdp_plan) == (1, {"model.layers.*": "free_full_weight"})
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert (shards_while_loading("cuda:1"), shards_while_loading("cpu")) == (True, False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    assert shards_while_loading("cpu")


def test_each_rank_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [own_device(device) for device in ("cuda", "cuda:1", "cpu")] == ["cuda:3", "cuda:1", "cpu"]
    monkeypatch.delenv("LOCAL_RANK")
    assert own_device("cuda") == "cuda:0"
