"""The tokens that end a completion, and the form of content that a template shows."""

import pytest
from chat_tokenizers import BLOCKS, CHATML, PLAIN, chat_tokenizer
from conftest import tiny_tokenizer

from gradstats.system.chat_template import end_tokens, shown_content

PAD, START, END, CALL, EOS = range(256, 261)


@pytest.mark.parametrize(
    ("template", "eos", "of_model", "expected"),
    [
        (PLAIN, "<|im_end|>", None, [END]),
        (PLAIN, "<|im_end|>", END, [END]),
        # Gemma's and Phi's: the turn ends with another token than the tokenizer's.
        (PLAIN, "<|eos|>", None, [END, EOS]),
        (PLAIN, "<|eos|>", [EOS, END], [END, EOS]),
        (PLAIN, "<|eos|>", (CALL, END), [END, EOS, CALL]),
        (PLAIN + "{% if not add_generation_prompt %}{{ '<|eos|>' }}{% endif %}", "<|eos|>", None, [END, EOS]),
        # A base model with a template: it was never stopped at the end of a turn.
        (PLAIN, "<|eos|>", EOS, [EOS, END]),
        (PLAIN, "<|eos|>", [EOS, CALL], [EOS, CALL, END]),
        # GLM's: nothing closes a turn but the beginning of the next.
        (PLAIN.replace("+ '<|im_end|>\\n'", ""), "<|eos|>", [EOS, START], [START, EOS]),
        (PLAIN.replace("+ '<|im_end|>\\n'", ""), "<|eos|>", None, [EOS]),
        # Plain letters after a message are no token that ends it.
        (PLAIN.replace("'<|im_end|>\\n'", "'\\nEND<|im_end|>'"), "<|eos|>", None, [EOS]),
        ("{{ raise_exception('never') }}", "<|eos|>", [EOS, CALL], [EOS, CALL]),
        (None, "<|eos|>", [CALL], [EOS, CALL]),
        (None, None, None, []),
    ],
)
def test_the_tokens_that_end_a_completion(template, eos, of_model, expected):
    assert end_tokens(chat_tokenizer(template, eos), of_model) == expected


def test_without_a_tokenizer_those_of_the_model_remain():
    assert end_tokens(None, [5, 2]) == [5, 2]
    assert end_tokens(None) == []


def test_another_template_of_the_same_tokenizer_is_asked_again():
    tokenizer = chat_tokenizer(None, "<|eos|>")
    assert end_tokens(tokenizer) == [EOS]
    tokenizer.chat_template = CHATML
    assert end_tokens(tokenizer) == [END, EOS]


def test_content_is_given_as_the_template_shows_it():
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant"}]
    for text in (tiny_tokenizer(), chat_tokenizer(PLAIN), chat_tokenizer("{{ raise_exception('never') }}")):
        assert shown_content(text, messages) == messages
    assert shown_content(chat_tokenizer(BLOCKS), messages) == [
        {"role": "user", "content": [{"type": "text", "text": "ab"}]},
        {"role": "assistant", "content": [{"type": "text", "text": ""}]},
    ]
