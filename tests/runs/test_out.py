"""``--out``, for every command that has it: what the program did not write is still there afterwards."""

from __future__ import annotations

import shutil

import pytest
from command_line import run

COMMANDS = {
    "sample": ["sample", "absent", "--prompts", "embedded"],
    "measure": ["measure", "absent", "--rollouts", "RUN"],
    "variance": ["variance", "RUN", "--n-resamples", "20"],
    "ratios": ["ratios", "RUN"],
    "report": ["report", "RUN"],
    "figures": ["figures", "RUN", "--formats", "svg"],
    "profile": ["profile", "RUN"],
    "run": ["run", "embedded"],
}
#: Where a folder is what the command writes: only files of the same names are in its way.
INTO_FOLDERS = {"figures"}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def place(finished, tmp_path_factory):
    """A run, and beside it a model, and files of a user's."""
    root = tmp_path_factory.mktemp("place")
    shutil.copytree(finished.run.path, root / "run")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    (root / "model" / "model.safetensors").write_bytes(b"weights")
    for name in ("notes", "notes.csv", "notes.md", "notes.tex", "notes.parquet", "length_scaling.svg"):
        (root / name).write_text("years of work")
    return root


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("command", "target"),
    [
        (command, target)
        for command in COMMANDS
        for target in (".", "run", "run/rollouts", "run/alpha.json", "model", "notes", "notes.csv", "/dev/null")
        # The files of a profile would have names of their own beside the device.
        if (command, target) != ("profile", "/dev/null")
    ],
)
def test_nothing_of_the_users_is_lost(place, monkeypatch, capsys, command, target):
    before = contents(place)
    words = [word.replace("RUN", str(place / "run")) for word in COMMANDS[command]]
    out = place / target
    code, _, err = run(monkeypatch, capsys, *words, "--out", out)
    after = contents(place)
    assert {path: after.get(path) for path in before} == before
    for path in after.keys() - before.keys():
        path.unlink()
    if command not in ("profile", *INTO_FOLDERS):
        assert code == 1, err
        assert not after.keys() - before.keys()
        assert "Traceback" not in err
        assert "gradstats:" in err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("command", "name"), [("variance", "v.csv"), ("report", "r.html"), ("profile", "p"), ("figures", "f")]
)
def test_an_earlier_result_is_replaced_and_a_foreign_one_beside_it_is_not(place, monkeypatch, capsys, command, name):
    words = [word.replace("RUN", str(place / "run")) for word in COMMANDS[command]]
    for _ in range(2):
        code, _, err = run(monkeypatch, capsys, *words, "--out", place / name)
        assert code == 0, err


@pytest.mark.filterwarnings("ignore")
def test_a_result_of_other_settings_is_replaced_on_request_only(place, monkeypatch, capsys):
    words = ["variance", place / "run", "--n-resamples", "20", "--out", place / "other.csv", "--estimators", "rloo"]
    assert run(monkeypatch, capsys, *words)[0] == 0
    first = (place / "other.csv").read_bytes()
    code, _, err = run(monkeypatch, capsys, *words, "reinforce")
    assert (code, (place / "other.csv").read_bytes()) == (1, first)
    assert "holds a finished result with other numbers: replace it with --overwrite" in err
    assert run(monkeypatch, capsys, *words, "reinforce", "--overwrite")[0] == 0
    assert (place / "other.csv").read_bytes() != first


#: Commands that write into the run directory itself, and one file that each writes.
INTO_THE_RUN = {
    "run": (["run", "RUN/experiment.yaml", "--out", "RUN", "--trust"], "variance.csv"),
    "regrade": (["regrade", "RUN", "--trust"], "variance.csv"),
    "report": (["report", "RUN"], "report.html"),
    "figures": (["figures", "RUN"], "figures/length_scaling.png"),
    "tokens": (["tokens", "RUN"], "proxy_quality.csv"),
    "curve": (["curve", "RUN", "asymmetric(loo=True)", "delta=-0.5,0"], "tables/curve_asymmetric_loo_true_delta.csv"),
    "optimal-baselines": (["optimal-baselines", "RUN"], "tables/optimal_baselines.json"),
}


@pytest.mark.filterwarnings("ignore")
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


@pytest.mark.filterwarnings("ignore")
def test_the_measurement_of_a_run_may_be_on_another_disk(finished, tmp_path, monkeypatch, capsys):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    (path / "measurement").rename(tmp_path / "disk")
    (path / "measurement").symlink_to(tmp_path / "disk")
    for command in ("regrade", "report", "figures"):
        words = INTO_THE_RUN[command][0]
        code, _, err = run(monkeypatch, capsys, *(word.replace("RUN", str(path)) for word in words))
        assert code == 0, err
    assert (path / "measurement").is_symlink()


@pytest.mark.filterwarnings("ignore")
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
