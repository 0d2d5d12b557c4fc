"""Which folder is a run directory, and who may write into it."""

from __future__ import annotations

import pytest
from saved_runs import save_run

from gradstats.config.experiment import Experiment
from gradstats.report.saved_results import (
    enclosing_run,
    is_run_directory,
    refuse_inside_run,
    write_recorded_experiment,
    writing_into,
)
from gradstats.system.lock import LOCK, LockedError, only_writer


@pytest.fixture
def path(tmp_path):
    run = save_run(tmp_path / "run")
    experiment = Experiment.model_validate({"name": "r", "policy": {"name": "p"}, "prompts": {"source": "embedded"}})
    write_recorded_experiment(run / "experiment.yaml", experiment.to_yaml())
    return run


def test_a_run_is_known_by_its_recorded_experiment(path, tmp_path):
    assert is_run_directory(path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "experiment.yaml").write_text((path / "experiment.yaml").read_text().rpartition("#")[0])
    assert not is_run_directory(tmp_path / "mine")
    (tmp_path / "mine" / "rollouts").mkdir()
    (tmp_path / "mine" / "rollouts" / "plan.json").write_text("{}")  # of version 0.1
    assert is_run_directory(tmp_path / "mine")


def test_the_run_that_a_path_lies_in(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "tables").symlink_to(path / "tables")
    assert (
        enclosing_run(path) == enclosing_run(path / "new" / "a.csv") == enclosing_run(tmp_path / "tables" / "a") == path
    )
    assert enclosing_run(tmp_path / "link" / "a.csv") == tmp_path / "link"
    assert enclosing_run(tmp_path / "a.csv") is None


def test_writers_into_a_run_hold_its_lock(path, tmp_path):
    with writing_into(path / "tables" / "new.csv"):
        assert (path / LOCK).exists()
        for target in (path, path / "report.html"):
            with pytest.raises(LockedError, match=f"another process is working on {path}"), writing_into(target):
                pass
    assert not (path / LOCK).exists()
    with writing_into(tmp_path / "new.csv"):
        assert sorted(tmp_path.iterdir()) == [path]


def test_a_run_with_links_is_not_written_into(path, tmp_path):
    (path / "report.html").symlink_to(tmp_path / "thesis.html")
    with pytest.raises(ValueError, match=r"report\.html is a symbolic link"), writing_into(path / "new.csv"):
        pass
    assert not (path / LOCK).exists()


def test_what_belongs_to_a_run_is_refused_and_what_is_new_is_not(path, tmp_path):
    for out in (path, path / "alpha.json", path / "tables"):
        with pytest.raises(FileExistsError, match=f"{out} belongs to the run {path}: choose another path"):
            refuse_inside_run(out)
        refuse_inside_run(out, source=path)
    refuse_inside_run(path / "new.csv")
    refuse_inside_run(tmp_path / "new.csv")
    with only_writer(path), pytest.raises(LockedError, match="another process is working on"):
        refuse_inside_run(path / "new.csv")
