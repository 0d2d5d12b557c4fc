"""Workers on this machine, of ray and as ranks: their deaths, errors and interrupts, and the files of one process."""

import os
import shutil
import time

import pytest
import yaml
from ending_rewards import MARKS
from killed_runs import contents
from shared_runs import n_again

from gradstats.config.sections import ExecutionSection
from gradstats.config.validation import WrongSetting, WrongSettingsError
from gradstats.gradients.distributed import GroupMemoryError
from gradstats.runs import ranks, ray_workers, workers
from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.ray_workers import connected, make_shards
from gradstats.runs.sweep import run_sweep
from gradstats.runs.validate import require_execution
from gradstats.runs.workers import LocalWorker, Task
from gradstats.system.environment import gpus_of_worker
from gradstats.system.files import read_json
from gradstats.system.worker import portable

TWO = {"workers": 2}
BY_RAY = {"executor": "ray", "workers": 2}


@pytest.fixture
def by(experiment, monkeypatch, tmp_path):
    """The tiny experiment with workers, and a reward of this folder's."""
    monkeypatch.setenv(MARKS, str(tmp_path))
    monkeypatch.setenv("ENDING_REWARDS_PID", str(os.getpid()))

    def changed(reward="small_runs:vowels", **execution):
        sampling = experiment.sampling.model_copy(update={"reward": reward})
        return experiment.model_copy(update={"execution": ExecutionSection(**execution), "sampling": sampling})

    return changed


def same_numbers(run, finished):
    """Whether all numbers are the same, in files that name another reward."""
    for path in finished.run.measurement.rglob("tensors.safetensors"):
        assert (run / path.relative_to(finished.run.path)).read_bytes() == path.read_bytes()
    assert (run / "variance.csv").read_bytes() == (finished.run.path / "variance.csv").read_bytes()
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize(
    "execution",
    [
        TWO,
        pytest.param({"workers": 4}, marks=pytest.mark.slow),
        pytest.param(BY_RAY, marks=pytest.mark.slow),
        pytest.param({"ranks_per_worker": 2}, marks=pytest.mark.slow),
        pytest.param({"executor": "ray", "ranks_per_worker": 2}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(900)
def test_workers_leave_the_files_of_one_process(by, finished, tmp_path, execution):
    result = run_experiment(by(**execution), tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == contents(finished.run.path)
    assert result.run.remarks == finished.run.remarks
    recorded = result.run.read_manifest()["execution"]
    assert recorded.items() >= execution.items()
    assert sum(recorded["shards_by_host"].values()) == 8
    assert recorded["processor_seconds"]["shards"] > 0


@pytest.mark.usefixtures("no_analysis")
def test_no_worker_is_started_where_nothing_is_missing(by, finished, tmp_path, monkeypatch):
    monkeypatch.setattr("gradstats.runs.pipeline.let_workers_make", lambda *_: pytest.fail("a worker is started"))
    run = shutil.copytree(finished.run.path, tmp_path / "run")
    assert run_experiment(by(**TWO), run, progress=False) is not None


def test_the_next_process_removes_what_a_killed_one_told_its_workers(experiment, tmp_path, monkeypatch):
    run = RunDirectory.open(tmp_path / "run", experiment)
    with monkeypatch.context() as killed:
        killed.setattr(workers.shutil, "rmtree", lambda *_, **__: None)
        LocalWorker(Task.of(run, experiment.execution), run.path).kill()
    assert list(run.path.glob(".worker-*"))
    RunDirectory.open(run.path, experiment)
    assert not list(run.path.glob(".worker-*"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("execution", "turns"),
    [
        (TWO, ["half:3"]),
        ({"workers": 4}, ["written:2", "claimed:2", "named:3"]),
        ({"executor": "ray", "workers": 1}, ["half:2", "named:3", "claimed:2"]),
        (BY_RAY, ["claimed:1", "written:3", "half:4"]),
        ({"executor": "ray", "workers": 4}, ["named:2", "half:3", "claimed:1", "written:2"]),
    ],
)
def test_the_shards_of_workers_that_are_killed_are_made_again(
    large, finished_large, tmp_path, monkeypatch, capsys, execution, turns
):
    (tmp_path / "turns").write_text(" ".join(turns))
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(
        "import sys\nif 'gradstats.runs.worker' in sys.orig_argv:\n"
        f"    import shared_runs\n    shared_runs.in_worker({str(tmp_path)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "hook")
    executor = execution.get("executor", "local")  # ray starts them again, without a word
    by_workers = large.model_copy(update={"execution": ExecutionSection(**execution)})
    run_experiment(by_workers, tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == contents(finished_large.run.path)
    assert not list((tmp_path / "run").rglob(".*"))
    assert len(list(tmp_path.glob("killed-*"))) == len(turns)
    assert n_again(tmp_path / "counts") <= len(turns)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("a worker died (exit code -9): the others make its shard") == len(turns) * (executor == "local")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("reward", "execution", "kind", "message"),
    [
        ("ending_rewards:dies", TWO, RuntimeError, r"died \(exit code -9\), and no worker is left: if memory ran out"),
        ("ending_rewards:dies_on_second_rank", {"ranks_per_worker": 2}, RuntimeError, "a worker died .*no worker is"),
    ],
)
def test_what_ends_every_worker_is_an_error(by, tmp_path, reward, execution, kind, message):
    start = time.monotonic()
    with pytest.raises(kind, match=f"(?s){message}"):
        run_experiment(by(reward, **execution), tmp_path / "run", progress=False)
    assert time.monotonic() - start < 300
    assert not list((tmp_path / "run").rglob(".turn"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_runs_out_of_memory_alone_ends_all_with_its_message(by, tmp_path):
    given = by(ranks_per_worker=2)
    estimators = [*given.variance.estimators, "second_rank_without_memory:weight"]
    short = given.model_copy(update={"variance": given.variance.model_copy(update={"estimators": estimators})})
    with pytest.raises(RuntimeError, match=r"memory ran out on one rank, .* \(token_budget=\d+\)") as raised:
        run_experiment(short, tmp_path / "run", progress=False)
    assert type(raised.value) is GroupMemoryError


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("execution", [TWO, BY_RAY])
def test_an_error_of_a_worker_is_raised_as_itself(by, tmp_path, execution):
    given = by(**execution)
    nothing = given.model_copy(update={"measurement": given.measurement.model_copy(update={"params": "absent"})})
    with pytest.raises(ValueError, match="absent"):
        run_experiment(nothing, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "rollouts" / "complete.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ctrl_c_counts")
@pytest.mark.parametrize("execution", [TWO, {"executor": "ray", "workers": 1}])
def test_ctrl_c_finishes_what_the_workers_are_doing(by, finished, tmp_path, execution, capsys):
    asked = by("ending_rewards:asks_to_stop", **execution)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(asked, tmp_path / "run", progress=False)
    drawn = list((tmp_path / "run" / "rollouts").glob("shard-*.parquet"))
    assert len(drawn) > 0
    assert not (tmp_path / "run" / "rollouts" / "complete.json").exists() or len(drawn) == 4
    assert "stopping when the current shard is finished" in " ".join(capsys.readouterr().err.split())
    run_experiment(asked, tmp_path / "run", progress=False)
    same_numbers(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_by_workers_of_ray_leaves_the_files_of_one_process(experiment, tmp_path):
    pytest.importorskip("ray")
    data = experiment.model_dump() | {"name": "tiny sweep", "vary": {"sampling.temperature": [0.7, 1.0]}}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    one = run_sweep(path, out=tmp_path / "one", progress=False)
    run_sweep(path, ["execution.executor=ray", "execution.workers=2"], out=tmp_path / "several", progress=False)
    assert contents(tmp_path / "several") == contents(tmp_path / "one")
    for cell in one.settings:
        assert read_json(tmp_path / "several" / cell / "manifest.json")["execution"]["executor"] == "ray"


def test_a_rank_that_loses_another_leaves_the_message_to_it(monkeypatch):
    waited = []
    monkeypatch.setattr(ranks, "n_ranks", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(time, "sleep", waited.append)
    for sentence, seconds in (("memory ran out", []), ("Connection closed by peer [127.0.0.1]", [30.0])):
        with pytest.raises(RuntimeError), ranks.joined_ranks():
            raise RuntimeError(sentence)
        assert waited == seconds


def test_a_node_that_does_not_see_the_run_directory_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_workers, "_LONGEST_DELAY", 0.1)
    task = Task(b"", ".", "", 1, 1, None)
    with pytest.raises(FileNotFoundError, match=r"node .* does not see the run directory .*/run: choose one on a file"):
        make_shards(task, tmp_path / "run" / ".call-1.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "auto"}, "address is auto, and the executor local starts its workers on this machine: choose"),
        (
            {"executor": "ray", "gpus_per_worker": 1, "ranks_per_worker": 4},
            "gpus_per_worker is 1, but each of the 4 ranks of a worker needs a GPU of its own: set it to 4",
        ),
    ],
)
def test_settings_that_nothing_follows_are_refused(monkeypatch, settings, message):
    monkeypatch.setattr("gradstats.runs.validate.installed", lambda name: name)
    with pytest.raises(ValueError, match=message):
        require_execution(ExecutionSection(**settings))


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setattr("gradstats.runs.validate.installed", lambda name: None)
    with pytest.raises(ImportError, match=r"ray, which is not installed: pip install 'gradstats\[ray\]'"):
        require_execution(ExecutionSection(executor="ray"))


@pytest.mark.parametrize(
    ("shown", "each", "n_gpus", "seen"),
    [(None, 1, 4, "2"), ("4,5,6,7", 1, 4, "6"), (None, 2, 8, "4,5"), (None, 0, 2, ""), (None, 0, 0, None)],
)
def test_each_worker_sees_gpus_of_its_own(monkeypatch, shown, each, n_gpus, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown or "")
    assert gpus_of_worker(2, each, n_gpus) == seen


def test_an_error_travels_as_itself_or_as_its_sentence():
    for error in (
        KeyError("name"),
        OSError(28, "No space left", "file"),
        WrongSettingsError([WrongSetting(("a",), "is 7")], "x"),
    ):
        again = portable(error)
        assert str(again) == str(error)
        assert isinstance(again, type(error) if not isinstance(error, ValueError) else ValueError)

    class Unpicklable(Exception):
        def __reduce__(self):
            raise TypeError

    again = portable(Unpicklable("the pipe is closed"))
    assert (type(again), str(again)) == (RuntimeError, "Unpicklable: the pipe is closed")


@pytest.fixture
def no_cluster(monkeypatch):
    pytest.importorskip("ray")
    for name, value in (("init", lambda **_: None), ("shutdown", lambda: None), ("is_initialized", lambda: False)):
        monkeypatch.setattr(f"ray.{name}", value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 16.0, "GPU": 2.0})


def test_workers_of_a_machine_with_too_few_gpus_are_an_error_that_names_the_cpus(no_cluster):
    section = ExecutionSection(executor="ray", workers=4)
    message = r"workers is 4 with 1 GPU each, and this machine has 2: .* \(execution.gpus_per_worker: 0\)"
    with pytest.raises(ValueError, match=message), connected(section, "auto"):
        pass
    with connected(section, "cpu") as settled:
        assert settled.gpus_per_worker == 0


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("nonsense", ValueError, "execution.address is 'nonsense': write auto, or host:port"),
        ("127.0.0.1:1", ConnectionError, r"no cluster of ray at 127.0.0.1:1 \(execution.address\)"),
    ],
)
def test_an_address_where_nothing_answers_is_an_error_at_once(no_cluster, monkeypatch, address, kind, message):
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("ray tries for minutes"))
    with pytest.raises(kind, match=message), connected(ExecutionSection(executor="ray", address=address), "auto"):
        pass
