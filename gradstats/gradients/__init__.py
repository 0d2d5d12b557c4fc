"""From rollouts to gradients: measuring, engines, sketches, token scores and checks."""

from gradstats.gradients.checks.check_engines import check_engines
from gradstats.gradients.checks.self_check import SelfCheck, SelfCheckError
from gradstats.gradients.engines.registry import ENGINES
from gradstats.gradients.measure import measure
from gradstats.gradients.metric import AdamMetric
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, select_parameters
from gradstats.gradients.session import MeasuringSession
from gradstats.gradients.sketches import CountSketch

__all__ = [
    "ENGINES",
    "AdamMetric",
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
