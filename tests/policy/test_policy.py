"""Loading a policy, what it states about itself, and a model that is divided among ranks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from conftest import VOCABULARY, tiny_model, tiny_tokenizer
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from transformers.utils import logging as transformers_logging

import gradstats as gs
from gradstats.gradients import measure
from gradstats.gradients.parameters import select_parameters
from gradstats.policy.model import class_name, n_logits, output_embedding, vocabulary_size
from gradstats.policy.policy import Policy, load_policy, suitable_threads
from gradstats.policy.sharding import (
    READS_PARTS,
    is_sharded,
    layer_lists,
    n_ranks,
    own_device,
    shard,
    sharded_loading,
    shards_while_loading,
)
from gradstats.rollouts.table import Rollouts


def test_a_local_folder_loads_in_the_asked_dtype_and_in_evaluation_mode(policy_folder):
    policy = load_policy(policy_folder, dtype="float64", temperature=0.7)
    assert policy.dtype == torch.float64
    assert not policy.model.training
    assert all(parameter.requires_grad for parameter in policy.model.parameters())
    described = policy.describe()
    assert described["temperature"] == 0.7
    assert described["architecture"] == "Qwen2ForCausalLM"
    assert described["n_parameters"] == sum(p.numel() for p in tiny_model("qwen2", tied=True).parameters())


def test_bad_dtypes_and_temperatures_are_refused(policy_folder):
    with pytest.raises(ValueError, match="dtype is 'float8': choose one of float32, float64"):
        load_policy(policy_folder, dtype="float8")
    for temperature in (0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"temperature is .*: the policy's temperature must be from 0.0001 to"):
            load_policy(policy_folder, temperature=temperature)
        with pytest.raises(ValueError, match="must be from 0.0001 to 10000"):
            Policy(tiny_model("qwen2"), temperature=temperature)
    extremes = [Policy(tiny_model("qwen2"), temperature=one) for one in (1e-4, 1e4)]
    rollouts = Rollouts.from_sequences([[3]], [[5, 6]], [1.0], ["a"])
    for policy in extremes:
        norms = measure(policy, rollouts, sketch_dim=None, progress=False).sq_norms
        assert 0.0 < norms[0] < np.inf


@pytest.mark.parametrize("device", ["meta", "cuda:99", "gpu", "cpu:0x", "xpu", ""])
def test_a_device_that_cannot_be_used_is_refused(device, policy_folder):
    with pytest.raises(ValueError, match=r"device is '.*', which cannot be used here \(.+\): choose auto, cpu"):
        load_policy(policy_folder, device=device)


def test_a_device_without_float64_is_refused_before_it_is_measured_on(monkeypatch, policy_folder):
    """As MPS is: squared norms are summed in float64."""
    empty = torch.empty

    def without_float64(*sizes, **options):
        if options.get("dtype") == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as it does not support float64.")
        return empty(*sizes, **options)

    rollouts = Rollouts.from_sequences([[3]], [[5, 6]], [1.0], ["a"])
    monkeypatch.setattr(torch, "empty", without_float64)
    with pytest.raises(ValueError, match=r"device is 'mps', which cannot be used here \(Cannot .* float64\): choose"):
        load_policy(policy_folder, device="mps")
    with pytest.raises(ValueError, match=r"device is 'cpu', which cannot be used here \(Cannot .* float64\)"):
        measure(tiny_model("qwen2"), rollouts, progress=False)


def test_prompts_without_a_chat_template_are_encoded_bare_and_one_that_fails_is_named():
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(chat_template=False), name="tiny")
    assert policy.tokenizer.decode(policy.encode_prompt("ab 1")) == "ab 1"
    with pytest.raises(ValueError, match="has no chat template for a system prompt"):
        policy.encode_prompt("ab", system_prompt="be brief")
    policy.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(ValueError, match="the chat template of tiny failed on the prompt 'ab': no system role"):
        policy.encode_prompt("ab", system_prompt="x")
    with pytest.raises(ValueError, match="has no tokenizer"):
        Policy(tiny_model("qwen2")).encode_prompt("ab")


R1_TEMPLATE = (
    "{% set ns = namespace(system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<user>' + message['content']}}{%- endif %}"
    "{%- endfor %}{% if add_generation_prompt %}{{'<assistant>think\n'}}{% endif %}"
)


def test_what_the_template_opens_for_the_answer_belongs_to_the_prompt():
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer())
    policy.tokenizer.chat_template = R1_TEMPLATE
    policy.tokenizer.bos_token = "<eos>"
    tokens = policy.encode_prompt("ab", system_prompt="cd")
    assert policy.tokenizer.decode(tokens).startswith("<eos>cd<user>ab<assistant>think")
    assert policy.tokenizer.decode(policy.encode_prompt("ab")).startswith("<eos><user>ab<assistant>think")


def test_template_options_reach_the_template_and_unused_ones_are_refused():
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(), name="tiny")
    policy.tokenizer.chat_template = "{{ messages[-1]['content'] }}<assistant>{% if not enable_thinking %}no{% endif %}"
    for thinking, expected in ((False, "ab<assistant>no"), (True, "ab<assistant>")):
        tokens = policy.encode_prompt("ab", template_options={"enable_thinking": thinking})
        assert policy.tokenizer.decode(tokens) == expected
    with pytest.raises(ValueError, match="the chat template of tiny does not use the template option 'think'"):
        policy.encode_prompt("ab", template_options={"think": False})


def test_a_branch_on_the_hub_is_resolved_to_one_commit(policy_folder, monkeypatch):
    commit, loaded = "0123456789abcdef0123456789abcdef01234567", []
    monkeypatch.setattr("gradstats.policy.policy.hub_problem", lambda *_args, **_options: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def repo_info(self, repo_id, *, repo_type, revision, timeout):
        assert (repo_id, repo_type, revision) == ("someone/model", "model", "main")
        return SimpleNamespace(sha=commit)

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", repo_info)
    for name in ("AutoTokenizer", "AutoModelForCausalLM"):
        kind = getattr(transformers, name)

        def from_pretrained(source, *, kind=kind, revision, **options):
            loaded.append((source, revision, options.get("use_safetensors")))
            return kind.from_pretrained(policy_folder, **options)

        monkeypatch.setattr(f"gradstats.policy.policy.{name}", SimpleNamespace(from_pretrained=from_pretrained))
    policy = load_policy("someone/model", revision="main")
    assert policy.revision == commit
    assert policy.describe()["revision"] == commit
    assert loaded == [("someone/model", commit, None), ("someone/model", commit, True)]
    # A commit is taken as it is, without asking.
    assert load_policy("someone/model", revision=commit[::-1]).revision == commit[::-1]


def test_bars_of_transformers_are_not_shown_for_local_weights(policy_folder, capfd):
    load_policy(policy_folder, progress=True)
    assert "Loading weights" not in capfd.readouterr().err
    assert transformers_logging.is_progress_bar_enabled()


def test_small_models_take_one_thread_and_give_the_setting_back(monkeypatch):
    before, policy = torch.get_num_threads(), Policy(tiny_model("qwen2"))
    torch.set_num_threads(2)
    try:
        with suitable_threads(policy):
            assert torch.get_num_threads() == 1
        with pytest.raises(KeyboardInterrupt), suitable_threads(policy):
            raise KeyboardInterrupt
        assert torch.get_num_threads() == 2
        monkeypatch.setattr("gradstats.policy.policy._SMALL", 10)
        with suitable_threads(policy):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_sizes_are_those_of_the_embeddings(architecture, tied):
    model = tiny_model(architecture, tied)
    assert (vocabulary_size(model), n_logits(model)) == (VOCABULARY, VOCABULARY)
    assert output_embedding(model) is model.lm_head
    assert model(torch.tensor([[3]])).logits.shape[-1] == n_logits(model)
    model.resize_token_embeddings(64)  # padding of the vocabulary counts
    assert (vocabulary_size(model), n_logits(model)) == (64, 64)
    model.set_output_embeddings(torch.nn.Linear(24, 50, bias=False))
    assert (vocabulary_size(model), n_logits(model)) == (64, 50)


def test_one_rank_holds_the_whole_model_and_a_process_without_a_group_no_part(policy_folder, request):
    message = r"sharded=True divides the weights over the ranks of a process group, and this process belongs to none"
    with pytest.raises(ValueError, match=message):
        gs.load_policy(policy_folder, sharded=True, progress=False)
    request.getfixturevalue("one_rank")
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


@pytest.mark.skipif(not READS_PARTS, reason="this transformers reads whole files")
def test_transformers_reads_the_part_of_a_rank_for_the_accelerator_of_the_machine(one_rank, policy_folder, monkeypatch):
    config = sharded_loading(policy_folder, {})["distributed_config"]
    assert (config.fsdp_size, config.fsdp_plan) == (1, {"model.layers.*": "free_full_weight"})
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert (shards_while_loading("cuda:1"), shards_while_loading("cpu")) == (True, False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    assert shards_while_loading("cpu")
    monkeypatch.setattr("gradstats.policy.sharding.READS_PARTS", False)  # as of an older transformers
    assert not shards_while_loading("cpu")


def test_each_rank_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [own_device(device) for device in ("cuda", "cuda:1", "cpu")] == ["cuda:3", "cuda:1", "cpu"]
    monkeypatch.delenv("LOCAL_RANK")
    assert own_device("cuda") == "cuda:0"
