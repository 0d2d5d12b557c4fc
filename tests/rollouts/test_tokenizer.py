"""What readers of text need of a tokenizer, and which tokenizers have it."""

from __future__ import annotations

from conftest import tiny_tokenizer

from gradstats.policy.policy import load_policy
from gradstats.rollouts.trainer_dumps import ChatTokenizer, Tokenizer


class WithoutTemplate:
    """All of a tokenizer but a chat template."""

    def __call__(self, text, *, add_special_tokens=True):
        return {"input_ids": list(map(ord, text))}

    def __len__(self):
        return 128

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(map(chr, token_ids))


def test_tokenizers_of_transformers_and_of_the_embedded_policy_have_it():
    for tokenizer in (tiny_tokenizer(), tiny_tokenizer(chat_template=False), load_policy("embedded").tokenizer):
        assert isinstance(tokenizer, ChatTokenizer)


def test_a_chat_template_is_asked_for_only_where_it_is_needed():
    assert isinstance(WithoutTemplate(), Tokenizer)
    assert not isinstance(WithoutTemplate(), ChatTokenizer)
    assert not isinstance(str.split, Tokenizer)
