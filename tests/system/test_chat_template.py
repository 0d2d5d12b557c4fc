"""Chat templates that do not end, or take all memory, end in one sentence."""

from __future__ import annotations

import pytest
from conftest import tiny_model, tiny_tokenizer

from gradstats.policy.policy import Policy
from gradstats.system import chat_template
from gradstats.system.chat_template import render

_LOOP = "{{% for {0} in range(99999) %}}{1}{{% endfor %}}"
_ENDLESS = _LOOP.format("a", _LOOP.format("b", _LOOP.format("c", "")))
_HUGE = "{{ 'x' * 100000000000 }}"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [(_ENDLESS, "it does not end within 2 s"), (_HUGE, "it takes more than 4 GiB of memory")],
)
def test_a_template_without_an_end_is_stopped(monkeypatch, template, sentence):
    monkeypatch.setattr(chat_template, "SECONDS", 2.0)
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(), "tiny")
    policy.tokenizer.chat_template = template
    with pytest.raises(ValueError, match=f"the chat template of tiny failed on the prompt 'ab': {sentence}"):
        policy.encode_prompt("ab")


def test_a_template_that_ends_gives_its_tokens():
    policy = Policy(tiny_model("qwen2"), tiny_tokenizer(), "tiny")
    assert policy.encode_prompt("abc") == [2, 4, 5, 6, 3]


def test_the_length_of_a_prompt():
    template = "{{ name }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert render(template, [{"role": "user", "content": "abc"}], {"name": "xy"}) == 5
