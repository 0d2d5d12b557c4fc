"""The share of the heaviest tokens."""

import numpy as np
import pytest
from probed_policies import MANY_DIRECTIONS, drawn_tokens, probed

from gradstats.stats import concentration


def test_concentration_is_the_share_of_the_heaviest():
    measured, _batch, scores = drawn_tokens()
    squares = -np.sort(-(scores**2).sum(axis=2), axis=1)
    shares = np.cumsum(squares, axis=1) / squares.sum(axis=1, keepdims=True)
    profile = concentration(measured, [1, 2, 10])
    np.testing.assert_allclose(profile.values, [shares[:, 0].mean(), shares[:, 1].mean(), 1.0], rtol=1e-9)
    assert profile.to_frame().columns.tolist() == [
        "tokens_first",
        "tokens_last",
        "share",
        "share_low",
        "share_high",
        "n_prompts",
    ]


def test_noise_of_few_probes_does_not_concentrate_energy():
    """If all tokens have equal energy, the heaviest of four holds a quarter, however noisy the estimates."""
    batch, _, _ = MANY_DIRECTIONS.sample(200, 3, 0)
    equal = np.random.default_rng(0).normal(size=(600, 4, 400)) / 20.0 * batch.mask[:, :, None]
    profile = concentration(probed(batch, equal, 4, 0, np.random.default_rng(0)), [1])
    assert profile.values[0] == pytest.approx(np.mean(1.0 / batch.lengths), abs=0.03)
