"""Drift of token scores compared with brute force on exact scores."""

import numpy as np
import pytest
from probed_policies import drawn_tokens, probed

from gradstats.stats import drift_along


def test_drift_adds_up_to_what_tokens_have_in_common():
    measured, _, scores = drawn_tokens()
    profile = drift_along(measured)
    # Undo the division: bins of positions 1, 2 and 3–4.
    squares = (scores**2).sum(axis=2)
    energies = [squares[:, 0].sum(), squares[:, 1].sum(), squares[:, 2:].sum()]
    both = float(profile.values @ energies)
    whole = (scores.sum(axis=1) ** 2).sum() - squares.sum()
    assert both == pytest.approx(0.5 * whole, rel=1e-9)
    assert profile.values[0] == 0.0


def test_on_policy_drift_is_near_zero_and_a_drift_is_found():
    measured, batch, scores = drawn_tokens(n_probes=32, n_heavy=1, n_groups=300)
    low, high = drift_along(measured).confidence_interval(0.999)
    assert np.all(low[1:] < 0)
    assert np.all(high[1:] > 0)
    drifting = scores + 0.5 * batch.mask[:, :, None]
    found = drift_along(probed(batch, drifting, 32, 1, np.random.default_rng(0)))
    assert found.confidence_interval(0.999)[0][1] > 0
