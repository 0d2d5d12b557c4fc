"""The shipped policy: it loads with plain transformers and behaves as its model card states."""

import re
from pathlib import Path

import numpy as np
import pytest

import gradstats.data
from gradstats.prompts.embedded import extract_answer, generate_problems

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(gradstats.data.__file__).parent / "embedded_policy"
MAX_NEW_TOKENS = 256


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def sampled(model, tokenizer):
    """Lengths, rewards and texts of 24 held-out problems, 4 completions each."""
    problems = [problem for problem in generate_problems(24, rng=11) for _ in range(4)]
    messages = [[{"role": "user", "content": problem.prompt}] for problem in problems]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    torch.manual_seed(0)
    with torch.no_grad():
        output = model.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            repetition_penalty=1.0,
            max_new_tokens=MAX_NEW_TOKENS,
        )
    completions = output[:, inputs["input_ids"].shape[1] :].tolist()
    end = tokenizer.eos_token_id
    completions = [row[: row.index(end) + 1] if end in row else row for row in completions]
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in completions]
    rewards = [extract_answer(text) == problem.answer for text, problem in zip(texts, problems, strict=True)]
    return np.array([len(row) for row in completions]), np.array(rewards), texts


def test_the_folder_fits_in_4_megabytes_and_holds_what_transformers_reads():
    sizes = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "README.md"}
    assert needed <= set(sizes)
    assert sum(sizes.values()) <= 4_000_000


def test_it_is_a_float32_qwen2_of_about_800_thousand_parameters(model):
    assert model.config.model_type == "qwen2"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 700_000 < sum(parameter.numel() for parameter in model.parameters()) < 900_000
    assert model.config.max_position_embeddings >= 512 + MAX_NEW_TOKENS


@pytest.mark.parametrize(
    "text",
    [
        "b+8@17=25;check 25-8=17;ok;wait c-5@25=20;d?answer 20.",
        "hmm wait wait no;nowait hmmm answer",
        "Any text: naïve café → 7 ≠ 8,\n\n  two  spaces, don't!",
    ],
)
def test_text_survives_encoding_and_decoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_words_of_a_trace_are_one_token_each(tokenizer):
    words = ["wait ", "hmm ", "check ", "answer ", "ok;", "no;"]
    assert [len(tokenizer.encode(word)) for word in words] == [1] * 6


def test_end_and_padding_are_distinct_tokens_and_agree_with_the_model(tokenizer, model):
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token == "<|pad|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_chat_template_gives_the_trained_prompt(tokenizer):
    messages = [{"role": "user", "content": "a17 b+8 c?"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>a17 b+8 c?<|assistant|>"
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert tokens == tokenizer.convert_tokens_to_ids(
        ["<|user|>", *"a17", "Ġ", "b", "+8", "Ġ", "c", "?", "<|assistant|>"]
    )


def test_chat_template_refuses_roles_it_was_not_trained_on(tokenizer):
    with pytest.raises(Exception, match="knows the roles user and assistant only"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}])


def test_sampled_answers_are_neither_all_right_nor_all_wrong(sampled):
    _, rewards, _ = sampled
    assert 0.35 < rewards.mean() < 0.8
    shares = rewards.reshape(24, 4).mean(axis=1)
    assert ((shares > 0) & (shares < 1)).mean() > 0.3


def test_sampled_lengths_span_a_factor_of_ten(sampled):
    lengths, _, _ = sampled
    assert lengths.max() >= 10 * lengths.min()
    assert 50 < np.median(lengths) < 150
    assert (lengths == MAX_NEW_TOKENS).mean() < 0.2


def test_sampled_traces_vary_and_keep_to_the_notation(sampled):
    _, _, texts = sampled
    piece = re.compile(r"([b-x][+-]\d@\d+=\d+;|check \d+[+-]\d+=-?\d+;(ok|no);|wait |hmm )*([c-y]\?answer \d+\.)?")
    complete = [text for text in texts if extract_answer(text) is not None]
    assert np.mean([piece.fullmatch(text) is not None for text in complete]) > 0.9
    for word in ("wait ", "hmm ", "check "):
        assert 0.1 < np.mean([word in text for text in texts]) < 0.9
    repeated = [len(set(texts[first : first + 4])) for first in range(0, 96, 4)]
    assert np.mean(repeated) > 2.5


def test_plain_arithmetic_is_mostly_right(sampled):
    _, _, texts = sampled
    steps = [match for text in texts for match in re.findall(r"[b-x]([+-]\d)@(\d+)=(\d+);", text)]
    right = [int(term) + int(total) == int(result) for term, total, result in steps]
    assert np.mean(right) > 0.9


def test_model_card_tells_what_was_measured():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    success = float(re.search(r"right answers \| ([\d.]+)%", card).group(1))
    mixed = float(re.search(r"both right and wrong answers \| ([\d.]+)%", card).group(1))
    correlation, low, high = map(float, re.search(r"within a prompt \| (\S+) \[(\S+), (\S+)\]", card).groups())
    assert 40 <= success <= 70
    assert mixed >= 60
    assert -0.5 <= low <= correlation <= high <= -0.15
    assert "by construction" in card
    assert "Apache-2.0" in card
