"""Loading policies: local folders, what is refused, the chat template."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model, tiny_tokenizer

from gradstats.policy import Policy, load_policy


def test_a_local_folder_loads_in_the_asked_dtype_and_in_evaluation_mode(policy_folder):
    policy = load_policy(policy_folder, dtype="float64", temperature=0.7)
    assert policy.dtype == torch.float64
    assert not policy.model.training
    assert all(parameter.requires_grad for parameter in policy.model.parameters())
    described = policy.describe()
    assert described["temperature"] == 0.7
    assert described["architecture"] == "Qwen2ForCausalLM"
    assert described["n_parameters"] == sum(p.numel() for p in tiny_model("qwen2", tied=True).parameters())


@pytest.mark.parametrize("name", ["./absent", "/absent/folder", "~/absent", "some/nested/folder"])
def test_a_missing_folder_is_said_to_be_missing(name):
    with pytest.raises(FileNotFoundError, match="the model folder .* does not exist"):
        load_policy(name)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        load_policy(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path, policy_folder):
    tiny_model("qwen2").config.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(OSError, match="the model folder .* cannot be loaded"):
        load_policy(tmp_path)


def test_a_missing_gguf_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"the GGUF file absent\.gguf does not exist"):
        load_policy("absent.gguf")


def test_an_unreachable_hub_gives_the_remedy(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=r"neither a local folder nor .*hf download nobody/nothing --local-dir"):
        load_policy("nobody/nothing")


def test_bad_dtypes_and_temperatures_are_refused(policy_folder):
    with pytest.raises(ValueError, match="dtype is 'float8': choose one of float64"):
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
