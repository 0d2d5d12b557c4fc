"""TRL's completions: files written by hand and by its trainer, and the errors for broken files."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import tiny_tokenizer

import gradstats
from gradstats.policy.policy import load_policy
from gradstats.rollouts.trainer_dumps import (
    ChatTokenizer,
    Tokenizer,
    is_text_of,
    read_trl_completions,
    read_verl_rollouts,
    restore_tokens,
)

EOS = 1


def messages(text):
    return [{"role": "user", "content": text, "images": None}]


def trl_file(path, **columns):
    table = {
        "step": [1, 1, 1, 2],
        "prompt": [messages("ab"), messages("ab"), messages("cd"), messages("ab")],
        "completion": [[{"role": "assistant", "content": text}] for text in ("xy", "xyz", "x", "xyzq")],
        "accuracy": [1.0, 0.0, 1.0, 0.0],
        "advantage": [0.7, -0.7, 0.0, 0.0],
    }
    pd.DataFrame(table | columns).to_parquet(path)
    return path


def verl_file(path, rows=None):
    default = [
        {"input": "ab", "output": "xy", "gts": "3", "score": 1.0, "step": 4, "acc": True},
        {"input": "ab", "output": "xyz", "gts": "3", "score": 0.0, "step": 4, "acc": False},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in (default if rows is None else rows)))
    return path


def ids(text):
    return tiny_tokenizer()(text)["input_ids"]


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


def test_tokens_and_texts_are_compared_without_what_servers_decode_differently():
    tokenizer = tiny_tokenizer()
    tokens = list(tokenizer("abc", add_special_tokens=False)["input_ids"])
    for same in ([*tokens, 1], tokens):  # with and without the token that ends a completion
        assert is_text_of(tokenizer, same, "abc")
        assert is_text_of(tokenizer, same, " a bc\ufffd")
        assert is_text_of(tokenizer, same, "")
        assert not is_text_of(tokenizer, same, "abd")
        assert not is_text_of(tokenizer, same, "abcabc")


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


def test_without_the_trainers_cap_the_finish_is_unknown_and_no_end_is_made_up(tmp_path, tokenizer):
    with pytest.warns(UserWarning, match="how each completion ended"):
        rollouts = read_trl_completions(trl_file(tmp_path / "c.parquet"), tokenizer, step=1)
    assert "finish_reason" not in rollouts.frame
    assert rollouts.frame["completion_tokens"].tolist() == [ids("xy"), ids("xyz"), ids("x")]


def test_text_that_does_not_round_trip_is_counted(tmp_path, tokenizer):
    rows = [{"input": "ab", "output": text, "score": 0, "step": 1} for text in ("xy", "xY")]
    with pytest.warns(UserWarning, match="ids of 2 of 2 completions were restored .* 1 certainly do"):
        rollouts = read_verl_rollouts(verl_file(tmp_path / "1.jsonl", rows), tokenizer)
    assert rollouts.frame["token_source"].tolist() == ["text", "mismatch"]


def test_a_folder_is_read_in_the_order_of_its_steps(tmp_path, tokenizer):
    for step in (2, 10, 1):
        verl_file(tmp_path / f"{step}.jsonl", [{"input": "ab", "output": "x", "score": step, "step": step}])
    with pytest.warns(UserWarning, match="3 steps"):
        assert read_verl_rollouts(tmp_path, tokenizer).rewards.tolist() == [1, 2, 10]
    with pytest.raises(ValueError, match="step is 3, but .* holds the steps 1, 2, 10"):
        read_verl_rollouts(tmp_path, tokenizer, step=3)


def test_messages_need_a_template(tmp_path):
    with pytest.raises(ValueError, match="the prompts are chat messages, and the tokenizer has no chat template"):
        read_trl_completions(trl_file(tmp_path / "c.parquet"), tiny_tokenizer(chat_template=False))


def test_the_measure_command_reads_dumps(policy_folder, tmp_path, monkeypatch, capsys):
    from command_line import run

    verl_file(tmp_path / "4.jsonl")
    words = ["measure", policy_folder, "--rollouts", tmp_path / "4.jsonl", "--rollouts-format", "verl", "--out"]
    options = ["--rollouts-options", "max_completion_length=8", "--sketch-dim", "64", "--no-progress"]
    code, out, err = run(monkeypatch, capsys, *words, tmp_path / "m", *options)
    assert (code, "2 sequences measured" in out, "does not record token ids" in err) == (0, True, True)
    assert len(gradstats.read_measurement(tmp_path / "m")) == 2


def test_trl_messages_become_the_templates_tokens(tmp_path, tokenizer):
    with pytest.warns(
        UserWarning, match=r"does not record token ids, log-probabilities .*2 steps, of as many policies"
    ):
        rollouts = read_trl_completions(trl_file(tmp_path / "c.parquet"), tokenizer, max_completion_length=4)
    assert rollouts.frame["prompt_tokens"].tolist()[:3] == [[2, *ids("ab"), 3]] * 2 + [[2, *ids("cd"), 3]]
    assert rollouts.frame["completion_tokens"].tolist() == [
        [*ids("xy"), EOS],
        [*ids("xyz"), EOS],
        [*ids("x"), EOS],
        ids("xyzq"),
    ]
    assert rollouts.frame["finish_reason"].tolist() == ["stop"] * 3 + ["length"]
    assert rollouts.rewards.tolist() == [1.0, 0.0, 1.0, 0.0]
    # A group is a prompt in a step.
    assert rollouts.prompt_id[0] == rollouts.prompt_id[1]
    assert len(set(rollouts.prompt_id)) == 3
    assert rollouts.frame["sample_id"].tolist() == [0, 1, 0, 0]
    assert set(rollouts.frame["token_source"]) == {"text"}
    assert rollouts.metadata["source"]["format"] == "trl"


def test_trl_rewards_are_named_weighted_and_may_be_missing(tmp_path, tokenizer):
    path = trl_file(tmp_path / "c.parquet", style=[0.5, np.nan, np.nan, 1.0], accuracy=[1.0, 0.0, np.nan, 0.0])
    with pytest.raises(
        ValueError, match=r"does not have exactly one numeric column that may be the reward \(accuracy, style\)"
    ):
        read_trl_completions(path, tokenizer)
    with pytest.warns(UserWarning, match=r"rows left out \(1 without a reward\)"):
        rollouts = read_trl_completions(path, tokenizer, reward={"accuracy": 2.0, "style": 1.0})
    assert rollouts.rewards.tolist() == [2.5, 0.0, 1.0]
    with pytest.raises(ValueError, match="has no column 'acc'"):
        read_trl_completions(path, tokenizer, reward="acc")


def test_trl_plain_text_prompts_are_tokenised_as_they_are(tmp_path, tokenizer):
    path = trl_file(tmp_path / "c.parquet", prompt=["ab"] * 4, completion=["xy", "xyz", "x", ""])
    with pytest.warns(UserWarning, match="1 empty completions"):
        rollouts = read_trl_completions(path, tokenizer)
    assert rollouts.frame["prompt_tokens"].tolist() == [ids("ab")] * 3


def test_broken_trl_files(tmp_path, tokenizer):
    whole = trl_file(tmp_path / "c.parquet").read_bytes()
    (tmp_path / "c.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"c\.parquet cannot be read as Parquet .*: copy it again from the trainer"):
        read_trl_completions(tmp_path / "c.parquet", tokenizer)
    pd.DataFrame({"step": [1]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="has no column 'prompt' .*: was it written by TRL"):
        read_trl_completions(tmp_path / "c.parquet", tokenizer)
    with pytest.raises(FileNotFoundError, match=r"absent does not exist: give TRL's completions"):
        read_trl_completions(tmp_path / "absent", tokenizer)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds none of TRL's completions"):
        read_trl_completions(tmp_path / "empty", tokenizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trls_own_files_of_two_steps_of_grpo(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    policy = gradstats.load_policy("embedded")
    problems = gradstats.load_prompts("embedded", 4, rng=0, steps=2)
    sampled = SimpleNamespace(ids=[], rewards=[])

    def right(prompts, completions, completion_ids, **columns):
        rewards = [float(len(tokens) % 3) for tokens in completion_ids]
        sampled.ids += [list(map(int, tokens)) for tokens in completion_ids]
        sampled.rewards += rewards
        return rewards

    config = trl.GRPOConfig(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=False, per_device_train_batch_size=8,
        num_generations=4, max_completion_length=48, max_steps=2, logging_steps=1, log_completions=True,
        save_strategy="no", disable_tqdm=True, seed=0,
    )  # fmt: skip
    trl.GRPOTrainer(
        model=policy.model,
        args=config,
        processing_class=policy.tokenizer,
        reward_funcs=right,
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": [{"role": "user", "content": item.prompt}]} for item in problems]
        ),
    ).train()
    rollouts = read_trl_completions(tmp_path / "completions", policy.tokenizer, max_completion_length=48)
    assert len(rollouts) == 16
    assert rollouts.metadata["source"]["n_steps"] == 2
    assert sorted(rollouts.rewards) == sorted(sampled.rewards)
    assert set(pd.Series(rollouts.prompt_id).value_counts()) == {4}
    # The embedded tokenizer has one way to write a text, so what was sampled comes back token for token.
    restored = [list(map(int, tokens)) for tokens in rollouts.frame["completion_tokens"]]
    assert sorted(restored) == sorted(sampled.ids)
    encoded = {tuple(policy.encode_prompt(item.prompt)) for item in problems}
    assert {tuple(tokens) for tokens in rollouts.frame["prompt_tokens"]} <= encoded
    measured = gradstats.measure(gradstats.load_policy("embedded"), rollouts, sketch_dim=4096, progress=False)
    assert len(measured) == 16
    assert "verl" not in sys.modules


def test_verl_prompts_get_their_template_back(tmp_path, tokenizer):
    with pytest.warns(UserWarning, match="does not record") as caught:
        rollouts = read_verl_rollouts(verl_file(tmp_path / "4.jsonl"), tokenizer, max_completion_length=3)
    assert "chat template around" not in str(caught[0].message)
    assert rollouts.frame["prompt_tokens"].tolist() == [[2, *ids("ab"), 3]] * 2
    assert rollouts.frame["completion_tokens"].tolist() == [[*ids("xy"), EOS], ids("xyz")]
    assert rollouts.frame["finish_reason"].tolist() == ["stop", "length"]


def test_verl_prompts_whose_template_cannot_be_restored_are_counted(tmp_path, tokenizer):
    other = tiny_tokenizer()
    other.chat_template = "sys" + other.chat_template
    with pytest.warns(UserWarning, match="the chat template around 1 of 1 prompts"):
        rollouts = read_verl_rollouts(verl_file(tmp_path / "4.jsonl"), other)
    assert rollouts.frame["prompt_tokens"].tolist() == [ids("ab")] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"input": "a", "output": "b", "score": 1, "step": 1}\n{"input": "a", "outp', r"line 2 of .*truncated; drop"),
        ('{"input": "a"}\n', r"line 1 of .* has no field 'output' \(it has input\)"),
        ("{}}\n", "line 1 of .* is not JSON"),
        ("[1]\n", "line 1 of .* is not a JSON object"),
        ("", "is empty: the trainer has written nothing to it yet"),
        ('{"input": "a", "output": "", "score": 1, "step": 1}\n', "holds no completion with text and a reward"),
    ],
)
def test_broken_verl_files_name_the_line(tmp_path, tokenizer, content, message):
    (tmp_path / "1.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_verl_rollouts(tmp_path / "1.jsonl", tokenizer)


def test_verls_own_dump_is_read(tmp_path, tokenizer):
    """verl's function that writes the files, extracted from its trainer's source, which needs ray and a GPU stack."""
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        pytest.skip("verl is not installed")
    write = written_by(spec.origin.replace("__init__.py", "trainer/ppo/ray_trainer.py"))
    extra = {"uid": ["u1", "u1"], "acc": [1.0, 0.0], "wrong_size": [1]}
    write(["ab", "ab"], ["xy", "xyz"], ["3", None], [1.0, 0.0], extra, str(tmp_path), 7)
    with pytest.warns(UserWarning, match="does not record"):
        rollouts = read_verl_rollouts(tmp_path, tokenizer, step=7)
    assert rollouts.rewards.tolist() == [1.0, 0.0]
    assert rollouts.frame["completion_text"].tolist() == ["xy", "xyz"]


def written_by(source):
    import ast
    import os

    with open(source, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (found,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_write_generations"
    ]
    found.decorator_list = []
    space = {"os": os, "json": json, "np": np}
    exec(compile(ast.Module([found], []), source, "exec"), space)
    return space["_write_generations"]
