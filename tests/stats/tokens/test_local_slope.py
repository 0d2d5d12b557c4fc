"""Growth of token energy along completions."""

import numpy as np
import pytest
from probed_policies import drawn_tokens, probed

from gradstats.stats import local_slope


def test_local_slope_of_constant_and_growing_energy():
    measured, batch, scores = drawn_tokens()
    flat = np.where(batch.mask, 1.0, 0.0)[:, :, None] * np.ones((1, 1, 2))
    constant = probed(batch, flat, 8, 4, np.random.default_rng(0))
    np.testing.assert_allclose(local_slope(constant).values, 0.5, rtol=1e-9)
    growing = probed(batch, flat * np.sqrt(np.arange(1, 5))[:, None], 8, 4, np.random.default_rng(0))
    expected = 0.5 * np.log2([3.0, 10.0 / 3.0])
    np.testing.assert_allclose(local_slope(growing).values, expected, rtol=1e-9)
    profile = local_slope(measured)
    reach = batch.lengths >= 2
    squares = np.cumsum((scores**2).sum(axis=2), axis=1)[reach]
    assert profile.values[0] == pytest.approx(0.5 * np.log2(squares[:, 1].sum() / squares[:, 0].sum()), rel=1e-9)
