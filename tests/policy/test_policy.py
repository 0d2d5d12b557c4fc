"""Loading policies, the chat template, and a policy's description."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import tiny_model, tiny_tokenizer
from transformers.utils import logging as transformers_logging

from gradstats.policy.policy import Policy, load_policy, suitable_threads


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
    with pytest.raises(ValueError, match="temperature is 0.0: the policy's temperature must be above 0"):
        load_policy(policy_folder, temperature=0.0)


def test_prompts_without_a_chat_template_are_encoded_bare():
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(chat_template=False))
    assert policy.tokenizer.decode(policy.encode_prompt("ab 1")) == "ab 1"
    with pytest.raises(ValueError, match="has no chat template for a system prompt"):
        policy.encode_prompt("ab", system_prompt="be brief")


def test_a_template_that_fails_is_named():
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(), name="tiny")
    policy.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(ValueError, match="the chat template of tiny failed on the prompt 'ab': no system role"):
        policy.encode_prompt("ab", system_prompt="x")
    with pytest.raises(ValueError, match="has no tokenizer"):
        Policy(tiny_model("qwen2")).encode_prompt("ab")


R1_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
    "{{bos_token}}{{ns.system_prompt}}"
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


@pytest.mark.parametrize("progress", [True, False])
def test_bars_of_transformers_are_shown_only_on_request(policy_folder, capfd, progress):
    load_policy(policy_folder, progress=progress)
    assert ("Loading weights" in capfd.readouterr().err) == progress
    assert transformers_logging.is_progress_bar_enabled()


def test_small_models_take_one_thread_and_give_the_setting_back(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with suitable_threads(Policy(tiny_model("qwen2"))):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyboardInterrupt), suitable_threads(Policy(tiny_model("qwen2"))):
            raise KeyboardInterrupt
        assert torch.get_num_threads() == 2
        monkeypatch.setattr("gradstats.policy.policy._SMALL", 10)
        with suitable_threads(Policy(tiny_model("qwen2"))):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
