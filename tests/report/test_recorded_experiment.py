"""A run's experiment.yaml records what was run; a change of it is noticed."""

from __future__ import annotations

import pytest

from gradstats.report.saved_results import is_recorded_experiment, read_recorded_experiment, write_recorded_experiment

SETTINGS = "name: mine\npolicy:\n  name: embedded\nprompts:\n  source: embedded\n  seed: 3\n"


def test_it_is_read_back_and_a_change_is_refused(tmp_path):
    path = tmp_path / "experiment.yaml"
    write_recorded_experiment(path, SETTINGS)
    assert is_recorded_experiment(path)
    assert read_recorded_experiment(path).prompts.seed == 3
    text = path.read_bytes()
    renamed = text.replace(b"sha256", b"sha257")
    for changed in (text.replace(b"seed: 3", b"seed: 7"), text.replace(b"name", b"\xffame", 1), renamed):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="has changed since it was written"):
            read_recorded_experiment(path)


def test_one_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(SETTINGS)
    assert not is_recorded_experiment(path)
    assert read_recorded_experiment(path).prompts.seed == 3
