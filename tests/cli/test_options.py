"""Sections as options of a command: how their words are read, and what help shows."""

import pytest
import tyro

from gradstats.cli.options import REGISTRY, OptionsOf, SettingWords, policy_section
from gradstats.config.sections import MeasurementSection, PolicySection, SamplingSection, VarianceSection


def parse(section, *words):
    """The section that a command with these words gets."""

    def command(settings) -> object:
        return settings

    command.__annotations__["settings"] = OptionsOf[section]
    return tyro.cli(command, args=list(map(str, words)), registry=REGISTRY)


@pytest.mark.parametrize(
    ("section", "words", "expected"),
    [
        (SamplingSection, ("--reward", "math"), {"reward": ["math"]}),
        (SamplingSection, ("--reward", "math", "exact=0.5"), {"reward": ["math", "exact=0.5"]}),
        (SamplingSection, ("--reward",), {"reward": None}),
        (SamplingSection, ("--sampler-options", "model=m", "n=2"), {"sampler_options": {"model": "m", "n": 2}}),
        (SamplingSection, ("--sampler-options", "a.b=[1, x]"), {"sampler_options": {"a": {"b": [1, "x"]}}}),
        (SamplingSection, ("--greedy", "--group-size", 3), {"greedy": True, "group_size": 3}),
        (MeasurementSection, ("--blocks", "kind"), {"blocks": "kind"}),
        (MeasurementSection, ("--sketch-dim", "None"), {"sketch_dim": None}),
        (VarianceSection, ("--group-size", 4), {"group_size": 4}),
        (VarianceSection, ("--group-size", 2, 4), {"group_size": [2, 4]}),
        (VarianceSection, ("--group-size",), {"group_size": None}),
        (VarianceSection, ("--group-size", "None"), {"group_size": None}),
        (VarianceSection, ("--estimators", "rloo", "kimi(tau=1)"), {"estimators": ["rloo", "kimi(tau=1)"]}),
    ],
)
def test_words_become_settings(section, words, expected):
    assert parse(section, *words) == section(**expected)


def test_a_policy_takes_each_setting_from_one_place():
    words: SettingWords = ("temperature=0.6", "allow_pickle=true")
    section = PolicySection(name="p", temperature=0.6, allow_pickle=True, dtype="bfloat16")
    assert policy_section("p", words, dtype="bfloat16", device=None) == section
    with pytest.raises(ValueError, match="^temperature is given both by --temperature and by --policy-settings: give"):
        policy_section("p", words, temperature=0.6)


@pytest.mark.parametrize("words", [("x",), ("2", "x")])
def test_group_sizes_that_are_not_integers_are_explained(capsys, words):
    with pytest.raises(SystemExit):
        parse(VarianceSection, "--group-size", *words)
    printed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    said = f"--group-size: '{' '.join(words)}' must be one integer, several, or None for all completions of a prompt"
    assert said in printed


def test_an_option_that_is_given_twice_is_joined_or_refused(refused):
    words = ("run", "embedded", "--dry-run", "--set", "prompts.nn=5", "--set", "prompts.n=2", "--set=sampling.seed=1")
    assert "no setting 'nn'" in refused(*words)
    words = ("ask", "runs/r", "variance", "--estimators", "grpo(a=1)", "--estimators", "grpo(a=2)")
    assert "--estimators is given twice" in refused(*words)
    said = "--seed is given twice, as '--seed 1' and '--seed=2': give it once"
    assert said in refused("sample", "embedded", "--seed", "1", "--seed=2")
