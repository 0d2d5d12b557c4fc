"""A run that is killed while it writes, and run again, leaves the same files byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killed_runs import MOMENTS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
# Files with the times of a run.
_TIMED = {"manifest.json", "report.html"}


def contents(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in _TIMED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def kill_and_resume(experiment, tmp_path, moments):
    (tmp_path / "tiny.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    words = [sys.executable, "-W", "ignore", str(tests / "killed_runs.py"), str(tmp_path / "tiny.yaml")]
    done = subprocess.run(
        [*words, str(tmp_path / "runs"), *moments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if line.startswith(MOMENTS)]


@pytest.mark.timeout(1200)
def test_a_killed_run_resumes_to_the_same_bytes(experiment, finished, tmp_path):
    ended = kill_and_resume(experiment, tmp_path, ["half:4", "written:26"])
    assert [codes for _, *codes in ended] == [[str(-signal.SIGKILL), "0"]] * 2
    whole = contents(finished.run.path)
    for name, *_ in ended:
        assert contents(tmp_path / "runs" / name) == whole, name


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_may_be_killed_at_every_write(experiment, finished, tmp_path, moment):
    whole = contents(finished.run.path)
    ended = kill_and_resume(experiment, tmp_path, [f"{moment}:{number}" for number in range(1, 40)])
    assert ended[0][1] == str(-signal.SIGKILL)
    for name, first, second in ended:
        assert first in ("0", str(-signal.SIGKILL)), name  # 0: the run has fewer writes
        assert second == "0", name
        assert contents(tmp_path / "runs" / name) == whole, name
