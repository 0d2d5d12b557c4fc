"""A policy whose gradients, variances and optima are known exactly, since all its completions are enumerated."""

from gradstats.reference.enumerated import EnumeratedPolicy, GradientMoments

__all__ = ["EnumeratedPolicy", "GradientMoments"]
