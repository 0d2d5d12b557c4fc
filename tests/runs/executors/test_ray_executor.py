"""Workers of ray: their values, deaths, errors and interrupts, and runs whose files are those of one process."""

import os
import signal
import warnings

import pytest
import yaml
from killed_runs import contents
from parts_of_work import Dies, Fails, KillingExecutor, PressesCtrlC, Tens, Times

from gradstats.config.sections import ExecutionSection
from gradstats.config.validation import WrongSettingsError
from gradstats.runs.executors import ray_executor
from gradstats.runs.executors.ray_executor import RayExecutor
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.sweep import run_sweep
from gradstats.system.files import read_json
from gradstats.system.progress import ProgressReport, progress_bar

pytest.importorskip("ray")
TWO = ExecutionSection(executor="ray", workers=2)


@pytest.fixture(scope="module")
def connected():
    """One small cluster for all tests of this file."""
    executor = RayExecutor(TWO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor.connection.open(TWO)
    yield
    executor.close()


@pytest.fixture
def counted(monkeypatch):
    """Steps and tokens that the bar was advanced by."""
    seen = {"steps": [], "tokens": []}
    monkeypatch.setattr(ProgressReport, "advance", lambda self, steps=1: seen["steps"].append(steps))
    monkeypatch.setattr(ProgressReport, "tokens", lambda self, count: seen["tokens"].append(count))
    return seen


def done(part, folder, n=4, section=TWO):
    """Number → value of the parts, as far as they arrived; the error that ended them, and the executor."""
    executor, found, raised = RayExecutor(section), [], None
    with executor.crew(Tens(folder)) as crew, progress_bar("parts", n, shown=False) as report:
        try:
            found.extend(crew.work(range(n), part, report))
        except BaseException as error:
            raised = error
    return dict(found), raised, executor


@pytest.mark.filterwarnings("ignore:opened")
def test_killed_workers_are_replaced_and_their_parts_done_again(connected, tmp_path, counted, capsys):
    doomed = (0, 1)  # both workers at once

    def part(number):
        return Dies(Times(number), tmp_path, str(number)) if number in doomed else Times(number)

    found, raised, executor = done(part, tmp_path)
    assert raised is None
    assert found == {0: 0, 1: 10, 2: 20, 3: 30}
    assert len(list(tmp_path.glob("died-*"))) == 2
    assert len(list(tmp_path.glob("opened-*"))) >= 3
    # What a worker reported before it died is taken off the bar again; the tokens were processed, and count twice.
    reported_before = sum(steps < 0 for steps in counted["steps"])
    assert (sum(counted["steps"]), sum(counted["tokens"])) == (8, 28 + 7 * reported_before)
    described = executor.describe()
    assert described["deaths"] == 2
    assert sum(described["parts_by_host"].values()) == executor.spent.n_parts == 4
    printed = capsys.readouterr()
    assert "A worker died or was killed" not in printed.out
    said = " ".join(printed.err.split())
    assert "a worker died while it made shard 0: ray starts it again, and the shard is made again" in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:opened")
def test_a_part_that_ends_every_worker_is_an_error_that_names_it(connected, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_executor, "MOST_DEATHS", 2)

    def part(number):
        return Dies(Times(number), tmp_path, "always", times=99) if number == 2 else Times(number)

    found, raised, _ = done(part, tmp_path)
    assert found == {0: 0, 1: 10, 3: 30}
    assert isinstance(raised, RuntimeError)
    assert "shard 2 ended 2 workers, one after another: if their memory ran out" in str(raised)


def test_errors_and_warnings_of_workers_arrive_as_themselves(connected, tmp_path):
    with pytest.warns(UserWarning, match="^opened$"):
        found, raised, _ = done(Fails, tmp_path, 30)
    assert type(raised) is WrongSettingsError
    assert str(raised) == "a.b is 7: choose 8"
    assert raised.wrong[0].path == ("a", "b")
    assert "in a worker:" in raised.__notes__[0]
    assert found == {number: number for number in found}  # what another worker was doing is kept
    assert len(found) < 29  # and nothing more is begun


@pytest.mark.filterwarnings("ignore:opened")
def test_ctrl_c_finishes_what_the_workers_are_doing(connected, tmp_path, capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found, raised, _ = done(lambda number: PressesCtrlC(number, os.getpid()), tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(raised, KeyboardInterrupt)
    assert 0 in found
    assert len(found) <= 2
    assert "stopping when the current shard is finished" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_run_with_killed_workers_leaves_the_files_of_one_process(connected, experiment, finished, tmp_path):
    executor = KillingExecutor(TWO)
    executor.doomed, executor.folder = {("shard", 0), ("shard", 1)}, tmp_path
    result = run_experiment(experiment, tmp_path / "run", progress=False, executor=executor)
    assert len(list(tmp_path.glob("died-*"))) == 2
    assert contents(tmp_path / "run") == contents(finished.run.path)
    execution = result.run.read_manifest()["execution"]
    assert execution["deaths"] == 2
    assert (execution["workers"], execution["threads"]) == (2, 1)
    assert result.run.remarks == finished.run.remarks


@pytest.mark.slow
def test_a_sweep_by_workers_of_ray_leaves_the_files_of_one_process(connected, experiment, tmp_path):
    data = experiment.model_dump() | {"name": "tiny sweep", "vary": {"sampling.temperature": [0.7, 1.0]}}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    one = run_sweep(path, out=tmp_path / "one", progress=False)
    by_ray = ["execution.executor=ray", "execution.workers=2"]
    run_sweep(path, by_ray, out=tmp_path / "several", progress=False)
    assert contents(tmp_path / "several") == contents(tmp_path / "one")
    for cell in one.settings:
        manifest = read_json(tmp_path / "several" / cell / "manifest.json")
        assert manifest["execution"]["executor"] == "ray"
        assert sum(manifest["execution"]["parts_by_host"].values()) > 0


def test_more_gpus_than_there_are_is_an_error(connected, monkeypatch, tmp_path):
    section = ExecutionSection(executor="ray", workers=64, gpus_per_worker=8)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with pytest.raises(ValueError, match="execution.workers is 64 with 8 GPU each, and this machine has"):
        RayExecutor(section).connection.open(section)


@pytest.mark.parametrize(
    ("settings", "device", "given"),
    [
        ({}, "auto", 1),
        ({"ranks_per_worker": 4}, "cuda", 4),
        ({}, "cpu", 0),
        ({"gpus_per_worker": 0}, "auto", 0),
        ({"gpus_per_worker": 2}, "auto", 2),
    ],
)
def test_workers_are_given_gpus_where_there_are_some(connected, monkeypatch, capsys, settings, device, given):
    section, hired = ExecutionSection(executor="ray", workers=2, **settings), []
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 16.0, "GPU": 8.0})
    executor = RayExecutor(section, device)
    with executor.crew(Tens(None)) as crew, progress_bar("parts", 1, shown=False) as report:
        monkeypatch.setattr(crew, "_await", lambda worker: hired.append(worker))
        assert crew._new[1].without_gpu == (given == 0)
        crew._hire(2, report)
    assert len(hired) == 2
    assert executor.describe()["gpus_per_worker"] == given
    said = f"2 workers of ray, each with {settings.get('ranks_per_worker', 1)} CPU and {given or 'no'} GPU"
    assert said in " ".join(capsys.readouterr().err.split())


def test_workers_of_a_machine_with_too_few_gpus_are_an_error_that_names_the_cpus(connected, monkeypatch):
    section = ExecutionSection(executor="ray", workers=4)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 16.0, "GPU": 2.0})
    message = r"workers is 4 with 1 GPU each, and this machine has 2: .* \(execution.gpus_per_worker: 0\)"
    with pytest.raises(ValueError, match=message):
        RayExecutor(section).connection.open(section)
    assert RayExecutor(section, "cpu").connection.open(section, "cpu").gpus_per_worker == 0


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("nonsense", ValueError, "execution.address is 'nonsense': write auto, or host:port"),
        ("127.0.0.1:1", ConnectionError, r"no cluster of ray at 127.0.0.1:1 \(execution.address\)"),
    ],
)
def test_an_address_where_nothing_answers_is_an_error_at_once(monkeypatch, address, kind, message):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("ray tries for minutes"))
    section = ExecutionSection(executor="ray", address=address)
    with pytest.raises(kind, match=message):
        RayExecutor(section).connection.open(section)
