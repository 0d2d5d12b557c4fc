"""What the tests of the commands share."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import run
from small_runs import leave_out_pictures

from gradstats.measurement.measurement import Measurement
from gradstats.rollouts.table import Rollouts


@pytest.fixture(autouse=True)
def pages_without_pictures(request, monkeypatch):
    """Leave the pictures out of the pages of tests that are not about reports: they are most of the time of a run."""
    if "report" not in request.node.name:
        leave_out_pictures(monkeypatch)


@pytest.fixture
def answered(monkeypatch, capsys):
    """A function that calls a command, which has to succeed, and returns what it prints."""

    def call(*words, **options):
        code, out, err = run(monkeypatch, capsys, *words, **options)
        assert code == 0, err
        return out

    return call


@pytest.fixture
def refused(monkeypatch, capsys):
    """A function that calls a command, which has to end in one sentence, and returns what it remarks and says."""

    def call(*words, **options):
        code, out, err = run(monkeypatch, capsys, *words, **options)
        said = [line for line in err.splitlines() if not line.startswith("note: ")]
        assert (code, len(said), said[0].partition(":")[0]) == (1, 1, "gradstats"), out + err
        return " ".join(err.split())

    return call


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
        figures: {{formats: []}}
        """
    )
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A measurement of 30 prompts of 8 completions, in which longer answers are less often correct."""
    rng = np.random.default_rng(0)
    n = 240
    lengths = np.ceil(np.exp(rng.normal(2.5, 0.6, n))).astype(int)
    rewards = (rng.random(n) < 0.9 - 0.25 * np.log(lengths) + 0.4 * rng.random(30)[np.arange(n) // 8]).astype(float)
    sketches = rng.normal(size=(n, 32)) * np.sqrt(lengths)[:, None]
    squares = (sketches**2).sum(axis=1)
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [[0] * length for length in lengths],
        rewards,
        [f"p{row // 8:02d}" for row in range(n)],
        finish_reason=["length" if row % 20 == 0 else "stop" for row in range(n)],
        metadata={"sampler": {"temperature": 1.0, "top_p": 1.0, "top_k": 0}},
    )
    measurement = Measurement(
        rollouts,
        sq_norms_by_block=pd.DataFrame({"attention": 0.25 * squares, "mlp": 0.75 * squares}),
        sketches=sketches,
        logprobs=[np.minimum(np.log(0.125) + rng.normal(0.0, 0.8, length), -0.5) for length in lengths],
        entropy=[np.full(length, np.log(8.0)) for length in lengths],
        sum_pi_squared=[np.full(length, 0.125) for length in lengths],
        hidden_sq_norms=[np.ones(length) for length in lengths],
        metadata={"policy": {"temperature": 1.0}},
    )
    folder = tmp_path_factory.mktemp("statistics") / "measurement"
    measurement.save(folder)
    rollouts.to_parquet(folder.with_name("rollouts.parquet"))
    return folder
