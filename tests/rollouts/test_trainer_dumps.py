"""What the dumps of TRL and verl have in common: steps, groups, and what is lost with the token ids."""

from __future__ import annotations

import pytest
from conftest import tiny_tokenizer
from trainer_dump_files import ids, trl_file, verl_file

import gradstats
from gradstats.rollouts.trainer_dumps import read_trl_completions, read_verl_rollouts


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
