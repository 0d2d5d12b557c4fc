"""``--out``, for every command that has it: what the program did not write is still there afterwards."""

import inspect
import shutil

import pytest
from command_line import run
from small_runs import only_two_figures

import gradstats
from gradstats.analyses import registry
from gradstats.cli import commands
from gradstats.system.lock import only_writer

pytestmark = pytest.mark.filterwarnings("ignore")

_DRAWN = ["--prompts", "PROBLEMS", "--n", "2", "--group-size", "2", "--max-new-tokens", "4"]
#: Every command that has ``--out``, with little work to do.
CASES = {
    "run": ["run", "embedded"],
    "sweep": ["run", "SWEEP"],
    "sample": ["sample", "POLICY", *_DRAWN],
    "measure": ["measure", "POLICY", "--rollouts", "RUN", "--sketch-dim", "16"],
    "variance": ["variance", "RUN", "--estimators", "rloo", "--n-resamples", "20"],
    "alpha": ["alpha", "RUN"],
    "plan": ["plan", "RUN"],
    "curve": ["ask", "RUN", "curve", "asymmetric(loo=True)", "delta=-0.5,0"],
    "success_bins": ["ask", "RUN", "success_bins", "rloo", "--bins", "2"],
    "figures": ["export", "RUN", "--only", "figures", "--formats", "svg"],
    "report": ["report", "RUN"],
    "tables": ["export", "RUN", "--only", "tables"],
    "log": ["log", "RUN"],
}
GIVEN = {"POLICY": "policy", "PROBLEMS": "problems.jsonl", "SWEEP": "sweep.yaml"}
#: Commands that write to a folder of the user's, in which only files of the same names are in their way.
INTO_FOLDERS = {"figures", "tables", "curve", "variance", "success_bins", "alpha", "plan", "log"}
#: Those among them whose folder may be the run itself.
INTO_THEIR_RUN = {"curve"}
#: What computes: nothing of it is called where the target is refused.
WORK = (
    "gradstats.measurement.measurement.read_measurement",
    "gradstats.rollouts.table.read_rollouts",
    "gradstats.runs.pipeline.sample_shards",
    "gradstats.runs.sweep.run_experiment",
    "gradstats.report.page.read_results",
)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def words_of(command, place):
    given = {name: place / file for name, file in GIVEN.items()}
    return [str(given.get(word, word.replace("RUN", str(place / "run")))) for word in CASES[command]]


@pytest.fixture(scope="module")
def place(finished, policy_folder, tmp_path_factory):
    """A run, and beside it a model, and files of a user's."""
    root = tmp_path_factory.mktemp("place")
    shutil.copytree(finished.run.path, root / "run")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    (root / "model" / "model.safetensors").write_bytes(b"weights")
    for name in ("notes", "notes.csv", "notes.md", "notes.tex", "notes.parquet", "length_scaling.svg"):
        (root / name).write_text("years of work")
    (root / "policy").symlink_to(policy_folder)
    shutil.copy(finished.run.experiment.prompts.source, root / "problems.jsonl")
    (root / "sweep.yaml").write_text(finished.run.experiment.to_yaml() + "vary: {variance.seed: [0, 1]}\n")
    return root


@pytest.fixture(autouse=True)
def few_figures(monkeypatch):
    only_two_figures(monkeypatch)


def test_every_command_that_has_an_out_is_tried():
    with_out = {name for name in commands.COMMANDS if "out" in inspect.signature(commands.function_of(name)).parameters}
    asked = {words[2] for words in CASES.values() if words[0] == "ask"}
    assert {words[0] for words in CASES.values()} == {*with_out, *commands.OF_QUESTIONS}
    assert {registry.get(name).saved_by_command for name in asked} == {True, False}  # all others go the same ways


def is_allowed(command, target):
    """Whether a command may write to a target, since it adds files beside those that are there."""
    own = target == "run" and command in INTO_THEIR_RUN
    # length_scaling.svg of the user's is in the way of a figure.
    return own or (command in INTO_FOLDERS and target in (("model",) if command == "figures" else (".", "model")))


TARGETS = (".", "run", "run/rollouts", "run/alpha.json", "model", "notes", "notes.csv", "/dev/null")


@pytest.mark.parametrize(
    ("command", "target"),
    [  # every command with some targets and every target with some commands, and all that may be written to
        (command, target)
        for row, command in enumerate(CASES)
        for column, target in enumerate(TARGETS)
        if (row + column) % 3 == 0 or is_allowed(command, target)
    ],
)
def test_nothing_of_the_users_is_lost(place, monkeypatch, capsys, command, target):
    before, manifest = contents(place), place / "run" / "manifest.json"
    allowed = is_allowed(command, target)
    if not allowed:
        monkeypatch.setattr(gradstats, "load_policy", lambda *_, **__: pytest.fail("work was done"), raising=False)
        for work in WORK:
            monkeypatch.setattr(work, lambda *_, **__: pytest.fail("work was done"))
    code, _, err = run(monkeypatch, capsys, *words_of(command, place), "--out", place / target)
    after = contents(place)
    if command in INTO_THEIR_RUN and target == "run":  # the manifest lists what was added
        after[manifest] = before[manifest]
        manifest.write_bytes(before[manifest])
    assert {path: after.get(path) for path in before} == before
    for path in after.keys() - before.keys():
        path.unlink()
    assert "Traceback" not in err
    if not allowed:
        assert code == 1, err
        assert "gradstats:" in err
        assert str(place / target) in err
        assert not after.keys() - before.keys()


#: Commands whose earlier result is replaced: where to, and what makes another result (None: drawn from saved numbers).
#: Others refuse other settings without a way to overwrite what was made by them.
EARLIER = {
    "sample": ("s.parquet", ["--seed", "1"]),
    "measure": ("m", ["--sketch-seed", "1"]),
    "variance": ("v.csv", ["--confidence-level", "0.5"]),
    "curve": ("c", ["--confidence-level", "0.5"]),
    "success_bins": ("b.csv", ["--confidence-level", "0.5"]),
    "figures": ("f", None),
    "report": ("r.html", None),
    "tables": ("t", None),
}


@pytest.mark.parametrize("command", EARLIER)
def test_an_earlier_result_is_replaced_and_one_of_other_settings_on_request_only(place, monkeypatch, capsys, command):
    name, other = EARLIER[command]
    words = [*words_of(command, place), "--out", place / name]
    before = contents(place)
    for _ in range(2):
        code, _, err = run(monkeypatch, capsys, *words)
        assert code == 0, err
    first = contents(place)
    assert before.items() <= first.items()
    assert len(first) > len(before)
    if other is None:
        return
    code, _, err = run(monkeypatch, capsys, *words, *other)
    assert code == 1
    assert "holds a finished result with " in err
    assert "replace it with --overwrite" in err
    assert contents(place) == first
    code, _, err = run(monkeypatch, capsys, *words, *other, "--overwrite")
    assert code == 0, err
    assert contents(place) != first


#: Commands that write into the run directory itself, and one file that each writes.
INTO_THE_RUN = {
    "run": (["run", "RUN/experiment.yaml", "--out", "RUN", "--trust"], "variance.csv"),
    "regrade": (["regrade", "RUN", "--trust"], "variance.csv"),
    "report": (["report", "RUN"], "report.html"),
    "figures": (["export", "RUN", "--only", "figures"], "figures/length_scaling.png"),
    "curve": (
        ["ask", "RUN", "curve", "asymmetric(loo=True)", "delta=-0.5,0"],
        "tables/curve_asymmetric_loo_true_delta.csv",
    ),
    "tables": (["export", "RUN", "--only", "tables"], "tables/variance.tex"),
}
#: Commands that write nothing, or only where --out says.
WRITE_ELSEWHERE = {"init", "sample", "measure", "variance", "alpha", "plan", "log"}
READ = {"check", "list", "certify"}


def test_every_command_is_known_to_write_or_not_to():
    written = {words[0] for words, _ in INTO_THE_RUN.values()}
    assert set(commands.COMMANDS) == {*written, *WRITE_ELSEWHERE, *READ}


@pytest.mark.parametrize(
    "words",
    [words for words, _ in INTO_THE_RUN.values()]
    + [[*CASES[one], "--out", "RUN/mine"] for one in ("variance", "report")],
)
def test_a_run_on_which_another_process_works_is_not_written_into(place, monkeypatch, capsys, words):
    path = place / "run"
    with only_writer(path):
        before = contents(place)
        code, _, err = run(monkeypatch, capsys, *(word.replace("RUN", str(path)) for word in words))
        assert code == 1
        assert f"another process is working on {path} (process " in " ".join(err.split())
        assert contents(place) == before


def test_reading_needs_no_lock(place, tmp_path, monkeypatch, capsys):
    with only_writer(place / "run"):
        for words in (["alpha"], ["report", "--out", tmp_path / "r.html"], ["variance", "--out", tmp_path / "v.csv"]):
            code, _, err = run(monkeypatch, capsys, words[0], place / "run", *words[1:])
            assert code == 0, err


@pytest.mark.parametrize("command", ["report", "figures", "curve"])
def test_files_of_another_run_are_not_replaced(finished, tmp_path, monkeypatch, capsys, command):
    one, other = (shutil.copytree(finished.run.path, tmp_path / name) for name in ("one", "other"))
    targets = {"report": other / "report.html", "figures": other / "figures", "curve": other}
    before = contents(other)
    words = [word.replace("RUN", str(one)) for word in CASES[command]]
    code, _, err = run(monkeypatch, capsys, *words, "--out", targets[command])
    assert code == 1
    assert f"{targets[command]} belongs to the run {other}" in err or f"{other} is another run than {one}" in err
    assert contents(other) == before


@pytest.mark.parametrize(
    ("command", "link"), [(command, link) for command, (_, name) in INTO_THE_RUN.items() for link in (name, ".lock")]
)
def test_a_link_in_a_run_is_not_followed(finished, tmp_path, monkeypatch, capsys, command, link):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    (path / link).unlink(missing_ok=True)
    (path / link).symlink_to(thesis)
    before = contents(path)
    code, _, err = run(monkeypatch, capsys, *(word.replace("RUN", str(path)) for word in INTO_THE_RUN[command][0]))
    assert code == 1
    assert f"{link} is a symbolic link" in err.replace("\n", " ")
    assert "Traceback" not in err
    assert contents(path) == before
    assert thesis.read_text() == "years of work"


def test_the_measurement_of_a_run_may_be_on_another_disk(finished, tmp_path, monkeypatch, capsys):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    (path / "measurement").rename(tmp_path / "disk")
    (path / "measurement").symlink_to(tmp_path / "disk")
    for command in ("regrade", "report", "figures"):
        words = INTO_THE_RUN[command][0]
        code, _, err = run(monkeypatch, capsys, *(word.replace("RUN", str(path)) for word in words))
        assert code == 0, err
    assert (path / "measurement").is_symlink()


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_page_of_the_users_in_a_run_is_left_alone(finished, tmp_path, monkeypatch, capsys, command):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    (path / "report.html").write_text("<p>years of work")
    before = (path / "manifest.json").read_bytes()
    code, _, err = run(monkeypatch, capsys, *(word.replace("RUN", str(path)) for word in INTO_THE_RUN[command][0]))
    assert code == 1
    assert "is not a report that gradstats wrote" in err.replace("\n", " ")
    assert (path / "report.html").read_text() == "<p>years of work"
    assert (path / "manifest.json").read_bytes() == before
