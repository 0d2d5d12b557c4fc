"""Degrees of freedom of a standard error."""

import numpy as np
import pytest

from gradstats.stats.jackknife import influential_prompts, satterthwaite_degrees


def test_prompts_of_equal_influence_are_counted():
    halves = np.repeat([1.0, -1.0], 5)
    assert influential_prompts(halves) == pytest.approx(10.0)
    assert influential_prompts(7.0 + 1e-3 * halves) == pytest.approx(10.0)
    few = np.r_[1.0, -1.0, np.zeros(98)]
    assert influential_prompts(np.stack([few, 4.0 * few])) == pytest.approx([2.0, 2.0])
    assert np.isinf(influential_prompts(np.ones(4)))


def test_degrees_of_a_hand_computed_case_and_of_the_limits():
    assert satterthwaite_degrees(5.0, 30) == pytest.approx(2.0 / (1 / 5 - 1 / 30))
    assert satterthwaite_degrees([10.0, 30.0, np.inf], 30) == pytest.approx([30.0, np.inf, np.inf])
    assert satterthwaite_degrees(1.0, 10**9) == pytest.approx(2.0)


def test_the_variance_of_a_variance_is_that_of_a_chi_square_with_so_many_degrees():
    """Influences of three sizes, of random sign: the relative variance of the mean square is 2/ν."""
    rng = np.random.default_rng(0)
    values, m = np.array([0.2, 1.0, 3.0]), 60
    drawn = rng.choice(values, p=(0.6, 0.3, 0.1), size=(40000, m)) * rng.choice([-1.0, 1.0], size=(40000, m))
    squares = (drawn**2).mean(axis=1)
    # n of a large sample, scaled to M prompts
    n = influential_prompts(drawn.ravel()) / 40000
    assert 2.0 / satterthwaite_degrees(n, m) == pytest.approx(squares.var() / squares.mean() ** 2, rel=0.03)
