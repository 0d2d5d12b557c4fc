"""Deviations: what is compared with what, and that NaN never passes."""

from __future__ import annotations

import numpy as np
import torch

from gradstats.gradients.checks.self_check import Deviation, of_tokens


def test_nan_does_not_pass():
    assert Deviation(0.1, 0.1, "x").passes
    assert not Deviation(0.11, 0.1, "x").passes
    assert not Deviation(float("nan"), 0.1, "x").passes


def test_tokens_are_relative_to_the_largest_of_the_sequence():
    exact = {"entropy": np.array([0.5, 2.0])}
    (found,) = of_tokens({"entropy": np.array([0.5, 2.1])}, exact, torch.float32)
    np.testing.assert_allclose(found.value, 0.05)
    (shorter,) = of_tokens({"entropy": np.array([0.5])}, exact, torch.float32)
    assert not shorter.passes
