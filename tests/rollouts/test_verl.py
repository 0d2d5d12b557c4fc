"""verl's rollouts: files written by hand and by its own function, and the errors for broken files."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from conftest import tiny_tokenizer
from trainer_dump_files import EOS, ids, verl_file

from gradstats.rollouts.trainer_dumps import read_verl_rollouts


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
