"""Second moments from prompts beside those of an experiment."""

import json

import pytest

import gradstats as gs
from gradstats.config.sections import PromptsSection


def test_a_text_that_is_measured_is_no_other_prompt(script, tmp_path):
    """Of 12 problems in the file half repeat the text of another."""
    path = tmp_path / "problems.jsonl"
    lines = [json.dumps({"prompt": f"What is {k % 6} + 1?", "answer": str(k % 6 + 1)}) for k in range(12)]
    path.write_text("\n".join(lines))
    source = PromptsSection(source=str(path), n=3, seed=0)
    measured = {one.prompt for one in gs.load_prompts(str(path), 3, rng=0)}
    for count in (1, 6 - len(measured)):
        others = [one.prompt for one in script.beside(source, count)]
        assert len(others) == len(set(others)) == count
        assert not measured & set(others)
    with pytest.raises(ValueError, match="12"):
        script.beside(source, 6)
