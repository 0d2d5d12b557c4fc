"""The sampler's parameters: their ranges, and where they come from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradstats.config.sections import SamplingSection
from gradstats.sampling import SamplerSettings


@pytest.mark.parametrize("stated", [None, 0.7])
def test_a_section_without_a_temperature_draws_at_the_policys(stated):
    section = SamplingSection(max_new_tokens=9, temperature=stated, top_p=0.9, top_k=7, min_p=0.05)
    settings = SamplerSettings.of(section, policy_temperature=0.6)
    assert settings == SamplerSettings(9, temperature=stated or 0.6, top_p=0.9, top_k=7, min_p=0.05)


def test_the_ranges_are_those_of_the_section():
    with pytest.raises(ValueError, match=r"top_p is 0\.0: it must be a number in \(0, 1\]"):
        SamplerSettings(8, top_p=0.0)


def test_departures_are_from_the_policys_own_distribution():
    assert SamplerSettings(8, temperature=0.6).departures(0.6) == []
    assert SamplerSettings(8, top_k=5).departures(0.6) == ["temperature=1.0", "top_k=5"]
    assert SamplerSettings(8, temperature=0.5, min_p=0.1).greedy() == SamplerSettings(8, top_k=1)


def test_only_what_changes_the_distribution_is_overridden():
    config = {"temperature": 0.6, "top_k": 5, "max_length": 20, "eos_token_id": 1, "min_p": None}
    settings = SamplerSettings(8, top_k=5)
    assert settings.overridden(SimpleNamespace(to_diff_dict=lambda: config)) == {"temperature": 0.6}
    assert settings.overridden(None) == {}
