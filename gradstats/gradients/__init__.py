"""From rollouts to gradients: one file per engine, and the pieces they share."""

from gradstats.gradients.blocks import ParameterSelection, select_parameters
from gradstats.gradients.measure import ENGINES, MeasuringSession, measure
from gradstats.gradients.self_check import SelfCheck, SelfCheckError
from gradstats.gradients.sketches import CountSketch

__all__ = [
    "ENGINES",
    "CountSketch",
    "MeasuringSession",
    "ParameterSelection",
    "SelfCheck",
    "SelfCheckError",
    "measure",
    "select_parameters",
]
