"""Wrong settings: one sentence each, which names the setting, its value and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from gradstats.config.experiment import Experiment
from gradstats.config.sections import (
    FiguresSection,
    LengthScalingSection,
    MeasurementSection,
    SamplingSection,
    VarianceSection,
)
from gradstats.config.validation import WrongSettingsError


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        (SamplingSection, {"group_siz": 3}, "sampling has no setting 'group_siz': did you mean 'group_size'?"),
        (LengthScalingSection, {"q": 3}, "length_scaling has no setting 'q': it has confidence_level, published"),
        (
            SamplingSection,
            {"group_size": 0},
            "group_size is 0: it must be an integer of at least 1 (completions of each prompt)",
        ),
        (SamplingSection, {"group_size": "many"}, "group_size is 'many': it must be an integer of at least 1 (compl"),
        (SamplingSection, {"top_p": 1.5}, "top_p is 1.5: it must be a number in (0, 1] (nucleus mass; 1 keeps every"),
        (SamplingSection, {"sampler": "vlm"}, "sampler is 'vlm': choose one of transformers, continuous, vllm, openai"),
        (
            SamplingSection,
            {"reward": {"a": "x"}},
            "reward is {'a': 'x'}: it must be a string, a list with each entry a string, a mapping with each value a "
            "number, or None (name of the reward",
        ),
        (
            MeasurementSection,
            {"sketch_dim": 0},
            "sketch_dim is 0: it must be an integer in [1, 16777216], or None (dim",
        ),
        (
            MeasurementSection,
            {"sketch_dim": None, "block_sketches": True},
            "block_sketches is True, and sketch_dim is None: give a dimension of the sketches",
        ),
        (MeasurementSection, {"memory_gib": -1}, "memory_gib is -1: it must be a number above 0, or None (most memory"),
        (MeasurementSection, {"token_exact": 1.0}, "token_exact is 1.0, neither a share below 1 nor a whole number"),
        (MeasurementSection, {"token_exact": 2.5}, "token_exact is 2.5: give a number of tokens, or a share"),
        (
            VarianceSection,
            {"group_size": [2, 0]},
            "group_size is [2, 0]: it must be an integer of at least 1, a list with each entry an integer of at "
            "least 1, or None (completions of a group, one size or several; all of a prompt by default)",
        ),
        (VarianceSection, {"confidence_level": 1.0}, "confidence_level is 1.0: it must be a number in (0, 1) (level"),
        (FiguresSection, {"column": "x"}, "column is 'x': choose one of half, full (or None)"),
        (FiguresSection, {"formats": ["x"]}, "formats is ['x']: it must be a list with each entry one of pdf, svg, "),
    ],
)
def test_a_wrong_setting_is_one_sentence(section, settings, message):
    with pytest.raises(WrongSettingsError) as caught:
        section(**settings)
    assert str(caught.value).startswith(message)
    assert "Single tokens" not in str(caught.value)  # only the first sentence of a description
    assert not isinstance(caught.value, ValidationError)
    assert "\n" not in str(caught.value)


def test_an_experiment_names_every_wrong_setting_with_its_section():
    with pytest.raises(WrongSettingsError) as caught:
        Experiment(name="e", policy={"nam": 3}, sampling={"group_size": 0, "top_k": -1}, measurement=3, varianc={})
    sentences = [setting.sentence("an experiment") for setting in caught.value.wrong]
    assert str(caught.value) == "; ".join(sentences)
    assert [sentence.split(" ", 1)[0] for sentence in sentences] == [
        "policy.name",
        "policy",
        "prompts",
        "sampling.group_size",
        "sampling.top_k",
        "measurement",
        "an",
    ]
    assert sentences[0] == 'policy.name is missing: give "embedded", a local folder, a .gguf file or a hub id'
    assert sentences[1] == "policy has no setting 'nam': did you mean 'name'?"
    assert sentences[5].startswith("measurement is 3: it must be a mapping of engine, params, blocks")
    assert sentences[6] == "an experiment has no setting 'varianc': did you mean 'variance'?"


def test_numbers_of_numpy_are_numbers():
    section = SamplingSection(group_size=np.int64(3), temperature=np.float32(0.5))
    assert (section.group_size, section.temperature) == (3, 0.5)
    assert type(section.group_size) is int


def test_arguments_are_those_of_the_function():
    arguments = VarianceSection(group_size=[2, 4], seed=5).arguments(reference="reinforce")
    assert (arguments["rng"], arguments["reference"], arguments["group_size"]) == (5, "reinforce", [2, 4])
    assert not {"seed", "confidence_level"} & arguments.keys()
