"""One declaration of each option: sections, Python interface, command line and experiment files agree.

They agree on names and defaults, and what a docstring says of an argument begins as the section's help does.
"""

import contextlib
import importlib
import inspect
import pkgutil
import re

import numpy as np
import pytest
from command_line import run
from pydantic_core import PydanticUndefined

import gradstats
from gradstats.config.experiment import Experiment, experiment_schema, load_experiment
from gradstats.config.options import FitMethod, IntervalMethod
from gradstats.config.sections import (
    ExecutionSection,
    FiguresSection,
    LengthScalingSection,
    MeasurementSection,
    PolicySection,
    PromptsSection,
    SamplingSection,
    ValuesSection,
    VarianceSection,
)
from gradstats.stats.length_scaling.alpha import METHODS

FUNCTIONS = {
    PolicySection: gradstats.load_policy,
    PromptsSection: gradstats.load_prompts,
    SamplingSection: gradstats.sample,
    MeasurementSection: gradstats.measure,
    LengthScalingSection: gradstats.alpha_report,
    VarianceSection: gradstats.compare,
}

#: Arguments of a function that its section does not have, or calls otherwise, and why.
ONLY_IN_PYTHON = {
    (PolicySection, "name_or_path"): "a file calls it name: it names a path too",
    (PolicySection, "progress"): "says nothing of what is computed",
    (PolicySection, "sharded"): "a file says in how many parts: execution.ranks_per_worker",
    (PromptsSection, "rng"): "a file calls it seed: it holds numbers only",
    (SamplingSection, "rng"): "a file calls it seed: it holds numbers only",
    (VarianceSection, "blocks"): "another question: gradstats ask RUN variance_by_block",
    (VarianceSection, "rng"): "a file calls it seed: it holds numbers only",
    (VarianceSection, "unavailable"): "a run gives what cannot be computed a row of NaN",
    (SamplingSection, "policy"): "the policy has its own section",
    (SamplingSection, "problems"): "the problems have their own section",
    (SamplingSection, "keep_in"): "a run directory and the command line choose the folder",
    (SamplingSection, "progress"): "says nothing of what is computed",
    (MeasurementSection, "policy"): "the policy has its own section",
    (MeasurementSection, "rollouts"): "they come from the sampling step",
    (MeasurementSection, "token_weights"): "arrays, one a completion",
    (MeasurementSection, "reference_policy"): "a model in memory",
    (MeasurementSection, "allow_policy_mismatch"): "a run measures what it has drawn",
    (MeasurementSection, "keep_in"): "a run directory and the command line choose the folder",
    (MeasurementSection, "progress"): "says nothing of what is computed",
    (LengthScalingSection, "measured"): "it comes from the measuring step",
    (LengthScalingSection, "lengths"): "arrays, instead of a measurement",
    (LengthScalingSection, "sq_norms"): "arrays, instead of a measurement",
    (LengthScalingSection, "groups"): "arrays, instead of a measurement",
    (LengthScalingSection, "truncated"): "arrays, instead of a measurement",
    (LengthScalingSection, "method"): "a run reports least squares, whose diagnostics name the other fits",
    (LengthScalingSection, "interval"): "goes with method",
    (VarianceSection, "measured_or_batch"): "it comes from the measuring step",
    (VarianceSection, "scores"): "arrays, for a batch that was not measured",
    (VarianceSection, "scores_are_sketches"): "goes with scores",
    (VarianceSection, "fields"): "arrays, for estimators that need more than rewards",
}
#: Fields of a section that its function does not have, and why.
ONLY_IN_SECTION = {
    (PolicySection, "name"): "the function takes paths, and calls it name_or_path",
    (PromptsSection, "seed"): "the function calls it rng",
    (SamplingSection, "seed"): "the function calls it rng",
    (VarianceSection, "seed"): "the function takes generators, and calls it rng",
    (MeasurementSection, "n_prompts"): "a run samples and scores all prompts, and measures some",
    (MeasurementSection, "token_dtype"): "an argument of Measurement.save",
    (LengthScalingSection, "published"): "of the figure",
    (VarianceSection, "confidence_level"): "an argument of VarianceComparison.to_frame",
}
#: Defaults that differ, and why.
OTHER_DEFAULT = {
    (SamplingSection, "template_options"): "Python: None stands for an empty mapping, which must not be shared",
    (SamplingSection, "sampler_options"): "Python: None stands for an empty mapping, which must not be shared",
    (PromptsSection, "settings"): "Python: keyword arguments",
    (VarianceSection, "estimators"): "Python: no default, the labels are what is asked",
}


#: Fields that a function calls otherwise.
CALLED = {"seed": "rng", "name": "name_or_path"}


#: Fields of the section of state values → the function and its argument; ``fitted`` chooses whether a head is fitted.
OF_VALUES = {
    "n_folds": (gradstats.values.fit_values, "n_folds"),
    "tokens_per_completion": (gradstats.values.fit_values, "tokens_per_completion"),
    "monte_carlo": (gradstats.values.monte_carlo_values, "k"),
    "steps": (gradstats.values.monte_carlo_values, "steps"),
    "seed": (gradstats.values.monte_carlo_values, "rng"),
    "batch_size": (gradstats.values.monte_carlo_values, "batch_size"),
}


def test_the_functions_of_state_values_have_the_defaults_of_the_section():
    assert set(ValuesSection.model_fields) == {"fitted", *OF_VALUES}
    for name, (function, argument) in OF_VALUES.items():
        python = inspect.signature(function).parameters[argument].default
        assert python == default(ValuesSection, name) or name == "monte_carlo", name  # none are drawn by default


def default(section, name):
    return section.model_fields[name].get_default(call_default_factory=True)


def described_arguments(function):
    """Argument → what the docstring says of it."""
    section = re.split(r"\n\n(?=\S)", str(inspect.getdoc(function)).partition("Args:\n")[2])[0]
    return dict(re.findall(r"^    \**(\w+): (.*(?:\n      .*)*)", section, re.MULTILINE))


def plain(text):
    """Without markup, quotes and line breaks."""
    text = re.sub(r":\w+:`~?(.*?)`", r"\1", text)
    return " ".join(re.sub(r"[`\"]", "", text).split())


@pytest.mark.parametrize("section", FUNCTIONS)
def test_a_function_has_the_names_and_defaults_of_its_section(section):
    arguments = inspect.signature(FUNCTIONS[section]).parameters
    fields = section.model_fields
    for left, right, allowed in ((arguments, fields, ONLY_IN_PYTHON), (fields, arguments, ONLY_IN_SECTION)):
        assert left.keys() - right.keys() == {name for owner, name in allowed if owner is section}
    for name in fields.keys() & arguments:
        python, declared = arguments[name].default, default(section, name)
        python = PydanticUndefined if python is inspect.Parameter.empty else python
        assert (python != declared) == ((section, name) in OTHER_DEFAULT), (section, name, python, declared)
    if "seed" in fields:
        assert default(section, "seed") == arguments["rng"].default


@pytest.mark.parametrize("section", FUNCTIONS)
def test_a_docstring_says_what_the_help_of_the_section_says(section):
    described = described_arguments(FUNCTIONS[section])
    assert described
    for name, field in section.model_fields.items():
        if (section, name) in ONLY_IN_SECTION and name not in CALLED:
            continue
        python, declared = plain(described[CALLED.get(name, name)]), plain(field.description or "")
        clauses = re.split(r", as in |; |\. |\.$", declared)
        assert python.startswith(clauses[0]), (section, name, python)
        for clause in clauses:
            assert "by default" not in clause or clause in python, (section, name, clause)


def test_the_methods_of_the_fit_are_those_that_there_are():
    assert set(FitMethod.__args__) == set(METHODS)
    assert set(IntervalMethod.__args__) == {
        name for method in METHODS.values() for name in method(*THREE_POINTS).intervals
    }


def test_an_experiment_file_has_the_names_and_defaults_of_the_sections(tmp_path):
    (tmp_path / "e.yaml").write_text("policy: {name: embedded}\nprompts: {source: embedded}\n")
    experiment = load_experiment(tmp_path / "e.yaml")
    schema = experiment_schema()
    others = {"name", "description", "behaviour_policy", "reference_policy", "analyses", "tracking"}
    sections = {name: field.annotation for name, field in Experiment.model_fields.items() if name not in others}
    assert set(sections.values()) == {*FUNCTIONS, ExecutionSection, FiguresSection, ValuesSection}
    for name, section in sections.items():
        required = {"policy": {"name": "embedded"}, "prompts": {"source": "embedded"}}.get(name, {})
        assert getattr(experiment, name) == section(**required)
        entries = schema["$defs"][section.__name__]["properties"]
        assert entries.keys() == section.model_fields.keys()
        for field, entry in entries.items():
            assert entry["description"] == section.model_fields[field].description
            declared = default(section, field)
            assert entry.get("default", declared) == declared


#: The commands that take a section, the function that they call, and words without which they do not begin.
COMMANDS = {
    "sample": (SamplingSection, "gradstats.sample", ("embedded", "--prompts", "embedded", "--n", 2, "--out", "o")),
    "measure": (MeasurementSection, "gradstats.measure", ("embedded", "--rollouts", "r", "--out", "o")),
    "alpha": (LengthScalingSection, "gradstats.analyses.declaration.Analysis.call_with_source", ("gloeckle2026",)),
    "variance": (VarianceSection, "gradstats.analyses.declaration.Analysis.call_with_source", ("m",)),
}


#: Fields of a section that its command does not have, and why.
NOT_ON_THE_COMMAND_LINE = {("alpha", "published"): "the command draws nothing"}
#: What a command passes beside options.
NOT_OPTIONS = {"progress", "keep_in", "policy", "problems", "rollouts"}

POLICY_WORDS = {"sample": COMMANDS["sample"][2], "measure": COMMANDS["measure"][2], "check": ("embedded",)}
#: Lengths, squared norms and prompts of a fit.
THREE_POINTS = (np.log([1.0, 2.0, 4.0, 8.0]), np.log([1.0, 3.0, 5.0, 9.0]), np.array([0, 0, 1, 1]))


def recorded(monkeypatch, capsys, tmp_path, target, command, *words):
    """The keyword arguments with which a command calls a function."""
    monkeypatch.chdir(tmp_path)
    seen = {}

    def record(*_, **options):
        seen.update(options)
        raise ValueError("recorded")

    monkeypatch.setattr(target, record)
    code, _, err = run(monkeypatch, capsys, command, *words)
    assert (code, "recorded" in err) == (1, True), err
    return seen


@pytest.fixture(scope="module")
def imported():
    """Modules that import what `called` replaces, which would keep the replacement if they were first imported then."""
    for one in pkgutil.walk_packages(gradstats.__path__, "gradstats."):
        if not one.name.startswith(("gradstats.integrations", "gradstats.__main__")):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(one.name)


@pytest.fixture
def called(imported, monkeypatch, tmp_path, unchecked):
    """Runs a command up to the function that does the work; returns what that was called with."""
    monkeypatch.setattr("gradstats.load_policy", lambda *_, **__: None)
    monkeypatch.setattr("gradstats.load_prompts", lambda *_, **__: [])
    monkeypatch.setattr("gradstats.rollouts.table.read_rollouts", lambda path, **_: path)
    monkeypatch.setattr("gradstats.measurement.measurement.read_measurement", lambda path, **_: None)
    monkeypatch.setattr("gradstats.measurement.disk_size.measured_bytes", lambda *_: 0)
    monkeypatch.setattr("gradstats.gradients.parameters.n_block_sketches", lambda *_: 0)

    def call(capsys, command, *words):
        _, target, needed = COMMANDS[command]
        return recorded(monkeypatch, capsys, tmp_path, target, command, *needed, *words)

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_and_defaults_of_its_section(monkeypatch, capsys, called, command):
    section = COMMANDS[command][0]
    seen = called(capsys, command)
    expected = section().arguments()
    assert {name: seen[name] for name in expected} == expected
    signature = inspect.signature(FUNCTIONS[section]).parameters if section in FUNCTIONS else {}
    for name in signature.keys() & seen.keys() - section.model_fields.keys() - NOT_OPTIONS:
        assert seen[name] == signature[name].default, (command, name)
    _, printed, _ = run(monkeypatch, capsys, command, "--help")
    for name in section.model_fields:
        assert (f"--{name.replace('_', '-')}" in printed) == ((command, name) not in NOT_ON_THE_COMMAND_LINE)


def test_export_has_the_options_of_figures(monkeypatch, capsys):
    _, printed, _ = run(monkeypatch, capsys, "export", "--help")
    assert all(f"--{name}" in printed for name in FiguresSection.model_fields)


@pytest.mark.parametrize("command", ["sample", "measure", "check"])
def test_a_command_loads_the_policy_with_the_defaults_of_its_section(monkeypatch, capsys, tmp_path, command):
    monkeypatch.setattr("gradstats.rollouts.table.read_rollouts", lambda path, **_: path)
    loaded = recorded(monkeypatch, capsys, tmp_path, "gradstats.load_policy", command, *POLICY_WORDS[command])
    assert loaded.pop("progress", True)
    assert loaded == PolicySection(name="embedded").arguments()
    words = (*POLICY_WORDS[command], "--policy-settings", "temperature=0.6", "allow_pickle=true")
    loaded = recorded(monkeypatch, capsys, tmp_path, "gradstats.load_policy", command, *words)
    assert loaded.pop("progress", True)
    assert loaded == PolicySection(name="embedded", temperature=0.6, allow_pickle=True).arguments()
    words = (*POLICY_WORDS[command], "--device", "mps")
    loaded = recorded(monkeypatch, capsys, tmp_path, "gradstats.load_policy", command, *words)
    assert loaded["device"] == "mps"


def test_sample_loads_the_prompts_with_the_defaults_of_their_section(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("gradstats.load_policy", lambda *_, **__: None)
    words = ("embedded", "--prompts", "embedded", "--out", "o")
    loaded = recorded(monkeypatch, capsys, tmp_path, "gradstats.load_prompts", "sample", *words)
    assert loaded == {"rng": default(PromptsSection, "seed")}
    words = (*words, "--seed", 3, "--prompt-settings", "steps=2")
    loaded = recorded(monkeypatch, capsys, tmp_path, "gradstats.load_prompts", "sample", *words)
    assert loaded == {"rng": 3, "steps": 2}
