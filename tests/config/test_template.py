"""A new experiment file: what is chosen holds, and what is shown as a default is one."""

from __future__ import annotations

import itertools
import re

import pytest
import yaml

from gradstats.config.experiment import Experiment, as_yaml, experiment_text
from gradstats.config.sections import DEFAULT_ESTIMATORS
from gradstats.config.validation import Section, WrongSettingsError

CHOSEN = {
    "description": "Two: α & β # not a comment",
    "policy": {"name": "embedded"},
    "prompts": {"source": "mine.py:problems", "settings": {"steps": 3}},
    "sampling": {"group_size": 4, "reward": {"math": 1.0, "mine.py:form": 0.1}},
    "figures": {"venue": "acl"},
}


def test_what_is_chosen_holds_and_nothing_else_changes():
    read = yaml.safe_load(experiment_text("mine.yaml", CHOSEN))
    assert Experiment(name="mine", **read) == Experiment(name="mine", **CHOSEN)


def test_what_is_shown_behind_a_sign_is_the_default():
    text = re.sub(r"^( *)# (\w+: )", r"\1\2", experiment_text("mine.yaml", CHOSEN), flags=re.MULTILINE)
    read = yaml.safe_load(text)
    assert Experiment(name="mine", **read) == Experiment(name="mine", **CHOSEN)
    for name, field in Experiment.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            assert set(read[name]) == set(field.annotation.model_fields), name
    assert set(read) == set(Experiment.model_fields) - {"name"}
    assert read["variance"]["estimators"] == list(DEFAULT_ESTIMATORS)


def test_every_setting_is_explained():
    lines = experiment_text("mine.yaml", CHOSEN).splitlines()
    for above, line in itertools.pairwise(lines):
        if re.match(r" *(# )?\w+:", line):
            assert above.lstrip().startswith("## "), line
    assert max(map(len, lines)) < 300
    assert "gradstats run mine.yaml" in lines[1]


def test_wrong_settings_are_not_written():
    with pytest.raises(WrongSettingsError, match="group_size is 0"):
        experiment_text("mine.yaml", CHOSEN | {"sampling": {"group_size": 0}})


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (r"\n+", r"\n+"), ([1, "a: b"], "[1, 'a: b']"), (1.0, "1.0")]
)
def test_values_are_written_on_one_line(value, text):
    assert as_yaml(value) == text
    assert yaml.safe_load(text) == value
