"""TRL's completions: files written by hand and by its trainer, and the errors for broken files."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from chat_tokenizers import BLOCKS, CHATML, PLAIN, chat_tokenizer
from conftest import tiny_tokenizer

import gradstats
from gradstats.estimators import Batch, get
from gradstats.rollouts import trainer_dumps
from gradstats.rollouts.trainer_dumps import read_trl_completions, read_verl_rollouts

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

    given = {}

    def reader(path, tokenizer, **options):
        given.update(options)
        return read_verl_rollouts(path, tokenizer, **options)

    monkeypatch.setitem(trainer_dumps.READERS, "verl", reader)
    verl_file(tmp_path / "4.jsonl")
    words = ["measure", policy_folder, "--rollouts", tmp_path / "4.jsonl", "--rollouts-format", "verl", "--out"]
    options = ["--rollouts-options", "max_completion_length=8", "--sketch-dim", "64", "--no-progress"]
    code, out, err = run(monkeypatch, capsys, *words, tmp_path / "m", *options)
    assert (code, "2 sequences measured" in out, "does not record token ids" in err) == (0, True, True)
    assert len(gradstats.read_measurement(tmp_path / "m")) == 2
    of_model = gradstats.load_policy(policy_folder, progress=False).model.generation_config.eos_token_id
    assert given == {"max_completion_length": 8, "eos_token_ids": of_model}


def test_trl_messages_become_the_templates_tokens(tmp_path, tokenizer):
    with pytest.warns(UserWarning, match=r"does not record token ids, log-probabilities .*2 steps, of as many"):
        rollouts = read_trl_completions(trl_file(tmp_path / "c.parquet"), tokenizer, max_completion_length=4)
    assert rollouts.frame["prompt_tokens"].tolist()[:3] == [[2, *ids("ab"), 3]] * 2 + [[2, *ids("cd"), 3]]
    expected = [*([*ids(text), EOS] for text in ("xy", "xyz", "x")), ids("xyzq")]
    assert rollouts.frame["completion_tokens"].tolist() == expected
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
    with pytest.raises(ValueError, match=r"exactly one numeric column .* the reward \(accuracy, style\)"):
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
    path = trl_file(tmp_path / "c.parquet")
    path.write_bytes(path.read_bytes()[:-99])
    with pytest.raises(ValueError, match=r"c\.parquet cannot be read as Parquet .*: copy it again from the trainer"):
        read_trl_completions(path, tokenizer)
    pd.DataFrame({"step": [1]}).to_parquet(path)
    with pytest.raises(ValueError, match="has no column 'prompt' .*: was it written by TRL"):
        read_trl_completions(path, tokenizer)
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("absent", "absent does not exist: give TRL's com"),
        ("empty", "holds none of TRL's completions"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            read_trl_completions(tmp_path / name, tokenizer)


def said_of(caught):
    return "; ".join(str(warning.message) for warning in caught)


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 35}}}
TOOLS = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "39"},
    {"role": "assistant", "content": "39."},
]


def test_trl_tools_are_masked_and_their_calls_kept(tmp_path):
    tokenizer = chat_tokenizer()
    plain = [{"role": "assistant", "content": "38."}]
    other = [{**TOOLS[0], "tool_calls": [{"type": "function", "function": {"name": "sub", "arguments": {"b": 1.5}}}]}]
    path = trl_file(tmp_path / "c.parquet", completion=[TOOLS, plain, [*other, *TOOLS[1:]], TOOLS])
    with pytest.warns(UserWarning, match="does not record") as caught:
        rollouts = read_trl_completions(path, tokenizer, max_completion_length=500)
    texts = [tokenizer.decode(tokens) for tokens in rollouts.frame["completion_tokens"]]
    between = "\n<|im_start|>user\n<tool_response>\n39\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    # Parquet gives every call the arguments of all others as None.
    assert texts == [
        f'<tool_call>add {{"a": 35}}</tool_call><|im_end|>{between}39.<|im_end|>',
        "38.<|im_end|>",
        f'<tool_call>sub {{"b": 1.5}}</tool_call><|im_end|>{between}39.<|im_end|>',
        f'<tool_call>add {{"a": 35}}</tool_call><|im_end|>{between}39.<|im_end|>',
    ]
    masked = [
        tokenizer.decode([token for token, own in zip(tokens, mask, strict=True) if not own])
        for tokens, mask in zip(rollouts.frame["completion_tokens"], rollouts.masks, strict=True)
    ]
    assert masked == [between, "", between, between]
    said = said_of(caught)
    assert "the tools that the prompts describe (give template_options={'tools': [...]})" in said
    assert "tool calls or reasoning of 3 completions are written as the chat template writes them" in said
    assert "of the tokens of completions are of tools and other speakers, and masked" in said
    # Completions without others need no mask.
    with pytest.warns(UserWarning, match="does not record"):
        rollouts = read_trl_completions(trl_file(tmp_path / "c.parquet", completion=[plain] * 4), tokenizer)
    assert "completion_mask" not in rollouts.frame


def test_tools_of_the_prompts_may_be_functions(tmp_path):
    def add(a: int) -> int:
        """Add.

        Args:
            a: a number.
        """
        return a

    shows = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}" + CHATML
    path = trl_file(tmp_path / "c.parquet", completion=[TOOLS] * 4)
    with pytest.warns(UserWarning, match="does not record") as caught:
        rollouts = read_trl_completions(path, chat_tokenizer(shows), template_options={"tools": [add]})
    assert chat_tokenizer().decode(rollouts.frame["prompt_tokens"][0]).startswith("add<|im_start|>user")
    assert "the tools that the prompts describe" not in said_of(caught)


def test_a_completion_that_cannot_be_known_is_named(tmp_path):
    path = trl_file(tmp_path / "c.parquet", completion=[TOOLS] * 4)
    with pytest.raises(ValueError, match=r"completion 0 of c\.parquet cannot be read: a message with tool calls"):
        read_trl_completions(path, chat_tokenizer(PLAIN))
    image = [[{"role": "assistant", "content": [{"type": "image"}]}]] * 4
    with pytest.raises(ValueError, match=r"completion 0 of c\.parquet is .*a block of the type 'image'"):
        read_trl_completions(trl_file(tmp_path / "c.parquet", completion=image), chat_tokenizer())
    for column in ("prompt", "completion"):
        path = trl_file(tmp_path / "c.parquet", **{column: ["ab", None, "ab", "ab"]})
        with pytest.raises(ValueError, match=rf"{column} 1 of c\.parquet is None: it is neither text nor messages"):
            read_trl_completions(path, chat_tokenizer())


def test_what_was_done_to_prompts_is_said(tmp_path):
    tokenizer = chat_tokenizer()
    with pytest.warns(UserWarning, match="prompts: 4 conversations put into the chat template"):
        read_trl_completions(trl_file(tmp_path / "c.parquet"), tokenizer)
    path = trl_file(tmp_path / "c.parquet", prompt=["ab"] * 4)
    with pytest.warns(UserWarning, match="prompts: 4 plain texts left as they are, without the chat template, as TRL"):
        rollouts = read_trl_completions(path, tokenizer)
    assert rollouts.frame["prompt_tokens"][0] == tokenizer("ab")["input_ids"]
    rows = [{"input": text, "output": "xy", "score": 0, "step": 1} for text in ("user\nab\nassistant\n", "cd")]
    with pytest.warns(UserWarning, match="prompts: the chat template restored around 1, 1 tokenised as the text"):
        read_verl_rollouts(verl_file(tmp_path / "1.jsonl", rows), tokenizer)


def test_blocks_of_a_prompt_are_its_text(tmp_path):
    blocks = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    for template in (CHATML, BLOCKS):
        tokenizer = chat_tokenizer(template)
        with pytest.warns(UserWarning, match="does not record"):
            rollouts = read_trl_completions(trl_file(tmp_path / "c.parquet", prompt=[blocks] * 4), tokenizer)
        assert tokenizer.decode(rollouts.frame["prompt_tokens"][0]).startswith("<|im_start|>user\nab<|im_end|>")
        assert rollouts.frame["prompt_text"][0] == "ab"


PAD, START, END, OTHER, EOS_OF_CHAT = range(256, 261)


@pytest.mark.parametrize(
    ("prompt", "of_model", "end", "sentence"),
    [
        (messages("ab"), None, END, r"4 completions were given the end token <\|im_end\|>, which closes a turn, no"),
        (messages("ab"), [EOS_OF_CHAT, END], END, "end token"),
        (messages("ab"), EOS_OF_CHAT, EOS_OF_CHAT, None),
        # Plain text that is a prompt in the chat template, and one that is not.
        ("<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n", None, END, "end token"),
        ("ab", None, EOS_OF_CHAT, r"completions of plain text were given the end token <\|eos\|>, not <\|im_end\|>"),
    ],
)
def test_completions_end_with_the_token_that_ends_a_turn(tmp_path, prompt, of_model, end, sentence):
    tokenizer = chat_tokenizer(PLAIN, eos="<|eos|>")
    path = trl_file(tmp_path / "c.parquet", prompt=[prompt] * 4)
    with pytest.warns(UserWarning, match=sentence or "does not record") as caught:
        rollouts = read_trl_completions(path, tokenizer, max_completion_length=64, eos_token_ids=of_model)
    assert [tokens[-1] for tokens in rollouts.frame["completion_tokens"]] == [end] * 4
    assert sentence is not None or "end token" not in said_of(caught)


def test_an_end_token_in_the_text_is_not_doubled(tmp_path):
    tokenizer = chat_tokenizer()
    texts = ["xy<|im_end|>", "xy", "x<|im_end|>y", "xy<|im_end|>\n"]
    path = trl_file(tmp_path / "c.parquet", completion=texts)
    with pytest.warns(UserWarning, match="1 completions hold the text of a special token, .* letter by letter"):
        rollouts = read_trl_completions(path, tokenizer, max_completion_length=64)
    xy = tokenizer("xy")["input_ids"]
    tokens = rollouts.frame["completion_tokens"].tolist()
    assert [tokens[0], tokens[1], tokens[3]] == [[*xy, END]] * 3
    assert tokens[2].count(END) == 1  # that with which it ended
    with pytest.warns(UserWarning, match="how each completion ended"):
        rollouts = read_trl_completions(path, tokenizer)
    assert [row[-1] == END for row in rollouts.frame["completion_tokens"]] == [True, False, False, True]


def test_a_completion_that_was_cut_where_tokens_merge_has_not_stopped(tmp_path):
    tokenizer = chat_tokenizer(merges=[("x", "y")])
    drawn = tokenizer("abcd" * 3)["input_ids"] + [tokenizer(letter)["input_ids"][0] for letter in "xyxyxyxy"]
    text = tokenizer.decode(drawn)
    assert len(tokenizer(text)["input_ids"]) == len(drawn) - 4
    path = trl_file(tmp_path / "c.parquet", completion=[text, "xy", "ab", "abcd" * 5])
    with pytest.warns(UserWarning, match="1 completions are tokenised to a little less than max_completion_length=20"):
        rollouts = read_trl_completions(path, tokenizer, max_completion_length=20)
    assert rollouts.frame["finish_reason"].tolist() == ["length", "stop", "stop", "length"]
    ended = [tokenizer.eos_token_id in tokens for tokens in rollouts.frame["completion_tokens"]]
    assert ended == [False, True, True, False]


def test_the_same_prompt_twice_in_a_step_is_two_groups(tmp_path):
    rewards = np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    table = {"step": [1] * 8, "prompt": [messages("ab")] * 8, "completion": ["x"] * 8, "accuracy": rewards.ravel()}
    pd.DataFrame(table | {"advantage": centred.ravel()}).to_parquet(tmp_path / "c.parquet")
    with pytest.warns(UserWarning, match="the same prompt was drawn for several groups in a step .* advantages"):
        rollouts = read_trl_completions(tmp_path / "c.parquet", chat_tokenizer())
    batch = Batch(rollouts.rewards, rollouts.lengths, rollouts.prompt_id)
    np.testing.assert_allclose(get("group_mean").advantages(batch), centred.ravel())
    # Two interleaved groups, told apart by their names, which are not taken for a reward.
    pd.DataFrame(table | {"uid": [1, 2] * 4}).to_parquet(tmp_path / "c.parquet")
    with pytest.warns(UserWarning, match="told apart by uid"):
        rollouts = read_trl_completions(tmp_path / "c.parquet", chat_tokenizer())
    assert len(set(rollouts.prompt_id[::2])) == len(set(rollouts.prompt_id[1::2])) == len(set(rollouts.prompt_id)) - 1
    row = {"input": "ab", "output": "x", "score": 0, "step": 1}
    named = [row | {"uid": f"u_{n // 2}_{n % 2}_0"} for n in range(4)]
    for rows, options, said in ((named, {}, "uid"), ([row] * 4, {"group_size": 2}, "group_size")):
        with pytest.warns(UserWarning, match=f"told apart by {said}"):
            rollouts = read_verl_rollouts(verl_file(tmp_path / "1.jsonl", rows), chat_tokenizer(), **options)
        assert [rollouts.prompt_id[0] == name for name in rollouts.prompt_id] == [True, True, False, False]


@pytest.mark.parametrize(("given", "read"), [("1.0", 1), (" 2 ", 2), (True, 1), (False, 0), ("-1e-3", -0.001)])
def test_rewards_written_otherwise_are_read(tmp_path, tokenizer, given, read):
    rows = [{"input": "ab", "output": "xy", "score": given, "step": 1}]
    with pytest.warns(UserWarning, match="does not record"):
        assert read_verl_rollouts(verl_file(tmp_path / "1.jsonl", rows), tokenizer).rewards.tolist() == [read]
    path = trl_file(tmp_path / "c.parquet", accuracy=[given] * 4)
    with pytest.warns(UserWarning, match="does not record"):
        assert read_trl_completions(path, tokenizer).rewards.tolist() == [read] * 4


@pytest.mark.parametrize(("given", "kind"), [("right", "str"), ([1.0], "list"), ({"score": 1.0}, "dict")])
def test_rewards_that_are_not_numbers_are_named(tmp_path, tokenizer, given, kind):
    rows = [{"input": "ab", "output": "xy", "score": score, "step": 1} for score in (0, given)]
    with pytest.raises(ValueError, match=rf"score on line 2 of .*1\.jsonl is .*\({kind}\), not a number: name another"):
        read_verl_rollouts(verl_file(tmp_path / "1.jsonl", rows), tokenizer)
    if isinstance(given, str):
        path = trl_file(tmp_path / "c.parquet", accuracy=["1", given, "0", "0"])
        with pytest.raises(ValueError, match=r"accuracy of row 1 of .*c\.parquet is 'right' \(str\), not a number"):
            read_trl_completions(path, tokenizer, reward="accuracy")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *((name, value, rf"{name} on line 1 of .* is .*, not text: drop the line, or give an empty text")
          for name, value in (("output", None), ("output", 39), ("input", None), ("output", ["x"]))),
        *(("step", value, r"step of row 0 of 1\.jsonl is .*, which is not the number of a step")
          for value in (None, "1", 1.5, True)),
    ],
)  # fmt: skip
def test_what_is_not_text_or_a_number_is_not_read_as_that(tmp_path, tokenizer, name, value, message):
    row = {"input": "ab", "output": "xy", "score": 1, "step": 1} | {name: value}
    with pytest.raises(ValueError, match=message):
        read_verl_rollouts(verl_file(tmp_path / "1.jsonl", [row]), tokenizer)


def test_turns_of_a_verl_output_are_masked_or_refused(tmp_path):
    tokenizer = chat_tokenizer()
    spoken = "I add.\nuser\n<tool_response>\n39\n</tool_response>\nassistant\n39."
    rows = [{"input": "user\nab\nassistant\n", "output": spoken, "score": 1, "step": 1}]
    path = verl_file(tmp_path / "1.jsonl", rows)
    with pytest.raises(ValueError, match=r"completion 0 of 1\.jsonl cannot be read: its text holds turns of other"):
        read_verl_rollouts(path, tokenizer)
    with pytest.warns(UserWarning, match="of the tokens of completions are of tools and other speakers, and masked"):
        rollouts = read_verl_rollouts(path, tokenizer, other_turns="masked", max_completion_length=500)
    between = "\n<|im_start|>user\n<tool_response>\n39\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(rollouts.frame["completion_tokens"][0]) == f"I add.<|im_end|>{between}39.<|im_end|>"
    assert rollouts.lengths.tolist() == [len("I add.") + len("39.") + 2]


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
    # The policy writes a text in one way, so what was sampled comes back token for token, near the cap without its end.
    restored = [list(map(int, tokens)) for tokens in rollouts.frame["completion_tokens"]]
    assert sorted(restored) == sorted(ids[:-1] if len(ids) > 44 and ids[-1] == EOS else ids for ids in sampled.ids)
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
