"""Sampling that is killed at random moments."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gradstats.config.experiment import Experiment
from gradstats.rollouts.table import read_rollouts

SAMPLE = (
    "import sys, warnings; warnings.simplefilter('ignore')\n"
    "from pathlib import Path\n"
    "from gradstats.runs.directory import RunDirectory\n"
    "from gradstats.runs.sampling_step import sample_shards\n"
    "from gradstats.config.experiment import load_experiment\n"
    "run = RunDirectory.open(Path(sys.argv[2]), load_experiment(sys.argv[1]))\n"
    "sample_shards(run, progress=False)\n"
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_ten_random_moments_every_shard_is_kept_and_the_table_is_the_same(tmp_path):
    experiment = Experiment(
        name="killed",
        policy={"name": "embedded"},
        prompts={"source": "embedded", "n": 60},
        sampling={"group_size": 4, "max_new_tokens": 96, "batch_size": 8},
    )
    (tmp_path / "e.yaml").write_text(experiment.to_yaml())
    words = [sys.executable, "-c", SAMPLE, str(tmp_path / "e.yaml")]
    started = time.time()
    subprocess.run([*words, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    whole = read_rollouts(tmp_path / "whole" / "rollouts")
    written = sorted(path.stat().st_mtime for path in (tmp_path / "whole" / "rollouts").glob("*.parquet"))
    drawing = written[-1] - written[0]
    starting = max(written[0] - started - drawing / len(written), 0.1)
    rng = np.random.default_rng(0)
    kept: dict[str, bytes] = {}
    folder = tmp_path / "killed" / "rollouts"
    for time_killed in range(10):
        process = subprocess.Popen([*words, str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
        # In turns while it starts, and while it draws: 20 shards in all at most, so that it never finishes.
        if time_killed % 2:
            further = len(kept) + int(rng.integers(1, 5))
            while len(list(folder.glob("*.parquet"))) < further:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(rng.uniform(0, drawing / len(written)))
        else:
            time.sleep(rng.uniform(0, starting))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = {path.name: path.read_bytes() for path in folder.glob("*.parquet")}
        assert kept.items() <= now.items()
        kept = now
    assert 0 < len(kept) < len(written)
    subprocess.run([*words, str(tmp_path / "killed")], check=True, stdout=subprocess.DEVNULL)
    final = {path.name: path.read_bytes() for path in folder.glob("*.parquet")}
    assert kept.items() <= final.items()
    assert final == {path.name: path.read_bytes() for path in (tmp_path / "whole" / "rollouts").glob("*.parquet")}
    assert read_rollouts(folder).frame.equals(whole.frame)
    assert not list(folder.glob(".*"))
