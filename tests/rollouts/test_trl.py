"""TRL's completions: files written by hand and by its trainer, and the errors for broken files."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from trainer_dump_files import EOS, ids, trl_file

import gradstats
from gradstats.rollouts.trainer_dumps import read_trl_completions


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
    measured = gradstats.measure(gradstats.load_policy("embedded"), rollouts, sketch_dim=64, progress=False)
    assert len(measured) == 16
    assert "verl" not in sys.modules
