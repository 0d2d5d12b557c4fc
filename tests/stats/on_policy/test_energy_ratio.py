"""Squared norms over token energies."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.stats.on_policy import energy_ratio

PROMPTS = np.array([0, 0, 1, 2])


def measured(energies):
    return SimpleNamespace(
        rollouts=None, logprobs=[], entropy=[], metadata={}, sketches=None, lengths=None,
        sq_norms=np.array([2.0, 4.0, 5.0, 6.0]), token_energy=energies,
    )  # fmt: skip


def test_by_hand():
    energies = [np.array([1.0, 1.0]), np.array([2.0]), np.array([4.0]), np.array([1.0, 3.0])]
    ratio, effective_prompts = energy_ratio(measured(energies), PROMPTS)
    assert ratio.value == pytest.approx((3.0 + 5.0 + 6.0) / (2.0 + 4.0 + 4.0))
    assert effective_prompts == pytest.approx(10.0**2 / (4.0 + 16.0 + 16.0))


def test_without_energies_it_is_nan():
    ratio, effective_prompts = energy_ratio(measured(None), PROMPTS)
    assert np.isnan(ratio.value)
    assert effective_prompts == np.inf
