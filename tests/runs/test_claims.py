"""Processes that make a run together by claiming its shards: every one is made once, whoever dies."""

import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest
import shared_runs
from killed_runs import MOMENTS, contents, forked, in_new_process

from gradstats.report.saved_results import write_recorded_experiment
from gradstats.runs import claims
from gradstats.runs.claims import Board, Spent, make_missing, noted_turn
from gradstats.runs.directory import RUN_DIRECTORY
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.sweep import _SWEEP
from gradstats.system.lock import holder_of, together, turn
from gradstats.system.outputs import claim
from gradstats.system.shards import Shards

#: In processes that fork: what a write, a claim or the end of a run is interrupted by.
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


class Bar:
    """What a bar was advanced by."""

    def __init__(self):
        self.steps, self.n_tokens, self.said = [], 0, []

    def advance(self, steps=1):
        self.steps.append(steps)

    def tokens(self, count):
        self.n_tokens += count

    def say(self, sentence):
        self.said.append(sentence)


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A board of five shards, each a file with its number."""
    monkeypatch.setattr(claims, "BETWEEN_LOOKS", 0.0)  # every claim says how far it is

    def make(n=5):
        shards = Shards(tmp_path, ".txt", Path.read_text, lambda text, path: path.write_text(text))
        return Board(shards, dict.fromkeys(range(n), 2), Bar(), shards.is_made)

    return make


def write(board, made=None):
    """How a shard of a board is made."""

    def one(claim):
        claim.chunk(2, 7)
        board.shards.write_one(claim.number, str(claim.number))
        if made is not None:
            made.append(claim.number)

    return one


def test_every_shard_is_made_and_counted_once_and_no_claim_is_left(board, tmp_path):
    one, spent, made = board(), Spent(), []
    (tmp_path / "shard-00003.txt").write_text("before")
    make_missing(one, spent, write(one, made))
    assert made == [0, 1, 2, 4]
    assert (sum(one.report.steps), one.report.n_tokens, spent.n_shards) == (10, 28, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"shard-0000{number}.txt" for number in range(5)]


@pytest.mark.parametrize("left", [b"", b'{"host": "elsewhere", "pid": 7, "steps": 1, "tokens": 2}', b"\xff\x00"])
@pytest.mark.parametrize("seconds", [-1e6, 1e6])
def test_a_claim_of_another_host_or_of_another_time_is_taken_over(board, tmp_path, left, seconds):
    """Its lock was released; clocks that go back, or differ, do not matter."""
    one, made = board(), []
    claim = one.claim_of(2)
    claim.write_bytes(left)
    os.utime(claim, (time.time() + seconds,) * 2)
    make_missing(one, Spent(), write(one, made))
    assert made == [0, 1, 2, 3, 4]
    assert not claim.exists()


def test_a_shard_of_a_living_process_is_left_to_it_and_shown_and_that_of_a_dead_one_is_made(board, tmp_path):
    one, made = board(), []
    go = tmp_path.parent / f"{tmp_path.name}-go"

    def hold():
        own = board(1)

        def half(claim):
            claim.chunk(1, 3)
            go.touch()
            time.sleep(60)

        make_missing(own, Spent(), half)

    child = forked(hold)
    while not go.exists():
        time.sleep(0.01)
    said = holder_of(one.claim_of(0))
    assert (said["pid"], said["steps"], said["tokens"]) == (child, 1, 3)

    def make(claim):
        write(one, made)(claim)
        if len(made) == 4:  # nothing is left but the shard of the other process
            one.look()
            assert sum(one.report.steps) == 9
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    make_missing(one, Spent(), make)
    assert made == [1, 2, 3, 4, 0]
    assert sum(one.report.steps) == 10


def test_claims_cost_less_than_ten_milliseconds_a_shard(board):
    one = board(300)
    start = time.process_time()
    make_missing(one, Spent(), lambda claim: one.shards.path(claim.number).touch())
    assert (time.process_time() - start) / 300 < 0.01


def test_a_folder_in_the_place_of_a_claim_is_named_and_not_waited_for(board):
    one = board()
    one.claim_of(0).mkdir()
    with pytest.raises(RuntimeError, match="is a folder, but the lock file of .* belongs there: remove it"):
        make_missing(one, Spent(), write(one))


def test_a_directory_that_becomes_read_only_is_named(board, monkeypatch):
    one, opened = board(), os.open

    def refused(path, *rest, **options):
        if str(path).endswith("00002.claim.partial"):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError, match=r"cannot be written to \(Read-only file system\): choose another place"):
        make_missing(one, Spent(), write(one))
    assert one.shards.finished(5) == [0, 1]


@pytest.mark.usefixtures("ctrl_c_counts")
def test_a_first_ctrl_c_stops_after_the_current_shard_and_a_second_at_once(board):
    for times, finished in ((1, [0]), (2, [0])):
        one, made = board(), []

        def pressed(claim, one=one, made=made, times=times):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            write(one, made)(claim)

        with pytest.raises(KeyboardInterrupt):
            make_missing(one, Spent(), pressed, "batch")
        assert one.shards.finished(5) == finished
        assert one.report.said == [
            "stopping when the current batch is finished; Ctrl-C again stops immediately and loses it"
        ]
        assert not one.claim_of(1).exists()


@pytest.mark.usefixtures("no_analysis")
@pytest.mark.parametrize("when", ["while it waits", "before it begins", "never"])  # the last where the process dies
def test_a_process_that_begins_during_the_analysis_waits_for_its_results(experiment, finished, tmp_path, capsys, when):
    run, found = shutil.copytree(finished.run.path, tmp_path / "run"), []
    thread = threading.Thread(target=lambda: found.append(run_experiment(experiment, run, progress=False)))

    def write_page(now):
        if now == when:
            (run / "report.html").write_bytes((run / "report.html").read_bytes())

    with together(run) as company:
        company.share()
        assert company.becomes_only()
        write_page("before it begins")
        thread.start()
        time.sleep(2 * claims.BETWEEN_LOOKS)
        assert found == []
        write_page("while it waits")
    thread.join()
    assert [result is None for result in found] == [when != "never"]
    assert "note: waiting, since another process is working on" in (said := capsys.readouterr().err)
    assert "choose another folder" not in said  # which is for an error


def test_a_process_that_waits_long_for_another_says_for_which(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(claims, "BETWEEN_LOOKS", 0.02)
    with ExitStack() as held:
        held.enter_context(turn(tmp_path))
        threading.Timer(0.5, held.pop_all().close).start()
        with noted_turn(tmp_path):
            pass
        with noted_turn(tmp_path):  # which is free
            time.sleep(0.2)
    assert capsys.readouterr().err.count(f"waiting, since another process is working on {tmp_path} (process") == 1


@pytest.mark.parametrize("kind", [RUN_DIRECTORY, _SWEEP])
@pytest.mark.parametrize("begun", [".{}.host-1-0.partial", "{}"])
def test_a_folder_that_another_process_begins_during_the_look_is_one_of_ours(tmp_path, monkeypatch, kind, begun):
    listed, name = Path.iterdir, "experiment.yaml" if kind is RUN_DIRECTORY else "sweep.json"

    def meanwhile(folder):
        write_recorded_experiment(tmp_path / begun.format(name), "name: tiny\n")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", meanwhile)
    claim(tmp_path, kind)
    (tmp_path / "thesis.tex").touch()
    (tmp_path / name).unlink(missing_ok=True)
    monkeypatch.setattr(Path, "iterdir", listed)
    with pytest.raises(FileExistsError, match="exists and is not"):
        claim(tmp_path, kind)


def shared(experiment, folder, n, *moments):
    """Name → how many processes ended well, how many analysed, how many shards were made twice."""
    printed = in_new_process(Path(shared_runs.__file__), experiment, folder, str(n), *moments)
    return {name: tuple(map(int, rest)) for name, *rest in map(str.split, printed)}


@pytest.mark.timeout(1200)
def test_processes_that_start_at_once_make_a_run_of_which_one_is_killed(experiment, finished, tmp_path):
    found = shared(experiment, tmp_path, 2, "half:measurement/shard-00001")
    # The process that is to be killed lives on where the other one claims that shard first.
    assert found["half-measurement-shard-00001"] in {(1, 1, 1), (2, 1, 0)}
    assert contents(tmp_path / "runs" / "half-measurement-shard-00001") == contents(finished.run.path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("n", "numbers"), [(1, range(1, 25)), (2, range(1, 19)), (4, range(1, 13))])
def test_one_of_several_processes_may_be_killed_at_every_write(large, finished_large, tmp_path, n, numbers):
    """At the moments of a write in turns, and when it has claimed a shard."""
    whole = contents(finished_large.run.path)
    turns = zip(cycle((*MOMENTS, "claimed")), numbers, strict=False)
    moments = [f"{moment}:{number}" for moment, number in turns]
    for name, (ended, analysed, again) in shared(large, tmp_path, n, *moments).items():
        path = tmp_path / "runs" / name
        assert contents(path) == whole, name
        assert not list(path.rglob(".*")), name
        assert ended >= n - 1, name
        assert analysed <= 1, name
        assert again <= 1, name
