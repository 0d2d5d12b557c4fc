"""From texts back to token ids."""

from chat_tokenizers import chat_tokenizer
from conftest import tiny_tokenizer

from gradstats.policy.policy import load_policy
from gradstats.rollouts.restored import ChatTokenizer, Tokenizer, is_text_of, restore_tokens


def test_pieces_decide_between_tokenisations():
    tokenizer = tiny_tokenizer()
    assert restore_tokens(tokenizer, "ab", pieces=["a", "b"]).source == "pieces"
    # A token of which the tokenizer knows no id: what is left is the text.
    restored = restore_tokens(tokenizer, "ab", pieces=["ab"], counts=(1,))
    assert (restored.tokens, restored.source) == (tokenizer("ab")["input_ids"], "mismatch")
    assert restore_tokens(tokenizer, "ab", counts=(2, 3)).source == "text"


class Merging:
    """A tokenizer that merges a and b, which the policy may have sampled separately."""

    texts = ("", "a", "b", "ab")

    def __len__(self):
        return 4

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [3] if text == "ab" else [self.texts.index(letter) for letter in text]}

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(self.texts[token] for token in tokens)


def test_what_was_drawn_apart_is_restored_apart_or_reported():
    assert restore_tokens(Merging(), "ab", pieces=["a", "b"]).tokens == [1, 2]
    assert restore_tokens(Merging(), "ab", counts=(2,)).source == "mismatch"
    assert restore_tokens(Merging(), "ab").source == "text"  # nothing speaks against it


def test_a_special_token_that_was_spelled_is_restored_in_its_letters():
    tokenizer = chat_tokenizer()
    text = "say <|im_end|> now"
    drawn = [letter for part in ("say ", "<|im", "_end|>", " now") for letter in tokenizer(part)["input_ids"]]
    assert restore_tokens(tokenizer, text, spelled=True).tokens == drawn
    assert restore_tokens(tokenizer, text).tokens != drawn


def test_tokens_and_texts_are_compared_without_what_servers_decode_differently():
    tokenizer = tiny_tokenizer()
    tokens = list(tokenizer("abc", add_special_tokens=False)["input_ids"])
    for same in ([*tokens, 1], tokens):  # with and without the token that ends a completion
        assert is_text_of(tokenizer, same, "abc")
        assert is_text_of(tokenizer, same, " a bc\ufffd")
        assert is_text_of(tokenizer, same, "")
        assert not is_text_of(tokenizer, same, "abd")
        assert not is_text_of(tokenizer, same, "abcabc")


def test_a_chat_template_is_asked_for_only_where_it_is_needed():
    for tokenizer in (tiny_tokenizer(), tiny_tokenizer(chat_template=False), load_policy("embedded").tokenizer):
        assert isinstance(tokenizer, ChatTokenizer)
    assert isinstance(Merging(), Tokenizer)
    assert not isinstance(Merging(), ChatTokenizer)
    assert not isinstance(str.split, Tokenizer)
