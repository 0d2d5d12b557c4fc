"""The result of measuring: gradients as norms and sketches, and token statistics."""

from gradstats.measurement.measurement import Measurement, WeightedGradients, read_measurement
from gradstats.measurement.token_scores import TokenScores

__all__ = ["Measurement", "TokenScores", "WeightedGradients", "read_measurement"]
