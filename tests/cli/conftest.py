"""What the tests of the commands share."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def run_directory(policy_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 6)))
    (folder / "tiny.yaml").write_text(
        f"""
        policy: {{name: {policy_folder}}}
        prompts: {{source: {folder / "p.jsonl"}}}
        sampling: {{group_size: 4, max_new_tokens: 12, reward: "small_runs:vowels"}}
        measurement: {{sketch_dim: 128}}
        """
    )
    return folder
