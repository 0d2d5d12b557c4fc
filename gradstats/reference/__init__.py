"""Oracles: slow, plain and independent of the code they are compared with."""

from gradstats.reference.enumerated import EnumeratedPolicy
from gradstats.reference.moments import GradientMoments

__all__ = ["EnumeratedPolicy", "GradientMoments"]
