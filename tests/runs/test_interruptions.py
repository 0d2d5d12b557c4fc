"""Runs that are killed, copied in part or damaged, and a command that would change one which is being made."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from killed_runs import MOMENTS, contents, kill_and_resume

from gradstats.measurement.measurement import read_measurement
from gradstats.report.saved_results import read_recorded_experiment, read_results
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.growth import read_plan
from gradstats.runs.regrading import read_regradings
from gradstats.system.files import read_json, write_json

#: Files that no command reads: a changed bit there changes what a person sees and no number that is computed.
SHOWN = {".png", ".pdf", ".svg", ".pgf", ".html", ".tex", ".md"}


def files_of(path: Path) -> list[Path]:
    """Every file of a run that a command reads."""
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in files if file.suffix not in SHOWN and file.parent.name != "figures")


def numbers_of(path: Path) -> str:
    """A digest of every number and setting that commands read from a run."""
    sha = hashlib.sha256()

    def add(*values: object) -> None:
        for value in values:
            sha.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())

    measured, rollouts, results = read_measurement(path), read_rollouts(path), read_results(path)
    for table in (rollouts, measured.rollouts):
        add(table.metadata, *(table.frame[name].tolist() for name in table.frame))
    add(measured.metadata, measured.sq_norms_by_block.to_numpy(), list(measured.sq_norms_by_block), measured.sketches)
    for rows in (measured.per_token_fields() | measured.heavy_fields()).values():
        add(*rows)
    add(results.settings, results.manifest, results.alpha, read_recorded_experiment(path / "experiment.yaml").name)
    kept = [answer.frame for answer in results.answers.values()]
    for frame in (results.points, results.variance, *kept):
        add(None if frame is None else (frame.to_csv(), sorted(frame.attrs.items())))
    add(read_plan(path / "rollouts"), read_regradings(path))
    add(*(read_json(path / step / "complete.json") for step in ("rollouts", "measurement")))
    return sha.hexdigest()


def outcome(path: Path, file: Path, bit: int, expected: str) -> str:
    """What becomes of a flipped bit: "refused", "harmless", or "silent" where numbers differ; the file is restored."""
    before = file.read_bytes()
    changed = bytearray(before)
    changed[bit // 8] ^= 1 << bit % 8
    file.write_bytes(changed)
    try:
        return "harmless" if numbers_of(path) == expected else "silent"
    except (ValueError, OSError, LookupError, TypeError, UserWarning):
        return "refused"
    finally:
        file.write_bytes(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.timeout(1200)
def test_a_killed_run_resumes_to_the_same_bytes(experiment, finished, tmp_path):
    ended = kill_and_resume(experiment, tmp_path, ["written:26"])
    assert [codes for _, *codes in ended] == [[str(-signal.SIGKILL), "0"]]
    whole = contents(finished.run.path)
    for name, *_ in ended:
        assert contents(tmp_path / "runs" / name) == whole, name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("moment", "first"), list(zip(MOMENTS, range(1, 4), strict=True)))
def test_a_run_may_be_killed_at_every_write(drawing, drawn, tmp_path, moment, first):
    # Each write is interrupted at one of the moments, which take turns.
    whole = contents(drawn.run.path)
    ended = kill_and_resume(drawing, tmp_path, [f"{moment}:{number}" for number in range(first, 100, len(MOMENTS))])
    assert [killed for _, killed, _ in ended] == [str(-signal.SIGKILL)] * (len(ended) - 1) + ["0"]
    assert 7 < len(ended) < 33
    for name, _, second in ended:
        assert second == "0", name
        assert contents(tmp_path / "runs" / name) == whole, name


@pytest.mark.filterwarnings("ignore:these files were written by an earlier version")
def test_no_flipped_bit_changes_a_number_silently(finished, tmp_path):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    rng, expected, counts = np.random.default_rng(0), numbers_of(path), {"refused": 0, "harmless": 0}
    for file in files_of(path):
        bit = int(rng.integers(8 * file.stat().st_size))
        what = outcome(path, file, bit, expected)
        assert what != "silent", (file.relative_to(path), bit)
        counts[what] += 1
    assert counts["refused"] > counts["harmless"]


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


def contents_of_two_writers(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_that_is_being_made_is_not_regraded(file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    lock = out / ".lock"
    with started("run", file, out) as process:
        wait_for(lambda: (out / "rollouts" / "shard-00001.parquet").exists() and lock.read_bytes(), process)
        process.send_signal(signal.SIGSTOP)
        before = contents_of_two_writers(out)
        code, _, err = run(monkeypatch, capsys, "regrade", out, "--trust", "--no-progress")
        assert code == 1
        assert f"another process is working on {out} (process {process.pid} on " in " ".join(err.split())
        assert contents_of_two_writers(out) == before
        process.send_signal(signal.SIGCONT)
        finish(process)
    assert not lock.exists()


@pytest.fixture
def path(finished, tmp_path):
    return shutil.copytree(finished.run.path, tmp_path / "run")


def test_missing_shards_are_refused_and_left_out_on_request(path):
    whole = read_measurement(path)
    shutil.rmtree(path / "measurement" / "shard-00003")
    os.unlink(path / "rollouts" / "shard-00001.parquet")
    with pytest.raises(ValueError, match=r"1 of 4 shards are missing in .*measurement \(the first: shard-00003\)"):
        read_measurement(path)
    with pytest.raises(ValueError, match=r"1 of 4 shards are missing in .*rollouts \(the first: shard-00001.parquet\)"):
        read_rollouts(path)
    with pytest.warns(UserWarning, match="this is an analysis of the others; shards are ordered by prompt length"):
        measured = read_measurement(path, partial=True)
    np.testing.assert_array_equal(measured.sq_norms, whole.sq_norms[:18])


def test_shards_that_belong_elsewhere_are_refused(path):
    measurement, rollouts = path / "measurement", path / "rollouts"
    shutil.copy(rollouts / "shard-00001.parquet", rollouts / "shard-00002.parquet")
    with pytest.raises(ValueError, match="shard-00002.parquet does not belong here, it comes from another place in"):
        read_rollouts(rollouts)
    shutil.rmtree(measurement / "shard-00002")
    shard = read_measurement(measurement / "shard-00001")
    own = shard.metadata["origin"] | {"shard": 2}
    for origin, sentence in (
        ({"run": "7"}, "it comes from another run"),
        ({"settings": "7"}, "it comes from a run with other settings"),
        (None, "it comes from another run"),
    ):
        shard.metadata["origin"] = None if origin is None else own | origin
        shard.save(measurement / "shard-00002", overwrite=True)
        with pytest.raises(ValueError, match=f"shard-00002 does not belong here, {sentence}"):
            read_measurement(path)


def test_rollouts_that_were_not_measured_are_refused(path):
    shutil.copy(path / "rollouts" / "shard-00001.parquet", path / "measurement" / "shard-00002" / "rollouts.parquet")
    with pytest.raises(
        ValueError, match=r"its rollouts\.parquet holds other completions than those that were measured"
    ):
        read_measurement(path)


def test_shards_without_their_plan_are_refused(path):
    (path / "rollouts" / "plan.json").unlink()
    (path / "measurement" / "plan.json").unlink()
    for read in (read_measurement, read_rollouts):
        with pytest.raises(ValueError, match=r"is one shard of a run, and .* has no plan\.json"):
            read(path)
        assert len(read(path, partial=True)) == 24
    write_json(path / "rollouts" / "plan.json", {"n_shards": "many"})
    with pytest.raises(ValueError, match=r"plan\.json does not state how many shards there are"):
        read_rollouts(path)


def test_shards_of_an_unfinished_command_are_refused(path):
    write_json(path / "rollouts" / "settings.json", {})
    with pytest.raises(ValueError, match="holds the finished shards of an unfinished command: repeat that command"):
        read_rollouts(path)
