"""One declaration of each option: sections, Python interface and command line agree on names and defaults."""

from __future__ import annotations

import inspect

import pytest
from command_line import run
from pydantic_core import PydanticUndefined

import gradstats
from gradstats.config.sections import (
    FiguresSection,
    MeasurementSection,
    PolicySection,
    PromptsSection,
    SamplingSection,
    VarianceSection,
)

FUNCTIONS = {
    PolicySection: gradstats.load_policy,
    PromptsSection: gradstats.load_prompts,
    SamplingSection: gradstats.sample,
    MeasurementSection: gradstats.measure,
    VarianceSection: gradstats.compare,
}

#: Arguments of a function that its section does not have, or calls otherwise, and why.
ONLY_IN_PYTHON = {
    (PolicySection, "name_or_path"): "a file calls it name: it names a path too",
    (PromptsSection, "rng"): "a file calls it seed: it holds numbers only",
    (SamplingSection, "rng"): "a file calls it seed: it holds numbers only",
    (VarianceSection, "rng"): "a file calls it seed: it holds numbers only",
    (SamplingSection, "policy"): "the policy has its own section",
    (SamplingSection, "problems"): "the problems have their own section",
    (SamplingSection, "keep_in"): "a run directory and the command line choose the folder",
    (SamplingSection, "progress"): "says nothing of what is computed",
    (MeasurementSection, "policy"): "the policy has its own section",
    (MeasurementSection, "rollouts"): "they come from the sampling step",
    (MeasurementSection, "token_weights"): "arrays, one a completion",
    (MeasurementSection, "reference_policy"): "a model in memory",
    (MeasurementSection, "keep_in"): "a run directory and the command line choose the folder",
    (MeasurementSection, "progress"): "says nothing of what is computed",
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
    (MeasurementSection, "token_dtype"): "an argument of Measurement.save",
    (VarianceSection, "confidence_level"): "an argument of VarianceComparison.to_frame",
}
#: Defaults that differ, and why.
OTHER_DEFAULT = {
    (SamplingSection, "template_options"): "Python: None stands for an empty mapping, which must not be shared",
    (SamplingSection, "sampler_options"): "Python: None stands for an empty mapping, which must not be shared",
    (PromptsSection, "settings"): "Python: keyword arguments",
    (VarianceSection, "estimators"): "Python: no default, the labels are what is asked",
}


def default(section, name):
    return section.model_fields[name].get_default(call_default_factory=True)


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


#: The commands that take a section, the function that they call, and words without which they do not begin.
COMMANDS = {
    "sample": (SamplingSection, "gradstats.sample", ("embedded", "--prompts", "embedded", "--n", 2, "--out", "o")),
    "measure": (MeasurementSection, "gradstats.measure", ("embedded", "--rollouts", "r", "--out", "o")),
    "variance": (VarianceSection, "gradstats.compare", ("m",)),
    "figures": (FiguresSection, "gradstats.report.figures.draw_run", ("run",)),
}


@pytest.fixture
def called(monkeypatch, tmp_path):
    """Runs a command up to the function that does the work; returns what that was called with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradstats.load_policy", lambda *_, **__: None)
    monkeypatch.setattr("gradstats.load_prompts", lambda *_, **__: [])
    monkeypatch.setattr("gradstats.runs.sources.load_rollouts_of", lambda path: None)
    monkeypatch.setattr("gradstats.runs.sources.load_measurement_of", lambda path: None)
    monkeypatch.setattr("gradstats.measurement.disk_size.measured_bytes", lambda *_: 0)
    monkeypatch.setattr("gradstats.report.saved_results.read_results", lambda path: None)

    def call(capsys, command, *words):
        _, target, needed = COMMANDS[command]
        seen = {}

        def record(*positional, **options):
            seen.update(options, look=positional[-1])
            raise ValueError("recorded")

        monkeypatch.setattr(target, record)
        code, _, err = run(monkeypatch, capsys, command, *needed, *words)
        assert (code, "recorded" in err) == (1, True), err
        return seen

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_and_defaults_of_its_section(monkeypatch, capsys, called, command):
    section = COMMANDS[command][0]
    seen = called(capsys, command)
    if section is FiguresSection:
        assert seen["look"] == FiguresSection()
    else:
        expected = section().arguments()
        assert {name: seen[name] for name in expected} == expected
    _, printed, _ = run(monkeypatch, capsys, command, "--help")
    for name in section.model_fields:
        assert f"--{name.replace('_', '-')}" in printed, (command, name)


def test_options_reach_the_function(capsys, called):
    seen = called(
        capsys, "measure", "--memory-gib", 1.5, "--token-budget", 99, "--sketch-seed", 7, "--sketch-dim", "None",
        "--token-exact", 0.5,
    )  # fmt: skip
    wanted = {"memory_gib": 1.5, "token_budget": 99, "sketch_seed": 7, "sketch_dim": None, "token_exact": 0.5}
    assert {name: seen[name] for name in wanted} == wanted
    seen = called(capsys, "variance", "--prompts-per-batch", 4, "--n-resamples", 8, "--group-size", 2, 4, "--seed", 3)
    wanted = {"prompts_per_batch": 4, "n_resamples": 8, "group_size": [2, 4], "rng": 3}
    assert {name: seen[name] for name in wanted} == wanted
    for words, size in ((("--group-size", 2), 2), (("--group-size",), None), (("--group-size", "None"), None)):
        assert called(capsys, "variance", *words)["group_size"] == size
    seen = called(capsys, "sample", "--reward", "a", "b=0.5", "--template-options", "k=v", "n=2", "--greedy")
    wanted = {"reward": ["a", "b=0.5"], "template_options": {"k": "v", "n": 2}, "greedy": True, "temperature": None}
    assert {name: seen[name] for name in wanted} == wanted
