"""The oracles: slow, plain and independent of what they judge."""

from gradstats.reference.enumerated import EnumeratedPolicy
from gradstats.reference.moments import GradientMoments

__all__ = ["EnumeratedPolicy", "GradientMoments"]
