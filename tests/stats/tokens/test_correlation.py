"""Correlation of token scores compared with brute force on exact scores."""

import numpy as np
import pytest
from probed_policies import MANY_DIRECTIONS, drawn_tokens, probed

from gradstats.stats import token_correlation


def brute_correlation(scores, lengths, distances):
    top = bottom = 0.0
    for s, length in zip(scores, lengths, strict=True):
        for distance in distances:
            for t in range(length - distance):
                top += s[t] @ s[t + distance]
                bottom += 0.5 * (s[t] @ s[t] + s[t + distance] @ s[t + distance])
    return top / bottom


def test_correlation_is_that_of_exact_scores():
    measured, batch, scores = drawn_tokens()
    profile = token_correlation(measured)
    assert profile.last.tolist() == [1, 2, 3]
    for place, distance in enumerate([1, 2, 3]):
        expected = brute_correlation(scores, batch.lengths, [distance])
        assert profile.values[place] == pytest.approx(expected, rel=1e-9)
    assert token_correlation(measured, max_distance=2).last.tolist() == [1, 2]


def test_correlation_from_probes_is_unbiased_and_knows_its_error():
    """Profiles of the same completions over draws of the probes."""
    batch, _, scores = MANY_DIRECTIONS.sample(20, 3, 0)
    rng = np.random.default_rng(1)
    top = [token_correlation(probed(batch, 3.0 * scores, 6, 1, rng), max_distance=1).values[0] for _ in range(100)]
    # Denominators are nearly exact with the heavy tokens known, so that the quotient is nearly unbiased.
    expected = brute_correlation(scores, batch.lengths, [1])
    assert np.mean(top) == pytest.approx(expected, abs=4 * np.std(top) / np.sqrt(100) + 0.003)
