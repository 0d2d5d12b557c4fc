"""Oracles: slow, plain and independent of the code they are compared with."""

from gradstats.reference.enumerated import EnumeratedPolicy, GradientMoments
from gradstats.reference.optimal_baselines import (
    ExactOptimum,
    exact_minimiser,
    exact_optimal_baselines,
    exact_optimal_mixture,
    exact_optimal_shift,
)

__all__ = [
    "EnumeratedPolicy",
    "ExactOptimum",
    "GradientMoments",
    "exact_minimiser",
    "exact_optimal_baselines",
    "exact_optimal_mixture",
    "exact_optimal_shift",
]
