"""From rollouts to gradients: one file per engine, and the pieces they share."""

from gradstats.gradients.blocks import ParameterSelection, select_parameters
from gradstats.gradients.check import check_engines
from gradstats.gradients.measure import ENGINES, MeasuringSession, measure
from gradstats.gradients.self_check import SelfCheck, SelfCheckError
from gradstats.gradients.sketches import CountSketch
from gradstats.gradients.unsupported import UnsupportedModuleError

__all__ = [
    "ENGINES",
    "CountSketch",
    "MeasuringSession",
    "ParameterSelection",
    "SelfCheck",
    "SelfCheckError",
    "UnsupportedModuleError",
    "check_engines",
    "measure",
    "select_parameters",
]
