"""The experiment file: its schema, and what comes with the project."""

import itertools
import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from command_line import run
from programs import program

import gradstats
from gradstats.config.experiment import (
    VARY,
    Experiment,
    as_yaml,
    experiment_schema,
    experiment_text,
    load_experiment,
    read_yaml,
    shipped_experiments,
)
from gradstats.config.sections import DEFAULT_ESTIMATORS
from gradstats.config.trust import API_KEY_ENV, BASE_URL_ENV
from gradstats.config.validation import DECIDED, Section, WrongSettingsError
from gradstats.runs.tracking import REMEDIES
from gradstats.system.files import to_json

SCHEMA = Path(__file__).parents[2] / "experiments" / "experiment.schema.json"


def test_the_schema_beside_the_experiments_is_up_to_date():
    assert SCHEMA.read_text(encoding="utf-8") == to_json(experiment_schema()) + "\n", (
        "write it again: gradstats list schema > experiments/experiment.schema.json"
    )


def test_the_schema_knows_every_setting_its_help_and_its_range():
    schema = experiment_schema()
    full = {name for name in schema["properties"] if "." in name}
    assert set(schema["properties"]) - full == {*Experiment.model_fields, VARY}
    assert full == {*Experiment.settings_that(*DECIDED)}
    assert schema["properties"]["sampling.group_size"] == {"$ref": "#/$defs/SamplingSection/properties/group_size"}
    assert schema["required"] == ["policy", "prompts"]
    sampling = schema["$defs"]["SamplingSection"]
    assert sampling["additionalProperties"] is False
    group_size = {"default": 8, "description": "completions of each prompt.", "minimum": 1, "type": "integer"}
    assert sampling["properties"]["group_size"] == group_size | {"title": "Group Size"}


def test_every_shipped_experiment_names_the_schema():
    for path in shipped_experiments().values():
        assert path.read_text(encoding="utf-8").startswith(f"# yaml-language-server: $schema={SCHEMA.name}\n"), path
        assert (path.parent / SCHEMA.name).exists()


def test_an_experiment_reads_back_as_it_was_written(tmp_path):
    experiment = load_experiment("embedded_tokens", ["variance.group_size=[2, 4]", "variance.n_resamples=16"])
    assert (experiment.variance.group_size, experiment.variance.n_resamples) == ([2, 4], 16)
    (tmp_path / "e.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    assert load_experiment(tmp_path / "e.yaml") == experiment


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a\\\\b", "C:run", ".hidden", "..", "", " ", "a\\x1b[31m", "a\\u202e"]
)
def test_a_run_is_named_for_one_folder(tmp_path, name):
    (tmp_path / "e.yaml").write_text(f'name: "{name}"\npolicy: {{name: x}}\nprompts: {{source: y}}\n')
    with pytest.raises(ValueError, match=r"e\.yaml has wrong settings: name.*: it must be a name for a folder: not"):
        load_experiment(tmp_path / "e.yaml")


def test_the_command_prints_the_schema(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "list", "schema")
    assert code == 0
    assert json.loads(out) == experiment_schema()


CHOSEN = {
    "description": "Two: α & β # not a comment",
    "policy": {"name": "embedded"},
    "prompts": {"source": "mine.py:problems", "settings": {"steps": 3}},
    "sampling": {"group_size": 4, "reward": {"math": 1.0, "mine.py:form": 0.1}},
    "figures": {"venue": "acl"},
}


def test_a_new_file_chooses_on_few_lines_and_lists_the_rest_behind_a_sign_below(tmp_path):
    """Any commented line can be uncommented as it is, so all of them can."""
    text = experiment_text("mine.yaml", CHOSEN)
    path, signs = tmp_path / "mine.yaml", re.compile(r"^# (?=[\w.]+: )", re.MULTILINE)
    for written in (text, signs.sub("", text, count=1), signs.sub("", text)):
        path.write_text(written, encoding="utf-8")
        assert load_experiment(path) == Experiment(name="mine", **CHOSEN)
    above, _, below = text.partition("\n\n")
    assert "gradstats run mine.yaml" in above
    assert (yaml.safe_load(above), yaml.safe_load(below)) == (CHOSEN, None)
    listed, sections = yaml.safe_load(signs.sub("", below)), {**Experiment.model_fields}
    for name, field in Experiment.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            del sections[name]
            keys = {f"{name}.{key}" for key in field.annotation.model_fields.keys() - CHOSEN.get(name, {}).keys()}
            assert keys == {one for one in listed if one.startswith(f"{name}.")}
    assert sections.keys() - {"name", "description"} == {one for one in listed if "." not in one}
    assert listed["variance.estimators"] == list(DEFAULT_ESTIMATORS)
    settings = [line for line in text.splitlines() if re.match(r"(# |  )?[\w.]+: \S", line)]
    assert len(settings) == len(listed) + 7
    assert all(re.search(r"  # \S.{3,75}", line) for line in settings)
    assert any(line.endswith("# how gradients are computed: auto, ghost, vmap, loop") for line in settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampling.group_size: 4", None),
        ("sampling:\nsampling.group_size: 4", None),
        ("sampling: {seed: 1, group_size: 4}", None),
        ("sampling: {group_size: 4}\nsampling.group_size: 5", r"e\.yaml gives sampling\.group_size twice: give it"),
        ("sampling: 4\nsampling.group_size: 4", r"e\.yaml gives sampling\.group_size twice"),
        ("sampling.group_sise: 4", "sampling has no setting 'group_sise': did you mean 'group_size'"),
        ("samplin.group_size: 4", "an experiment has no setting 'samplin': did you mean 'sampling'"),
    ],
)
def test_a_setting_may_stand_by_its_full_name(tmp_path, text, message):
    (tmp_path / "e.yaml").write_text(f"policy: {{name: x}}\nprompts.source: y\n{text}\n")
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        assert load_experiment(tmp_path / "e.yaml").sampling.group_size == 4


def test_wrong_settings_are_not_written():
    with pytest.raises(WrongSettingsError, match="group_size is 0"):
        experiment_text("mine.yaml", CHOSEN | {"sampling": {"group_size": 0}})


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (r"\n+", r"\n+"), ([1, "a: b"], "[1, 'a: b']"), (1.0, "1.0")]
)
def test_values_are_written_on_one_line(value, text):
    assert as_yaml(value) == text
    assert yaml.safe_load(text) == value


BOMB = "\n".join(["a: &a [1, 1]", *(f"{b}: &{b} [*{a}, *{a}]" for a, b in itertools.pairwise("abcdefghijklmnopqr"))])


def test_aliases_and_merges_of_reasonable_size_are_read():
    assert read_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, b: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 2}}
    assert read_yaml("") is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' is given 2 times: give it once"),
        ("s: {x: 1, y: 2, x: 3}", "the key 'x' is given 2 times"),
        (BOMB, "its aliases expand to more than 100,000 values"),
        ("a: &a [*a]", "its aliases expand to more than"),
        ("[" * 5000, "nested too deeply"),
        ("a: 2026-02-31", "a value cannot be read"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: [", "expected"),
    ],
)
def test_what_is_refused_is_said(text, sentence):
    with pytest.raises(yaml.YAMLError, match=sentence):
        read_yaml(text)


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date():
    assert program("docs/experiment_page.py").page() == (DOCS / "experiment_file.md").read_text(encoding="utf-8"), (
        "run: python docs/experiment_page.py"
    )


#: Given by torchrun to each rank, or by us to a process of ours.
_NOT_OF_USERS = {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK"}


def test_the_page_lists_every_environment_variable_that_is_read():
    sources = [path.read_text(encoding="utf-8") for path in Path(gradstats.__file__).parent.rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"""environ(?:\.get\(|\[)["'](\w+)""", text)}
    read |= {name for text in sources for name in re.findall(r"""["'](\w+)["'] (?:not )?in os\.environ""", text)}
    read |= {name for text in sources for name in re.findall(r"GRADSTATS_[A-Z]+", text)}
    read |= {API_KEY_ENV, BASE_URL_ENV, *(f"{one.upper()}_PROJECT" for one in REMEDIES)}
    assert {"GRADSTATS_TRACEBACK", "GRADSTATS_ESTIMATOR", "RAY_ADDRESS", "COLUMNS"} <= read
    section = (DOCS / "experiment_file.md").read_text(encoding="utf-8").partition("## Environment variables")[2]
    assert {name for name in read - _NOT_OF_USERS if f"`{name}`" not in section} == set()
    assert len(section.split()) <= 80


@pytest.mark.parametrize(("text", "base"), [("1:30", 60), ("-1:30:00", 60), ("1:30.5", 60), ("010", 8), ("-0_17", 8)])
def test_numbers_to_other_bases_are_refused(text, base, tmp_path):
    """YAML 1.1 reads 1:30 as 90 and 010 as 8, which nobody means."""
    sentence = rf"{text} would be read as a number to base {base}: write it as a decimal, or text in quotes"
    for within in (text, f"[2, {text}]", f"{{a: {{b: {text}}}}}"):
        with pytest.raises(yaml.YAMLError, match=sentence):
            read_yaml(within)
    assert read_yaml(f"'{text}'") == text
    with pytest.raises(ValueError, match=f"the value of prompts.n is '{text}', {sentence}"):
        load_experiment("embedded", [f"prompts.n={text}"])
    path = tmp_path / "x.yaml"
    path.write_text(f"policy: {{name: embedded}}\nprompts: {{source: embedded, n: {text}}}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        load_experiment(str(path))


def test_other_numbers_are_read_as_they_are():
    numbers = [0, 12, -3, 31, 1000, 0.5, 12.5, 1500.0, float("inf")]
    assert read_yaml("[0, 12, -3, 0x1F, 1_000, 0.5, 012.5, 1.5e+3, .inf]") == numbers
