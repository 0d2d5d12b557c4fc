"""Options of a measurement that are a number or a share, or that earlier versions wrote otherwise."""

from __future__ import annotations

import pytest

from gradstats.config.sections import MeasurementSection
from gradstats.config.validation import WrongSettingsError


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
