"""Groups of ranks: what they return, raise and survive, and what one rank does with what arrives."""

import os
import pickle
import shutil
import warnings
from multiprocessing.connection import Pipe

import numpy as np
import pytest
import torch
from killed_runs import contents
from ranked_parts import Alone, Budget, ChangedExecutor, Context, DiesOnSecond, Pair, Refuses, RunsOut, Total
from torch import distributed

from gradstats import read_measurement
from gradstats.config.sections import ExecutionSection
from gradstats.config.validation import WrongSettingsError
from gradstats.runs.executors.local import LocalExecutor
from gradstats.runs.executors.rank_group import RankedExecutor, RankGroup
from gradstats.runs.executors.rank_process import Progress, RankSetup, SentReport, answer, done, opened
from gradstats.runs.executors.ray_worker import WorkerEnvironment, error_of
from gradstats.runs.pipeline import run_experiment
from gradstats.system.progress import ProgressReport, progress_bar


def in_groups(experiment):
    return experiment.model_copy(update={"execution": ExecutionSection(ranks_per_worker=2)})


def unmeasured(run, folder):
    """Copy a run without its measurement."""
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "measurement")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_group_returns_the_value_of_the_first_rank_and_survives_a_lack_of_memory(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(ProgressReport, "advance", lambda self, steps=1: seen.append(steps))
    executor = RankedExecutor(LocalExecutor(), 2)
    parts = [Total(5), Budget(), Refuses()]
    found = []
    with warnings.catch_warnings(record=True) as caught, progress_bar("parts", 3, shown=False) as bar:
        warnings.simplefilter("always")
        with executor.crew(Pair(tmp_path)) as crew, pytest.raises(WrongSettingsError) as raised:
            found.extend(crew.work(range(3), lambda number: parts[number], bar))
    ranks = [int(path.name.rpartition("-")[2]) for path in tmp_path.glob("opened-*")]
    assert found == [(0, 11), (1, 50)]
    assert str(raised.value) == "a.b is 7: choose 8"
    assert "in a worker:" in raised.value.__notes__[0]
    assert seen == [2]  # of the first rank alone
    said = [str(one.message) for one in caught]
    assert said.count("opened 0") == 2
    assert "opened 1" not in said
    assert (
        "memory ran out on one rank, on 4 sequences of 100 tokens together: all ranks have to begin again, with at "
        "most 50 tokens at once (token_budget=50)" in said
    )
    assert len(ranks) == 4
    assert not any(map(is_running, ranks))
    assert executor.spent.n_parts == 2
    assert executor.spent.loading > 1.0  # each rank imports torch; this process waits
    assert {"executor": "local", "threads": None, "ranks_per_worker": 2}.items() <= executor.describe().items()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:opened", "ignore:rank 1 of 2 died")
def test_a_part_that_kills_every_group_is_an_error(tmp_path):
    group = RankGroup(Pair(tmp_path), 2)
    with progress_bar("parts", 1, shown=False) as bar:
        message = r"rank 1 of 2 died \(exit code -9\), as in 2 groups before: is memory short\? Measure with a smaller"
        with pytest.raises(RuntimeError, match=message):
            group.do(DiesOnSecond(Total(1), tmp_path, times=9, at_once=True), bar)
    assert len(list(tmp_path.glob("died-*"))) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:opened")
def test_what_passes_through_no_weights_is_done_by_the_first_rank(tmp_path):
    group = RankGroup(Pair(tmp_path, in_step=False), 2)
    try:
        with progress_bar("parts", 1, shown=False) as bar:
            rank, pid = group.do(Alone(), bar)
    finally:
        group.close()
    assert rank == 0
    assert (tmp_path / f"opened-0-{pid}").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rank 1 of 2 died")
def test_a_run_whose_second_rank_is_killed_leaves_the_files_of_one_process(experiment, finished, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    unmeasured(finished.run.path, tmp_path / "run")
    executor = ChangedExecutor(LocalExecutor(1), 2, {"MeasureShard": lambda part: DiesOnSecond(part, marks)})
    result = run_experiment(in_groups(experiment), tmp_path / "run", progress=False, executor=executor)
    assert len(list(marks.glob("died-*"))) == 1
    assert contents(tmp_path / "run") == contents(finished.run.path)
    assert result.run.read_manifest()["execution"]["ranks_per_worker"] == 2
    assert any("rank 1 of 2 died (exit code -9)" in remark for remark in result.run.remarks)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:memory ran out")
def test_a_run_in_which_memory_runs_out_on_one_rank_finds_the_same(experiment, finished, tmp_path):
    unmeasured(finished.run.path, tmp_path / "run")
    executor = ChangedExecutor(LocalExecutor(1), 2, {"MeasureShard": lambda part: RunsOut(part, tmp_path)})
    result = run_experiment(in_groups(experiment), tmp_path / "run", progress=False, executor=executor)
    assert (tmp_path / "ran-out").exists()
    assert any("all ranks have to begin again, with at most" in remark for remark in result.run.remarks)
    found, expected = (read_measurement(run) for run in (tmp_path / "run", finished.run.path))
    np.testing.assert_allclose(found.sq_norms, expected.sq_norms, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rank 1 of 2 died")
def test_workers_of_ray_can_be_groups(experiment, finished, tmp_path):
    pytest.importorskip("ray")
    from gradstats.runs.executors.ray_executor import RayExecutor

    marks = tmp_path / "marks"
    marks.mkdir()
    section = ExecutionSection(executor="ray", ranks_per_worker=2)
    ray = RayExecutor(section)
    executor = ChangedExecutor(ray, 2, {"MeasureShard": lambda part: DiesOnSecond(part, marks)})
    try:
        changed = experiment.model_copy(update={"execution": section})
        run_experiment(changed, tmp_path / "run", progress=False, executor=executor)
    finally:
        ray.close()
    assert len(list(marks.glob("died-*"))) == 1
    assert contents(tmp_path / "run") == contents(finished.run.path)


@pytest.fixture
def here(monkeypatch):
    """What a rank takes over from this process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("gradstats.system.user_code._folders", [])  # which it takes over for good
    return WorkerEnvironment.here(torch.get_num_threads(), without_gpu=False)


@pytest.mark.filterwarnings("ignore:opened")
def test_a_rank_joins_its_group_and_opens_the_work_with_the_budget_that_is_left(here, tmp_path):
    opening = RankSetup(pickle.dumps(Pair(tmp_path)), 0, 1, str(tmp_path / "store"), here, 50)
    try:
        context = opened(opening)
        assert (distributed.get_world_size(), context.token_budget) == (1, 50)
        own, other = Pipe()
        assert done(pickle.dumps(Total(4)), context, SentReport(other, 0)) == 4
        assert own.recv() == Progress("chunk", (2, 7))
    finally:
        distributed.destroy_process_group()


def test_later_ranks_report_nothing_and_leave_out_what_needs_no_weights():
    own, other = Pipe()
    report = SentReport(other, 1)
    report.tokens(5)
    assert not own.poll()
    part = pickle.dumps(Alone())
    assert done(part, Context(1), report)[0] == 1
    assert done(part, Context(1, in_step=False), report) is None
    assert done(part, Context(0, in_step=False), SentReport(other, 0))[0] == 0


def test_an_answer_holds_the_value_and_the_warnings_of_the_first_rank_or_an_error():
    def warns():
        warnings.warn("as expected", RuntimeWarning, stacklevel=1)
        return 7

    first, second = answer(warns, 0), answer(warns, 1)
    assert (pickle.loads(first.pickled), first.remarks, first.failed) == (7, [(True, "as expected")], False)
    assert (pickle.loads(second.pickled), second.remarks) == (None, [])
    assert 0 < second.processor_seconds < 10
    failed = answer(lambda: 1 / 0, 1)
    assert failed.failed
    assert isinstance(error_of(failed.pickled), ZeroDivisionError)
