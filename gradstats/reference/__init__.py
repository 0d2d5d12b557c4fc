"""A policy of which all completions are enumerated, so that gradients and their variances are known exactly."""

from gradstats.reference.enumerated import EnumeratedPolicy, GradientMoments

__all__ = ["EnumeratedPolicy", "GradientMoments"]
