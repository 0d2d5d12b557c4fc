"""Errors of accumulated energies."""

import numpy as np
import pytest

from gradstats.stats.token_profiles import FRACTIONS, cumulative_errors

ENERGIES = [np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0]), np.array([2.0, 6.0, 1.0]), np.array([5.0, 2.0, 3.0])]
PROXY = [np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 5.0, 3.0]), np.array([4.0, 4.0, 1.0])]
PROMPTS = np.array([0, 0, 1, 2])


def test_at_the_end_it_is_the_error_of_the_total():
    scale = sum(e.sum() for e in ENERGIES) / sum(p.sum() for p in PROXY)
    errors = [abs(scale * p.sum() - e.sum()) / e.sum() for e, p in zip(ENERGIES, PROXY, strict=True)]
    expected = np.mean([(errors[0] + errors[1]) / 2.0, errors[2], errors[3]])
    assert cumulative_errors(ENERGIES, PROXY, PROMPTS)[-1].value == pytest.approx(expected)


def test_at_a_quarter_it_is_that_of_the_first_tokens():
    scale = sum(e.sum() for e in ENERGIES) / sum(p.sum() for p in PROXY)
    errors = [abs(scale * p[0] - e[0]) / e[0] for e, p in zip(ENERGIES, PROXY, strict=True)]
    first = cumulative_errors(ENERGIES, PROXY, PROMPTS)[FRACTIONS.index(0.25)]
    assert first.value == pytest.approx(np.mean([(errors[0] + errors[1]) / 2.0, errors[2], errors[3]]))
