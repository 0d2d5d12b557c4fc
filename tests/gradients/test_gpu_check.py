"""The checks of a GPU, in small on a CPU."""

import importlib
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from programs import ROOT


@pytest.fixture(scope="module")
def check():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("gpu_check")


def test_a_failure_is_a_line_and_the_next_measurement_goes_on(check, capsys):
    part = check.Part("exact", "cpu", True, check.time.time() + 100.0)
    part.line(lambda: {"norms": 1 / 0}, case="first")
    part.line(lambda: {"norms": 0.123456}, case="second")
    check.Part("exact", "cpu", True, check.time.time()).line(lambda: {"norms": 0.0}, case="third")
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["case"], first["error"]) == ("first", "ZeroDivisionError: division by zero")
    assert "test_gpu_check.py:" in first["where"]
    assert second == {"part": "exact", "case": "second", "norms": 0.1235}
    assert third == {"part": "exact", "case": "third", "skipped": "no time was left"}


def test_parts_that_are_not_run_again_keep_their_rows(check, tmp_path):
    table = tmp_path / "gpu.csv"

    def write(card, *lines):
        check.write([{"part": "machine", "device": "cuda", "name": card}, *lines], table)

    write("one", {"part": "exact", "norms": 1.0}, {"part": "speed", "seconds": 2.0})
    write("two", {"part": "exact", "norms": 3.0})
    write("one", {"part": "exact", "norms": 4.0}, {"part": "exact", "error": "none, but a comma"})
    rows = pd.read_csv(table)
    rows = rows[rows["part"] != "machine"]
    assert list(zip(rows["card"], rows["part"], strict=True)) == [
        ("one", "speed"), ("two", "exact"), ("one", "exact"), ("one", "exact")
    ]  # fmt: skip
    assert rows["norms"].tolist()[1:3] == [3.0, 4.0]


@pytest.mark.slow
def test_every_part_runs_in_small_on_a_cpu(check, tmp_path):
    table = tmp_path / "gpu.csv"
    command = [sys.executable, ROOT / "benchmarks" / "gpu_check.py", "--small", "--device", "cpu"]
    command += ["--seconds", "1500", "--table", table]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert list(dict.fromkeys(line["part"] for line in lines)) == ["machine", *check.PARTS]
    assert [line for line in lines if not {"error", "skipped"}.isdisjoint(line)] == []
    compared = [line for line in lines if line["part"] == "exact" and line["what"] != "loop"]
    assert len(compared) == 13
    for line in compared:
        within = 1e-4 if line["case"].startswith("float32") else 0.1
        assert line["equal_twice"], line
        assert 0 <= max(line["norms"], line["sketches"]) < within, line
    (tests,) = (line for line in lines if line["part"] == "tests")
    assert tests["passed"] > 0
    assert not table.exists()  # which is of GPUs


@pytest.mark.slow
def test_a_part_whose_process_ends_is_a_line(check, capsys):
    (line,) = check.in_a_process("sketch", ["--nonsense"], check.time.time() + 600.0)
    assert line == {"part": "sketch", "error": "the process ended with exit code 2"}
    assert json.loads(capsys.readouterr().out) == line
