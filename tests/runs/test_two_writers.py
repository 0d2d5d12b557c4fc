"""A second ``gradstats run`` or ``sweep`` on a folder is refused, and the first one ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from command_line import run

import gradstats as gs

pytestmark = pytest.mark.slow
_COMMAND = "from gradstats.cli.commands import main; main()"
_PATIENCE = 900.0  # seconds, for a machine that does much else


@pytest.fixture
def file(experiment, tmp_path):
    (tmp_path / "tiny.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    return tmp_path / "tiny.yaml"


@contextmanager
def started(command, file, out):
    """A process of ``gradstats run`` or ``sweep``, which does not outlive the block."""
    tests = str(Path(__file__).parents[1])  # where the reward is
    environment = os.environ | {"PYTHONPATH": tests, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    words = [sys.executable, "-c", _COMMAND, command, str(file), "--out", str(out), "--no-progress"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(process):
    _, err = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, err


def wait_for(condition, process):
    """Wait until something is so, while a process runs."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.002)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.timeout(3600)
def test_a_second_process_is_refused_by_name_and_harms_nothing(file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    lock = out / ".lock"
    with started("run", file, out) as process:
        wait_for(lambda: (out / "rollouts" / "shard-00001.parquet").exists() and lock.read_bytes(), process)
        process.send_signal(signal.SIGSTOP)
        before = contents(out)
        code, _, err = run(monkeypatch, capsys, "run", file, "--out", out, "--no-progress")
        assert code == 1
        assert f"another process is working on {out} (process {process.pid} on " in " ".join(err.split())
        assert contents(out) == before
        process.send_signal(signal.SIGCONT)
        finish(process)
    assert not lock.exists()


@pytest.mark.timeout(3600)
def test_a_second_sweep_is_refused_by_name_and_the_first_one_ends(experiment, tmp_path, monkeypatch, capsys):
    file, out = tmp_path / "sweep.yaml", tmp_path / "sweep"
    varied = {"vary": {"sampling.temperature": [0.7, 1.0]}, "figures": {"formats": ["png"]}}
    file.write_text(yaml.safe_dump(experiment.model_dump() | varied, sort_keys=False), encoding="utf-8")
    with started("sweep", file, out) as process:
        wait_for(lambda: list(out.glob("*/rollouts/shard-00001.parquet")), process)
        process.send_signal(signal.SIGSTOP)
        before = contents(out)
        code, _, err = run(monkeypatch, capsys, "sweep", file, "--out", out, "--no-progress")
        assert code == 1
        assert f"another process is working on {out} (process {process.pid} on " in " ".join(err.split())
        assert contents(out) == before
        process.send_signal(signal.SIGCONT)
        finish(process)
    assert not list(out.rglob(".lock"))
    gs.run_sweep(file, out=tmp_path / "alone", progress=False)
    assert (out / "sweep.csv").read_bytes() == (tmp_path / "alone" / "sweep.csv").read_bytes()
