"""What the machine and the installation are, and chat templates that do not end."""

import re
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace

import pytest
from conftest import tiny_model, tiny_tokenizer

from gradstats.policy.policy import Policy
from gradstats.system import chat_template, environment
from gradstats.system.chat_template import render
from gradstats.system.environment import commit_of, git_commit, hub_problem


def test_versions_hardware_and_commit():
    found = environment.environment()
    assert found["versions"]["numpy"] == version("numpy")
    assert found["hardware"]["cpu_count"] >= 1
    assert found["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["git_commit"])


def test_a_tree_that_is_not_installed_has_the_version_of_its_project(monkeypatch):
    def absent(package):
        if package == "gradstats":
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(environment, "version", absent)
    assert re.fullmatch(r"\d+\.\d+\.\d+\+not\.installed", environment.version_of("gradstats"))
    assert environment.version_of("numpy") == version("numpy")
    assert environment.missing_extras() == {}
    monkeypatch.setattr(environment, "__file__", "/nowhere/gradstats/system/environment.py")
    with pytest.raises(PackageNotFoundError):
        environment.version_of("gradstats")


def test_outside_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "gradstats" / "environment.py"))
    assert git_commit() is None


def test_the_commit_of_cached_files_is_read_off_their_place(monkeypatch, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert commit_of("nobody/nothing", "config.json") is None
    cached = str(tmp_path / "snapshots" / commit / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_args, **_options: cached)
    assert commit_of("someone/model", "config.json", revision="main") == commit


@pytest.fixture
def asked(monkeypatch):
    """The addresses that are asked, each of which answers."""
    addresses = []
    session = SimpleNamespace(head=lambda address, timeout: addresses.append(address))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: session)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_args, **_options: None)
    return addresses


def test_the_hub_is_asked_once_and_only_for_what_is_not_cached(asked, monkeypatch):
    assert hub_problem("someone/model", "config.json") is None
    assert len(asked) == 1
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_args, **_options: "/cache/config.json")
    assert hub_problem("someone/model", "config.json") is None
    assert len(asked) == 1


def test_why_files_are_not_available(asked, monkeypatch):
    def refused(address, timeout):
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=refused))
    assert hub_problem("someone/model", "config.json") == "the hub does not answer (OSError: no route to host)"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub_problem("someone/model", "config.json") == "HF_HUB_OFFLINE is set and the files are not cached"


def test_a_commit_is_taken_as_it_is_and_a_name_asked_for(asked, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_args, **_options: SimpleNamespace(sha="c" * 40))
    assert commit_of("someone/data", "a.json", "dataset", "b" * 40) == "b" * 40
    assert commit_of("someone/data", "a.json", "dataset", "b" * 39) == "c" * 40


_LOOP = "{{% for {0} in range(99999) %}}{1}{{% endfor %}}"
_ENDLESS = _LOOP.format("a", _LOOP.format("b", _LOOP.format("c", "")))
_HUGE = "{{ 'x' * 100000000000 }}"


@pytest.mark.parametrize(
    ("template", "sentence"), [(_ENDLESS, "it does not end within 1 s"), (_HUGE, "it takes more than 4 GiB of memory")]
)
def test_a_template_without_an_end_is_stopped(monkeypatch, template, sentence):
    monkeypatch.setattr(chat_template, "SECONDS", 1.0)
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(), "tiny")
    policy.tokenizer.chat_template = template
    with pytest.raises(ValueError, match=f"the chat template of tiny failed on the prompt 'ab': {sentence}"):
        policy.encode_prompt("ab")


def test_the_length_of_a_prompt():
    template = "{{ name }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert render(template, [{"role": "user", "content": "abc"}], {"name": "xy"}) == 5
