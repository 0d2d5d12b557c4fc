"""The experiment file: its schema, and what comes with the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run

from gradstats.config.experiment import VARY, Experiment, experiment_schema, load_experiment, shipped_experiments
from gradstats.system.files import to_json

SCHEMA = Path(__file__).parents[2] / "experiments" / "experiment.schema.json"


def test_the_schema_beside_the_experiments_is_up_to_date():
    assert SCHEMA.read_text(encoding="utf-8") == to_json(experiment_schema()) + "\n", (
        "write it again: gradstats list schema > experiments/experiment.schema.json"
    )


def test_the_schema_knows_every_setting_its_help_and_its_range():
    schema = experiment_schema()
    assert set(schema["properties"]) == {*Experiment.model_fields, VARY}
    assert schema["required"] == ["policy", "prompts"]
    sampling = schema["$defs"]["SamplingSection"]
    assert sampling["additionalProperties"] is False
    assert sampling["properties"]["group_size"] == {
        "default": 8,
        "description": "completions of each prompt.",
        "minimum": 1,
        "title": "Group Size",
        "type": "integer",
    }


def test_every_shipped_experiment_names_the_schema():
    for path in shipped_experiments().values():
        assert path.read_text(encoding="utf-8").startswith(f"# yaml-language-server: $schema={SCHEMA.name}\n"), path
        assert (path.parent / SCHEMA.name).exists()


def test_an_experiment_reads_back_as_it_was_written(tmp_path):
    experiment = load_experiment("embedded_tokens", ["variance.group_size=[2, 4]", "variance.n_resamples=16"])
    assert (experiment.variance.group_size, experiment.variance.n_resamples) == ([2, 4], 16)
    (tmp_path / "e.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    assert load_experiment(tmp_path / "e.yaml") == experiment


def test_a_misspelt_setting_of_a_file_gets_a_hint(tmp_path):
    (tmp_path / "e.yaml").write_text("policy: {name: x}\nprompts: {source: y}\nsampling: {group_siz: 3}\n")
    with pytest.raises(ValueError, match=r"e\.yaml has wrong settings: sampling has no setting 'group_siz': did you m"):
        load_experiment(tmp_path / "e.yaml")


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a\\\\b", "C:run", ".hidden", "..", "", " ", "a\\x1b[31m", "a\\u202e"]
)
def test_a_run_is_named_for_one_folder(tmp_path, name):
    (tmp_path / "e.yaml").write_text(f'name: "{name}"\npolicy: {{name: x}}\nprompts: {{source: y}}\n')
    with pytest.raises(
        ValueError, match=r"e\.yaml has wrong settings: name.*: it must be a name for a folder: not empty"
    ):
        load_experiment(tmp_path / "e.yaml")


def test_the_command_prints_the_schema(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "list", "schema")
    assert code == 0
    assert json.loads(out) == experiment_schema()
