"""The sections: help of every option, fixed sets of names, defaults, and rules that a range does not state."""

from __future__ import annotations

from typing import get_args

import pytest

from gradstats import estimators
from gradstats.config.sections import (
    DEFAULT_ESTIMATORS,
    FiguresSection,
    LengthScalingSection,
    MeasurementSection,
    PolicySection,
    PromptsSection,
    SamplingSection,
    VarianceSection,
)
from gradstats.config.validation import WrongSettingsError
from gradstats.gradients.engines.registry import ENGINES
from gradstats.plots.save import FORMATS
from gradstats.plots.style import INK, VENUES
from gradstats.policy.model import DTYPES
from gradstats.sampling.plan import SAMPLERS


@pytest.mark.parametrize("token_exact", [0, 1, 7, 0.25, 3.0])
def test_tokens_measured_exactly_are_a_number_or_a_share(token_exact):
    assert MeasurementSection(token_exact=token_exact).token_exact == token_exact


@pytest.mark.parametrize(
    ("token_exact", "message"),
    [
        (1.0, "token_exact is 1.0, neither a share below 1 nor a whole number of tokens: give 1 for one token"),
        (2.5, "token_exact is 2.5: give a number of tokens, or a share of the proxy between 0 and 1"),
        (-1, "token_exact is -1: it must be an integer of at least 0"),
    ],
)
def test_other_numbers_of_tokens_are_refused(token_exact, message):
    with pytest.raises(WrongSettingsError, match=f"^{message}"):
        MeasurementSection(token_exact=token_exact)


def test_the_token_budget_of_a_run_of_version_0_1_is_the_default():
    assert MeasurementSection(token_budget=None) == MeasurementSection()
    assert MeasurementSection(token_budget=99) != MeasurementSection()


def test_a_share_stays_a_share_and_a_number_a_number():
    assert isinstance(MeasurementSection(token_exact=2).token_exact, int)
    assert isinstance(MeasurementSection(token_exact=0.5).token_exact, float)


SECTIONS = [
    PolicySection,
    PromptsSection,
    SamplingSection,
    MeasurementSection,
    LengthScalingSection,
    VarianceSection,
    FiguresSection,
]
REQUIRED = {PolicySection: {"name": "embedded"}, PromptsSection: {"source": "embedded"}}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_says_what_it_is(section):
    for name, field in section.model_fields.items():
        assert field.description, (section, name)
        assert field.description.endswith("."), (section, name)


def test_fixed_sets_of_names_are_those_of_the_registries():
    def names(section, field):
        return get_args(section.model_fields[field].annotation)

    assert names(MeasurementSection, "engine") == ("auto", *ENGINES)
    assert names(SamplingSection, "sampler") == tuple(SAMPLERS)
    assert set(names(PolicySection, "dtype")) == set(DTYPES)
    assert names(FiguresSection, "venue") == tuple(VENUES)
    assert names(FiguresSection, "theme") == tuple(INK)
    assert get_args(names(FiguresSection, "formats")[0]) == FORMATS


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_pass_their_own_validation(section):
    defaults = section(**REQUIRED.get(section, {}))
    assert section(**defaults.model_dump()) == defaults
    with pytest.raises(WrongSettingsError, match="has no setting 'nothing'"):
        section(**REQUIRED.get(section, {}), nothing=1)


def test_sections_do_not_share_a_mutable_default():
    SamplingSection().sampler_options["model"] = "m"
    FiguresSection().formats.append("svg")
    assert SamplingSection().sampler_options == {}
    assert FiguresSection().formats == ["pdf", "png"]


def test_the_estimators_compared_by_default_are_labels():
    assert VarianceSection().estimators == list(DEFAULT_ESTIMATORS)
    assert [estimators.get(label).label for label in DEFAULT_ESTIMATORS if label != "constant(b=optimal)"] == [
        label for label in DEFAULT_ESTIMATORS if label != "constant(b=optimal)"
    ]
    assert estimators.get("constant(b=optimal)") == estimators.constant()
